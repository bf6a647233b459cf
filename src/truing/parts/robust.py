"""RLR of rows in parts: `fit_robust` of a table that does not fit in memory.

1. A pass for the moments of the unit rows, and a sample of the rows. Few rows are all in it, and fitted in memory.
2. Passes of the robust regression (`huber`), which find the median scores as well: what counts as a tie.
3. The residual of the last row kept, and the passes to find it (`selection`), the first being the last one of 2.
4. A pass for the moments of the rows kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._check import Floats, as_count, as_number, as_truth
from ..fits import SharedFeatures, in_tie_units, kept_rows, of_features, tie_width
from ..huber_regression import middle, scaled_penalty
from ..huber_regression.design import Design, Units, whitening_map
from ..io.npz import Arrays
from ..least_squares import LinearFit
from ..moments import Moments, PrincipalComponents
from ..rows import Rows
from .evaluation import Evaluation
from .huber import Problem, capacity_of, solve_in_passes
from .passes import Passes, ScoredBlock
from .selection import Search, Selected, advance, guess_from, search_all, summaries_of
from .summaries import (
    LAST_PLACE,
    Reader,
    Summary,
    arrays_of,
    combined_samples,
    joined,
    moments_of,
    place_of_share,
    places_of,
    split,
    thinned,
)
from .unit_rows import GramOfRows, LargestEntries, MomentsOfRows, Residuals, UnitRows

_SAMPLED_SHARE = 0.9  # Of the capacity: a sample of about that many rows does not exceed it.
_TINY_SQUARE = 1e-200  # A mean square below this may be what underflow has left.
_TINY_ENTRY = 1e-100
_MAX_EXPONENT = 1000
_WELL_CONDITIONED = 1e-8  # Ratio of variances from which on those of coordinates follow from the rows' moments.


def fit_robust_parts(
    passes: Passes, *, keep: float = 0.8, penalty: float = 1e-5, intercept: bool = True, components: int | None = None
) -> LinearFit:
    """Return `truing.fit_robust` of the rows of all parts: the same fit but for rounding.

    Parameters
    ----------
    passes
        The parts, whose rows must be finite. Nothing is kept that grows with them.
    keep
        Share of the rows that the fit is of.
    penalty
        λ of the robust regression.
    intercept
        Whether the fit has one.
    components
        Principal components that the fit is confined to: of all rows.
    """
    reader = Reader(passes, "robust")
    count = kept_rows(keep, reader.rows) if reader.rows else 0
    if not reader.rows:
        raise ValueError("the parts must have at least one row, got none")
    penalty, intercept = as_number(penalty, "penalty", above=0.0), as_truth(intercept, "intercept")
    survey = _surveyed(reader, components)
    if len(survey.scores) == reader.rows:
        table = SharedFeatures(survey.features, components)
        return table.fit_robust_sweep(survey.scores, [keep], penalty=penalty, intercept=intercept)[0]
    if count == reader.rows:
        return survey.moments.solve(intercept, components)
    residuals, selected = _trusted(reader, survey, count, penalty, intercept)
    principal = None if components is None else survey.moments._principal_components(components)
    return _fit_of_kept(reader, residuals, selected, count, principal, intercept)


@dataclass(frozen=True, eq=False)
class Survey:
    """What the first pass finds: moments, a sample of rows, the range of all scores."""

    moments: Moments
    unit_moments: Moments
    features: Floats
    scores: Floats
    lowest: float
    highest: float
    components: int | None


def _surveyed(reader: Reader, components: int | None) -> Survey:
    if components is not None:
        as_count(components, "components", at_most=reader.rows)
    found = reader.read({"survey": FirstPass(reader.rows)})["survey"]
    if components is not None:
        as_count(components, "components", at_most=min(reader.rows, found["sample.features"].shape[1]))
    return Survey(
        moments_of(split(found, "moments.")),
        moments_of(split(found, "unit.")),
        found["sample.features"],
        found["sample.scores"],
        float(found["lowest"]),
        float(found["highest"]),
        components,
    )


@dataclass(frozen=True, eq=False)
class FirstPass:
    """The moments of the rows and of the unit rows, a sample of the rows, and the range of the scores."""

    total: int

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return those of a block."""
        capacity = capacity_of(block.features.shape[1])
        last = LAST_PLACE if self.total <= capacity else place_of_share(_SAMPLED_SHARE * capacity / self.total)
        places = places_of(first, len(block.scores))
        chosen = np.flatnonzero(places <= np.uint64(last))
        features = np.asarray(block.features[chosen], dtype=np.float64)
        sample = {"features": features, "scores": block.scores[chosen], "places": places[chosen]}
        moments = Moments._of_rows(Rows(block.features), block.scores)
        unit_moments = Moments._of_rows(Rows.unit(block.features), block.scores)
        return {
            **joined(arrays_of(moments), "moments."),
            **joined(arrays_of(unit_moments), "unit."),
            **joined(thinned(sample, last, capacity), "sample."),
            "lowest": block.scores.min(),
            "highest": block.scores.max(),
        }

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return those of both."""
        capacity = capacity_of(one["sample.features"].shape[1])
        sample = combined_samples(split(one, "sample."), split(other, "sample."), capacity)
        sums: Arrays = {}
        for prefix in ("moments.", "unit."):
            both = moments_of(split(one, prefix)) + moments_of(split(other, prefix))
            sums |= joined(arrays_of(both), prefix)
        lowest, highest = np.minimum(one["lowest"], other["lowest"]), np.maximum(one["highest"], other["highest"])
        return {**sums, **joined(sample, "sample."), "lowest": lowest, "highest": highest}


def _trusted(
    reader: Reader, survey: Survey, count: int, penalty: float, intercept: bool
) -> tuple["SizeThenScore", Selected]:
    """Return by what rows are trusted, and the keys of the last of the `count` most trusted ones."""
    problem = _problem(reader, survey, penalty, intercept)
    companions = _Companions(reader, survey, problem, count)
    try:
        residuals = solve_in_passes(problem, companions.read)
    except ArithmeticError as error:
        raise ArithmeticError(
            f"RLR cannot tell which rows to trust, try a larger penalty or fit_direct: {error}"
        ) from None
    return companions.last_kept(residuals)


def _problem(reader: Reader, survey: Survey, penalty: float, intercept: bool) -> Problem:
    """Return the robust regression of the unit rows; a pass more for tiny columns, or those all but collinear."""
    rows, moments = _regression_rows(reader, survey)
    centre = middle(survey.scores) if intercept else 0.0
    largest = max(survey.highest - centre, centre - survey.lowest) if intercept else max(survey.highest, -survey.lowest)
    exponent = int(np.frexp(largest)[1])
    mean = moments.mean[:-1]

    def gram_of(whitening: Floats) -> Floats:
        gram: Floats = reader.read({"gram": GramOfRows(rows, mean, whitening)})["gram"]["gram"] / reader.rows
        return gram

    whitening = whitening_map(moments, gram_of, intercept)
    level = float(np.ldexp(moments.mean[-1] - centre, -exponent))
    cross = np.append(np.ldexp(moments.comoment[-1, :-1] / reader.rows, -exponent), level)
    exponents = np.zeros(len(mean), dtype=np.intc) if rows.exponents is None else rows.exponents
    units = Units(centre, exponent, exponents, intercept)
    design = Design(rows.of(survey.features).about(mean), mean, whitening, units, whitening.T @ cross)
    target = np.ldexp(survey.scores - centre, -exponent)
    return Problem(design, target, rows, reader.rows, scaled_penalty(penalty, exponent))


def _regression_rows(reader: Reader, survey: Survey) -> tuple[UnitRows, Moments]:
    """Return how rows enter the regression, and their moments."""
    moments = survey.unit_moments
    if survey.components is not None:
        principal = moments._principal_components(survey.components)
        if not principal.basis.size:  # Where all rows are one, nothing tells them apart but their scores.
            principal = PrincipalComponents(principal.origin, np.zeros((len(principal.origin), 1)))
        rows = UnitRows(principal)
        coordinates = moments._projected(principal)
        variances = np.diagonal(coordinates.comoment)[:-1]
        if variances.min() >= _WELL_CONDITIONED * variances.max():
            return rows, coordinates
        return rows, _moments_read(reader, rows)
    square = np.diagonal(moments.comoment)[:-1] / moments.rows + moments.mean[:-1] ** 2
    if square.min() >= _TINY_SQUARE:
        return UnitRows(), moments
    largest = reader.read({"largest": LargestEntries(UnitRows())})["largest"]["largest"]
    exponents = np.where(largest < _TINY_ENTRY, np.maximum(np.frexp(largest)[1], -_MAX_EXPONENT), 0).astype(np.intc)
    if not exponents.any():
        return UnitRows(), moments
    scaled = UnitRows(exponents=exponents)
    return scaled, _moments_read(reader, scaled)


def _moments_read(reader: Reader, rows: UnitRows) -> Moments:
    return moments_of(reader.read({"moments": MomentsOfRows(rows)})["moments"])


class _Companions:
    """Searches that go on in the passes of the robust regression: the median scores, then the last row kept.

    That row is searched among the residuals of every fit evaluated, once it is known what a tie is; the search by those
    of the fit that turns out to be the last is the one that counts.
    """

    def __init__(self, reader: Reader, survey: Survey, problem: Problem, count: int) -> None:
        self._reader = reader
        self._problem = problem
        self._sample = survey
        self._count = count
        self._exponent = -int(np.frexp(max(survey.highest, -survey.lowest))[1])
        self._searches = {
            **_median_searches("score", ScaledScore(self._exponent), self._scaled_sample()),
            **_median_searches("size", ScaledScore(self._exponent, takes_size=True), np.abs(self._scaled_sample())),
        }
        self._by: SizeThenScore | None = None
        self._last: Search | None = None

    def read(self, summaries: Mapping[str, Summary]) -> dict[str, Arrays]:
        """Return the summaries, from a pass that goes on with the searches too."""
        self._search_deviations()
        searches = dict(self._searches)
        evaluation = summaries.get("evaluation")
        if isinstance(evaluation, Evaluation) and self._are_ties_known:
            searches["last"] = self._search(evaluation.band.residuals)
        results = self._reader.read({**summaries, **summaries_of(searches)})
        advance(searches, results)
        return results

    def last_kept(self, residuals: Residuals) -> tuple["SizeThenScore", Selected]:
        """Return by what rows are trusted at a fit, and the keys of the last row kept."""
        search_all(self._reader, self._searches)
        self._search_deviations()
        search_all(self._reader, self._searches)
        if self._by is None or self._last is None or self._by.residuals is not residuals:
            self._last = self._search(residuals)
        search_all(self._reader, {"last": self._last})
        assert self._by is not None
        assert self._last.found is not None
        return self._by, self._last.found

    @property
    def _are_ties_known(self) -> bool:
        return "deviation-low" in self._searches and all(search.found for search in self._searches.values())

    def _search_deviations(self) -> None:
        """Search the median deviation once the median score is known; no deviation at all is found at once."""
        if "deviation-low" in self._searches or not all(search.found for search in self._searches.values()):
            return
        median = self._median("score")
        key = ScaledScore(self._exponent, takes_size=True, about=median)
        sample = np.abs(self._scaled_sample() - median)
        self._searches |= _median_searches("deviation", key, np.where(sample > 0, sample, np.nan))

    def _search(self, residuals: Residuals) -> Search:
        width = tie_width(self._median("deviation"), self._median("size"))
        self._by = SizeThenScore(residuals, self._exponent, width)
        share = self._count / self._reader.rows
        sample = ScoredBlock(self._sample.features, self._sample.scores)
        self._last = Search(self._by, lambda n: self._count - 1, guess=guess_from(self._by.values(sample), share))
        return self._last

    def _median(self, name: str) -> float:
        """Return the mean of the two middle values, or zero where there is none."""
        low, high = self._searches[f"{name}-low"].found, self._searches[f"{name}-high"].found
        assert low is not None
        assert high is not None
        return float(np.mean([low.value, high.value])) if low.equal else 0.0

    def _scaled_sample(self) -> Floats:
        scaled: Floats = np.ldexp(self._sample.scores, self._exponent)
        return scaled


def _median_searches(name: str, key: "ScaledScore", sample: Floats) -> dict[str, Search]:
    """Return the searches for the two middle values."""
    guess = guess_from(sample, 0.5)
    return {
        f"{name}-low": Search(key, lambda n: (n - 1) // 2, guess=guess),
        f"{name}-high": Search(key, lambda n: n // 2, guess=guess),
    }


@dataclass(frozen=True, eq=False)
class ScaledScore:
    """Orders rows by score · 2^exponent, or by its size, or by the size of its deviation from a score if not zero."""

    exponent: int
    takes_size: bool = False
    about: float | None = None

    def values(self, block: ScoredBlock) -> Floats:
        """Return the number of each row."""
        scaled = np.ldexp(block.scores, self.exponent)
        if self.about is not None:
            deviation = np.abs(scaled - self.about)
            return np.where(deviation > 0, deviation, np.nan)
        return np.abs(scaled) if self.takes_size else scaled

    def tie_breakers(self, block: ScoredBlock, rows: NDArray[np.intp]) -> Floats:
        """Return none: equal numbers are one."""
        return np.empty((len(rows), 0))


@dataclass(frozen=True, eq=False)
class SizeThenScore:
    """Orders rows as `truing.trust_order`: by |residual| in tie units, then the higher score, then smaller features."""

    residuals: Residuals
    exponent: int
    tie_width: float

    def values(self, block: ScoredBlock) -> Floats:
        """Return the size of each row's residual in tie units."""
        size = np.abs(np.ldexp(self.residuals.of(block), self.residuals.score_exponent))
        return in_tie_units(size, self.exponent, self.tie_width)

    def tie_breakers(self, block: ScoredBlock, rows: NDArray[np.intp]) -> Floats:
        """Return the scores, higher ones first, and the features of some rows."""
        return np.column_stack((-block.scores[rows], np.asarray(block.features[rows], dtype=np.float64)))


@dataclass(frozen=True, eq=False)
class MomentsOfKept:
    """The moments of the rows before a given one in the order of trust: of their features, or principal coordinates."""

    by: SizeThenScore
    keys: Floats
    principal: PrincipalComponents | None

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return those of a block; nothing where no row is kept."""
        values = self.by.values(block)
        kept = values < self.keys[0]
        tied = np.flatnonzero(values == self.keys[0])
        kept[tied] = _are_before(self.by.tie_breakers(block, tied), self.keys[1:])
        if not kept.any():
            return {}
        rows = Rows(block.features[kept])
        if self.principal is not None:
            rows = rows.about(self.principal.origin).onto(self.principal.basis)
        return arrays_of(Moments._of_rows(rows, block.scores[kept]))

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return their sum."""
        return arrays_of(moments_of(one) + moments_of(other))


def _are_before(keys: Floats, own: Floats) -> NDArray[np.bool_]:
    """Return which rows have keys (m, t) before those of one row, in the order of words in a dictionary."""
    differ = keys != own
    first = np.argmax(differ, axis=1)
    rows = np.arange(len(keys))
    before: NDArray[np.bool_] = differ[rows, first] & (keys[rows, first] < own[first])
    return before


def _fit_of_kept(
    reader: Reader,
    by: SizeThenScore,
    last: Selected,
    count: int,
    principal: PrincipalComponents | None,
    intercept: bool,
) -> LinearFit:
    """Return the least-squares fit of the rows before the last one kept, and as many like it as make the count."""
    score, features = -last.keys[1], last.keys[2:]
    row = features if principal is None else (features - principal.origin) @ principal.basis
    moments = _moments_of_copies(np.append(row, score), count - last.before)
    found = reader.read({"kept": MomentsOfKept(by, last.keys, principal)})["kept"]
    if found:
        moments = moments_of(found) + moments
    fit = moments.solve(intercept)
    return fit if principal is None else of_features(fit, principal)


def _moments_of_copies(row: Floats, count: int) -> Moments:
    """Return the moments of a row [features, score] that is there several times."""
    size = len(row)
    none = np.zeros((size, size))
    return Moments(float(count), row, none, np.zeros(size), none, np.zeros(size))
