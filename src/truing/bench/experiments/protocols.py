"""The protocols: how a case is run on one mix. A protocol yields (value, measurement) and reads no files.

`value` is the value of the varied quantity, or None. Repeats differ in random draws: the rows of a large
out-of-distribution set, the halves of the mix, the order of a stream, the seed of a classical detector.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..._check import Floats, Matrix
from ...detector import Detector
from ...outputs import Outputs
from ...regression.fits import SharedFeatures, fit_direct
from ...scores import Head
from ...scores.shaping import react_clip
from .cases import CONVENTIONS, IN_PER_OUT, PENALTY, REFERENCE_SHARE, SEED, SEEDS, Case, Seed
from .classical import CLASSICAL
from .methods import (
    Fit,
    Measurement,
    Scorer,
    compare,
    direct,
    kept_rows,
    methods_of,
    metrics,
    principal_coordinates,
    trusted_by_authors,
)
from .mixes import Index, Mix
from .own import NOTHING_OWN, Own
from .reference import Reference, compare_with_reference
from .settings import Setting

RATE_ROWS = 5000
SAMPLED_ROWS = 10_000  # Total in-distribution rows of all samples of one size.
CLASSES_LEFT = 0.3  # Share of classes, or of rows, that remain among the test rows.
CONCENTRATION = 0.3  # Parameter of the Dirichlet distribution of class shares.
UNTRUED = ("gradnorm",)  # Base scores that are not trued.

Value = float | None
Measurements = Iterator[tuple[Value, Measurement]]


@dataclass(frozen=True, eq=False)
class Job:
    """One mix to run under one case. `reacted` maps features and a clip to the base scores of the clipped features.

    A job has one repeat per seed.
    """

    setting: Setting
    case: Case
    mix: Mix
    conventions: str = CONVENTIONS[0]
    reacted: Callable[[Matrix, float], dict[str, Floats]] | None = None
    seeds: tuple[Seed, ...] = SEEDS
    head: Head | None = None
    own: Own = NOTHING_OWN

    def methods(self) -> dict[str, Fit]:
        """Return the methods of the case, including the user's methods."""
        return methods_of(self.case, self.setting, self.conventions, self.own.fits(self.setting.components))

    def repeats(self) -> Iterator[tuple[Mix, np.random.Generator, bool]]:
        """Yield the mix of each repeat, its random generator, and whether the mix differs from the previous one."""
        used = self.mix.rows_in // IN_PER_OUT if self.setting.draws else self.mix.rows_out
        for repeat, seed in enumerate(self.seeds):
            rng = np.random.default_rng(seed)
            if used < self.mix.rows_out:
                yield self.mix.sample(rng, self.mix.rows_in, used), rng, True
            else:
                yield self.mix, rng, repeat == 0


def compare_methods(job: Job) -> Measurements:
    """Compare every base score with its trued versions. GradNorm is not trued."""
    methods = job.methods()
    for mix, rng, new in job.repeats():
        trued = replace(mix, scores={base: scores for base, scores in mix.scores.items() if base not in UNTRUED})
        for measurement in compare(trued, methods, job.setting.components, rng, fitted=new):
            yield None, measurement
        for base in mix.scores.keys() & set(UNTRUED) if new else ():
            yield None, ((base, "none", "fitted"), metrics(*mix.split(mix.scores[base])))


def stream(job: Job) -> Measurements:
    """Run Online DLR on a stream, and score every batch both after and before it is learned."""
    for mix, rng, new in job.repeats():
        order, features = rng.permutation(len(mix.features)), SharedFeatures(mix.features)
        for base, scores in mix.scores.items():
            if new:
                yield None, ((base, "none", "fitted"), metrics(*mix.split(scores)))
            if new and "DLR" in (job.case.methods or ()):
                trued = direct(features, scores)(mix.features)
                yield None, ((base, "DLR", "fitted"), metrics(*mix.split(trued)))
            for batch in job.case.values:
                after, before = _streamed(mix.features, scores, order, int(batch))
                yield batch, ((base, "Online DLR", "fitted"), metrics(*mix.split(after)))
                if batch < len(order):
                    later = [part[~np.isnan(part)] for part in mix.split(before)]
                    yield batch, ((base, "Online DLR", "unseen"), metrics(*later))


def vary_kept_share(job: Job) -> Measurements:
    """Run RLR at every kept share. All shares use the same order of rows."""
    for mix, rng, new in job.repeats():
        seen, unseen = mix.halves(rng)
        for fitted, scored, name in ((mix, mix, "fitted"), (seen, unseen, "unseen")):
            if name == "fitted" and not new:
                continue
            features = SharedFeatures(fitted.features, job.setting.components)
            for base, scores in fitted.scores.items():
                for keep, scorer in zip(job.case.values, _sweep(job, features, scores), strict=True):
                    yield keep, ((base, "RLR", name), metrics(*scored.split(scorer(scored.features))))
                if name == "fitted":
                    yield None, ((base, "none", name), metrics(*mix.split(scores)))


def _sweep(job: Job, features: SharedFeatures, scores: Floats) -> list[Scorer]:
    """Return the function of RLR for each kept share, by the conventions of the job."""
    if job.conventions == CONVENTIONS[0]:
        return [fit.predict for fit in features.fit_robust_sweep(scores, job.case.values, penalty=PENALTY)]
    order = trusted_by_authors(features, scores)
    kept = [order[: kept_rows(keep, len(order))] for keep in job.case.values]
    return [fit_direct(features.matrix[rows], scores[rows]).predict for rows in kept]


def vary_rate(job: Job) -> Measurements:
    """Run DLR at every share of in-distribution rows, with a constant total number of rows."""
    mix = job.mix
    total = min(RATE_ROWS, int(mix.rows_out / (1 - job.case.values[0])))
    for seed in job.seeds:
        for share in job.case.values:
            rng = np.random.default_rng(seed)
            part = mix.sample(rng, round(share * total), total - round(share * total))
            for measurement in compare(part, {"DLR": direct}, job.setting.components, rng):
                yield share, measurement


def vary_sample_size(job: Job) -> Measurements:
    """Run DLR on samples of every size. The next sample provides the unseen rows."""
    for size in map(int, job.case.values):
        if job.mix.rows_in >= size and job.mix.rows_out >= size // IN_PER_OUT:
            yield from _sampled(job.mix, size)


def _sampled(mix: Mix, size: int) -> Measurements:
    sizes = (size, size // IN_PER_OUT)
    count = 1 if sizes == (mix.rows_in, mix.rows_out) else SAMPLED_ROWS // size  # There is only one sample of all rows.
    for shuffle in samples(mix, sizes, count, np.random.default_rng([SEED, size])):
        for number, sample in enumerate(shuffle):
            following = shuffle[(number + 1) % len(shuffle)]
            features = SharedFeatures(sample.features)
            for base, scores in sample.scores.items():
                scorer = direct(features, scores)
                yield size, ((base, "none", "fitted"), metrics(*sample.split(scores)))
                yield size, ((base, "DLR", "fitted"), metrics(*sample.split(scorer(sample.features))))
                if len(shuffle) > 1:  # Samples of one shuffle have no rows in common.
                    yield size, ((base, "DLR", "unseen"), metrics(*following.split(scorer(following.features))))


def samples(mix: Mix, sizes: tuple[int, int], count: int, rng: np.random.Generator) -> Iterator[list[Mix]]:
    """Yield shuffles of a mix, each cut into disjoint samples of `sizes` rows; `count` samples in total."""
    each = min(mix.rows_in // sizes[0], mix.rows_out // sizes[1])
    for done in range(0, count, each):
        inside, outside = rng.permutation(mix.rows_in), rng.permutation(mix.rows_out)
        yield [
            mix.take(inside[number * sizes[0] :][: sizes[0]], outside[number * sizes[1] :][: sizes[1]])
            for number in range(min(each, count - done))
        ]


def vary_react_share(job: Job) -> Measurements:
    """Run ReAct at every share: alone, and with DLR on raw and on clipped features.

    As ReAct requires, the clip is computed from the fitted in-distribution rows.
    """
    if job.reacted is None:
        return
    for mix, rng, new in job.repeats():
        if not new:
            continue
        seen, unseen = mix.halves(rng)
        yield from _reacted(job, mix, mix, "fitted")
        yield from _reacted(job, seen, unseen, "unseen")
        for measured in compare(mix, {"DLR": direct}, job.setting.components, rng):
            yield None, measured


def _reacted(job: Job, fitted: Mix, scored: Mix, kind: str) -> Measurements:
    """Run ReAct at every share: fit it to `fitted` and measure it on `scored`."""
    assert job.reacted is not None
    components = job.setting.components
    raw = SharedFeatures(fitted.features, components)
    for share in job.case.values:
        clip = react_clip(fitted.features[: fitted.rows_in], share=share)
        clipped = SharedFeatures(np.minimum(fitted.features, clip), components)
        pairs = {"raw": (raw, scored.features), "clipped": (clipped, np.minimum(scored.features, clip))}
        for base, scores in job.reacted(fitted.features, clip).items():
            for name, (learned, rows) in pairs.items():
                trued = direct(learned, scores)(rows)
                yield share, ((base, f"ReAct + DLR, {name}", kind), metrics(*scored.split(trued)))
            if kind == "fitted":
                yield share, ((base, "ReAct", kind), metrics(*fitted.split(scores)))


def detect_outliers(job: Job) -> Measurements:
    """Run the traditional detectors: fitted to the whole mix, and fitted to one half and scored on the other half."""
    for mix, split, new in job.repeats():
        if not new:
            continue
        seen, unseen = mix.halves(split)
        whole, half = (principal_coordinates(part.features, job.setting.components) for part in (mix, seen))
        for name in ("isolation-forest", "lof", job.setting.mixture):
            score, rng = CLASSICAL[name], np.random.default_rng(SEED)
            yield None, ((name, "none", "fitted"), metrics(*mix.split(score(whole(mix.features), rng))))
            scores = score(half(seen.features), rng, unseen=half(unseen.features))
            yield None, ((name, "none", "unseen"), metrics(*unseen.split(scores)))


def decide_with_reference(job: Job) -> Measurements:
    """Decide the remaining rows by every method, all with the same reference."""
    for rest, reference, _ in _with_reference(job):
        yield from _decide(job, None, rest, reference)


def drop_classes(job: Job) -> Measurements:
    """Decide test rows of some classes with a reference of all classes."""
    for rest, reference, rng in _with_reference(job):
        classes = rng.permutation(np.unique(rest.classes()))
        left = np.isin(rest.classes(), classes[: max(1, round(CLASSES_LEFT * len(classes)))])
        part = rest.take(np.flatnonzero(left), np.arange(rest.rows_out))
        yield from _decide(job, None, part, reference)


def draw_class_shares(job: Job) -> Measurements:
    """Decide test rows with class shares drawn from a Dirichlet distribution."""
    for rest, reference, rng in _with_reference(job):
        _, number, counts = np.unique(rest.classes(), return_inverse=True, return_counts=True)
        shares = rng.dirichlet(np.full(len(counts), CONCENTRATION))
        # Weighted sampling without replacement (Efraimidis & Spirakis 2006): take the smallest exponential times.
        with np.errstate(divide="ignore"):
            times = rng.exponential(size=rest.rows_in) / (shares / counts)[number]
        drawn = np.argsort(times)[: max(1, round(CLASSES_LEFT * rest.rows_in))]
        yield from _decide(job, None, rest.take(drawn, np.arange(rest.rows_out)), reference)


def _with_reference(job: Job) -> Iterator[tuple[Mix, Reference, np.random.Generator]]:
    """Yield the test rows, the reference and the random generator of each repeat."""
    for mix, rng, _ in job.repeats():
        learning, calibration, rest = mix.with_reference(rng, REFERENCE_SHARE)
        yield rest, Reference(learning, calibration), rng


def _decide(job: Job, value: Value, mix: Mix, reference: Reference) -> Measurements:
    methods, components = job.methods(), job.setting.components
    for measurement in compare_with_reference(mix, reference, job.case, methods, components, job.head):
        yield value, measurement


def _streamed(features: Matrix, scores: Floats, order: Index, batch: int) -> tuple[Floats, Floats]:
    """Return every row's scores after and before its batch is learned. In the first batch, scores before are NaN."""
    detector, after, before = Detector("given"), np.empty(len(order)), np.full(len(order), np.nan)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        part = Outputs(features[rows], scores=scores[rows])
        if start:
            before[rows] = detector.score(part)
        detector.learn(part)
        after[rows] = detector.score(part)
    return after, before


PROTOCOLS: dict[str, Callable[[Job], Measurements]] = {
    "compare": compare_methods,
    "decide with a reference": decide_with_reference,
    "detect outliers": detect_outliers,
    "draw class shares": draw_class_shares,
    "drop classes": drop_classes,
    "stream": stream,
    "vary ReAct's share": vary_react_share,
    "vary kept share": vary_kept_share,
    "vary rate": vary_rate,
    "vary sample size": vary_sample_size,
}
