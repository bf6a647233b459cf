"""The experiments: how each case is run on one mix. An experiment yields (value, measured) and knows no files.

`value` is that of what the case varies, or None. Repeats differ in what is drawn: rows of the other set where it has
more than are used, halves of the mix, the order of a stream, the seed of a classical detector.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..._check import Floats, Matrix
from ...detector import Detector
from ...fits import fit_direct
from ...outputs import Outputs
from ...shaping import react_clip
from . import small_samples
from .cases import IN_PER_OUT, PENALTY, REPEATS, SEED, Case
from .classical import CLASSICAL
from .mixes import (
    Frame,
    Index,
    Measured,
    Method,
    Mix,
    compare,
    direct,
    kept_rows,
    metrics,
    robust,
    robust_as_authors,
    trusted,
    trusted_by_authors,
)
from .settings import Setting

RATE_ROWS = 5000
SAMPLED_ROWS = 100_000  # In-distribution rows of all samples of one size together.

Value = float | None
Found = Iterator[tuple[Value, Measured]]


@dataclass(frozen=True, eq=False)
class Job:
    """One mix under one case; `reacted` gives the base scores of features that ReAct clips at a value."""

    setting: Setting
    case: Case
    mix: Mix
    conventions: str = "truing"
    reacted: Callable[[Matrix, float], dict[str, Floats]] | None = None

    @property
    def robust(self) -> Method:
        """RLR by these conventions."""
        return robust_as_authors if self.conventions == "authors" else robust

    def repeats(self) -> Iterator[tuple[Mix, np.random.Generator, bool]]:
        """Yield the mix of each repeat, its randomness, and whether the mix is a new one."""
        used = self.mix.rows_in // IN_PER_OUT if self.setting.draws else self.mix.rows_out
        for repeat in range(REPEATS):
            rng = np.random.default_rng([SEED, repeat])
            if used < self.mix.rows_out:
                yield self.mix.drawn(rng, self.mix.rows_in, used), rng, True
            else:
                yield self.mix, rng, repeat == 0


def table(job: Job) -> Found:
    """Compare the base scores with DLR and RLR; GradNorm stays as it is."""
    yield from _compared(job, {"DLR": direct, "RLR": job.robust})


def only_direct(job: Job) -> Found:
    """Compare the base scores with DLR."""
    yield from _compared(job, {"DLR": direct})


def intercept(job: Job) -> Found:
    """Compare the base scores with DLR and RLR without an intercept, as the paper prints them.

    On centred components RLR without one has no answer: any fit that stays below all scores is as good as another.
    """
    methods: dict[str, Method] = {"DLR, no intercept": partial(direct, intercept=False)}
    if job.setting.components is None:
        methods["RLR, no intercept"] = partial(robust, intercept=False)
    yield from _compared(job, methods)


def online(job: Job) -> Found:
    """Run streams: every batch is learnt and then scored, and beside it scored before it is learnt."""
    for mix, rng, new in job.repeats():
        order = rng.permutation(len(mix.features))
        for base, scores in mix.scores.items():
            if new:
                yield None, ((base, "none", "fitted"), metrics(*mix.split(scores)))
            if new and job.case.name == "batch-size":
                trued = direct(Frame(mix.features), scores)(mix.features)
                yield None, ((base, "DLR", "fitted"), metrics(*mix.split(trued)))
            for batch in job.case.values:
                after, before = _streamed(mix.features, scores, order, int(batch))
                yield batch, ((base, "Online DLR", "fitted"), metrics(*mix.split(after)))
                if batch < len(order):
                    later = [part[~np.isnan(part)] for part in mix.split(before)]
                    yield batch, ((base, "Online DLR", "unseen"), metrics(*later))


def kept_share(job: Job) -> Found:
    """Run RLR at every kept share; rows are ordered once."""
    by_authors = job.conventions == "authors"
    for mix, rng, new in job.repeats():
        seen, unseen = mix.halves(rng)
        for fitted, scored, name in ((mix, mix, "fitted"), (seen, unseen, "unseen")):
            if name == "fitted" and not new:
                continue
            frame = Frame(fitted.features, job.setting.components)
            known, asked = frame.coordinates, frame.place(scored.features)
            if by_authors:
                known, asked = fitted.features, scored.features
            for base, scores in fitted.scores.items():
                order = trusted_by_authors(frame, scores) if by_authors else trusted(frame, scores, PENALTY, True)
                for keep in job.case.values:
                    kept = order[: kept_rows(keep, len(order))]
                    trued = fit_direct(known[kept], scores[kept]).predict(asked)
                    yield keep, ((base, "RLR", name), metrics(*scored.split(trued)))
                if name == "fitted":
                    yield None, ((base, "none", name), metrics(*mix.split(scores)))


def rate(job: Job) -> Found:
    """Run DLR on as many rows in all, at every share of in-distribution ones."""
    mix = job.mix
    total = min(RATE_ROWS, int(mix.rows_out / (1 - job.case.values[0])))
    for repeat in range(REPEATS):
        for share in job.case.values:
            rng = np.random.default_rng([SEED, repeat])
            part = mix.drawn(rng, round(share * total), total - round(share * total))
            for measured in compare(part, {"DLR": direct}, job.setting.components, rng):
                yield share, measured


def sample_number(job: Job) -> Found:
    """Run DLR on samples of every size; the unseen rows are those of the next sample."""
    for size in map(int, job.case.values):
        if job.mix.rows_in >= size and job.mix.rows_out >= size // IN_PER_OUT:
            yield from _sampled(job.mix, size)


def _sampled(mix: Mix, size: int) -> Found:
    sizes, rows = (size, size // IN_PER_OUT), (mix.rows_in, mix.rows_out)
    rng = np.random.default_rng([SEED, size])
    count = 1 if sizes == rows else SAMPLED_ROWS // size  # Of all rows there is one sample.
    for inside, outside in small_samples.blocks(rows, sizes, count, rng):
        chosen = np.hstack([inside, mix.rows_in + outside])
        features = mix.features[chosen].astype(np.float64)
        scores = np.stack([scores[chosen] for scores in mix.scores.values()], axis=2)
        fits = small_samples.fits(features, scores)
        found = {("none", "fitted"): scores, ("DLR", "fitted"): small_samples.predictions(*fits, features)}
        if len(chosen) > 1:  # Samples of one shuffle share no row.
            found["DLR", "unseen"] = small_samples.predictions(*fits, np.roll(features, -1, axis=0))
        for (method, scored), values in found.items():
            for number, base in enumerate(mix.scores):
                parts = values[:, :size, number], values[:, size:, number]
                for fpr95, auroc in zip(small_samples.fpr95(*parts), small_samples.auroc(*parts), strict=True):
                    metrics = {"rows_in": sizes[0], "rows_out": sizes[1], "fpr95": float(fpr95), "auroc": float(auroc)}
                    yield float(size), ((base, method, scored), metrics)


def react(job: Job) -> Found:
    """Run ReAct at every share, alone and with DLR on raw and on clipped features.

    The clip is that of the in-distribution rows that are fitted: their labels are known to it, as ReAct wants.
    """
    if job.reacted is None:
        return
    for mix, rng, new in job.repeats():
        if not new:
            continue
        seen, unseen = mix.halves(rng)
        for fitted, scored, kind in ((mix, mix, "fitted"), (seen, unseen, "unseen")):
            raw = Frame(fitted.features, job.setting.components)
            for share in job.case.values:
                clip = react_clip(fitted.features[: fitted.rows_in], share)
                known, asked = np.minimum(fitted.features, clip), np.minimum(scored.features, clip)
                scores, found = job.reacted(fitted.features, clip), {"raw": (raw, scored.features)}
                found["clipped"] = Frame(known, job.setting.components), asked
                for base in scores:
                    for name, (frame, features) in found.items():
                        trued = direct(frame, scores[base])(features)
                        yield share, ((base, f"ReAct + DLR, {name}", kind), metrics(*scored.split(trued)))
                    if kind == "fitted":
                        yield share, ((base, "ReAct", kind), metrics(*mix.split(scores[base])))
        for measured in compare(mix, {"DLR": direct}, job.setting.components, rng):
            yield None, measured


def classical(job: Job) -> Found:
    """Run the traditional detectors, fitted on the mix itself and, beside it, on one half for the other."""
    for mix, split, new in job.repeats():
        if not new:
            continue
        seen, unseen = mix.halves(split)
        whole, half = (Frame(part.features, job.setting.components) for part in (mix, seen))
        for name in ("isolation-forest", "lof", job.setting.mixture):
            score, rng = CLASSICAL[name], np.random.default_rng(SEED)
            yield None, ((name, "none", "fitted"), metrics(*mix.split(score(whole.coordinates, rng))))
            scores = score(half.coordinates, rng, unseen=half.place(unseen.features))
            yield None, ((name, "none", "unseen"), metrics(*unseen.split(scores)))


def _compared(job: Job, methods: dict[str, Method]) -> Found:
    for mix, rng, new in job.repeats():
        trued = Mix(
            mix.features, {base: scores for base, scores in mix.scores.items() if base != "gradnorm"}, mix.rows_in
        )
        for measured in compare(trued, methods, job.setting.components, rng, fitted=new):
            yield None, measured
        if new and "gradnorm" in mix.scores:
            yield None, (("gradnorm", "none", "fitted"), metrics(*mix.split(mix.scores["gradnorm"])))


def _streamed(features: Matrix, scores: Floats, order: Index, batch: int) -> tuple[Floats, Floats]:
    """Return every row's score after its batch was learnt, and before; not a number in the first batch."""
    detector, after, before = Detector(score="given"), np.empty(len(order)), np.full(len(order), np.nan)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        part = Outputs(features[rows], scores=scores[rows])
        if start:
            before[rows] = detector.score(part)
        detector.learn(part)
        after[rows] = detector.score(part)
    return after, before


EXPERIMENTS: dict[str, Callable[[Job], Found]] = {
    "table": table,
    "classical": classical,
    "online": online,
    "batch-size": online,
    "kept-share": kept_share,
    "rate": rate,
    "samples": sample_number,
    "combinations": only_direct,
    "noise": only_direct,
    "react": react,
    "intercept": intercept,
}
