"""The Huber loss of rows that fit in memory, made least by Newton steps through narrower and narrower losses.

At a small penalty few rows are held by the quadratic part, and Newton from afar goes astray; from the minimum at
four times the width it does not (Madsen & Nielsen 1993).
"""

import numpy as np
from scipy.linalg import lapack

from ._check import Floats

# Rows for each unknown that a width must hold for its Hessian to be sound.
HELD = 3

_NARROWING = 4.0  # Each width of the loss over the next, on the way down to the penalty.
_WATCHED = 16  # Rows for each unknown that Newton works on, at least,
_REACH = 6.0  # and every row within so many widths.
_RIDGE = 1e-13  # Share of its trace that keeps a Hessian of too few rows solvable.
_SETTLED = 1e-13  # Slope, as a share of the pulls it sums, at which Newton has arrived.
_FLAT = 0.5  # Slope along a step, as a share of that at its start, which ends the step.
_ENDLESS = 1e3  # Times their own size that a step moves the residuals when too few rows hold it back.
_EPS = float(np.finfo(np.float64).eps)


def narrow(
    part: Floats, residual: Floats, quadratic: Floats, linear: Floats, penalty: float, *, first: int, last: int
) -> Floats:
    """Return x least in Σ huber(rᵢ − wᵢᵀx) + xᵀ quadratic x/2 − linearᵀx, by way of wider losses.

    A loss holds the rows with |rᵢ| below its width. The widest holds `first` rows; one that holds fewer than
    `last` ends the descent to the penalty, and so does a problem that too few rows leave unbounded.
    """
    x, width, wider, reach = np.zeros(len(linear)), penalty, 0.0, 1.0
    if not quadratic.any():
        width = max(width, _smallest(np.abs(residual), min(max(first, HELD * len(x)), len(residual))))
    while True:
        size, limit = np.abs(residual), _REACH * width
        if np.count_nonzero(size <= limit) < _WATCHED * len(x):
            limit = _smallest(size, _WATCHED * len(x))
        watched = size <= reach * limit
        near, flat = part, linear * (width / penalty) - quadratic @ x
        if np.count_nonzero(watched) > len(watched) / 2:  # A copy of most rows saves nothing.
            watched[:] = True
        else:  # The other rows pull by the whole width, as those outside this part do.
            near, flat = part.compress(watched, axis=0), flat + np.where(watched, 0.0, np.sign(residual) * width) @ part
        step = _newton(near, residual[watched], quadratic, flat, width, wider, rough=width > penalty)
        moved = residual if step is None else residual - part @ step
        if step is None or np.any(~watched & ((np.abs(moved) < width) | (moved * residual < 0))):
            if watched.all():
                return x
            reach *= 4
            continue
        x, residual, reach = x + step, moved, 1.0
        if width == penalty or np.count_nonzero(np.abs(residual) < width) < last:
            return x
        width, wider = max(penalty, width / _NARROWING), width


def _newton(
    part: Floats, residual: Floats, quadratic: Floats, linear: Floats, width: float, wider: float, *, rough: bool
) -> Floats | None:
    """Return x least at one width, or after the first whole step if `rough`; None where nothing bounds it.

    As the width falls the minimum moves along a line for as long as the same rows are held. Where few are, a step
    with those that were held at the `wider` one comes first, if it leads down.
    """
    x, length, held = np.zeros(len(linear)), 0.0, np.abs(residual) < wider
    if len(x) <= np.count_nonzero(held) < 2 * len(x):
        pull = np.where(held, residual, np.clip(residual, -width, width))
        step = _step(part.compress(held, axis=0), quadratic, linear + pull @ part)
        moved = residual - part @ step
        if loss(moved, width) + step @ (quadratic @ step / 2 - linear) < loss(residual, width):
            x, residual = step, moved
    for attempt in range(50 + 4 * len(x)):
        pull, flat = np.clip(residual, -width, width), linear - quadratic @ x
        slope = flat + pull @ part
        arrived = np.abs(slope).sum() <= _SETTLED * (np.abs(pull).sum() + np.abs(linear).sum())
        if arrived or (attempt > 0 and (length == 0 or (rough and length == 1))):
            break
        step = _step(part.compress(np.abs(residual) < width, axis=0), quadratic, slope)
        shift = part @ step
        length = _search(residual, shift, width, float(step @ flat), float(step @ quadratic @ step))
        if length == np.inf:
            return None
        x, residual = x + length * step, residual - length * shift
    return x


def _step(held: Floats, quadratic: Floats, slope: Floats) -> Floats:
    """Return Newton's step for the rows that are held, and the slope itself, downhill too, if rounding forbids it."""
    hessian = quadratic + held.T @ held
    hessian.flat[:: len(slope) + 1] += _RIDGE * (np.trace(hessian) + len(slope))
    return np.asarray(lapack.dposv(hessian, slope)[1])


def _search(residual: Floats, shift: Floats, width: float, linear: float, quadratic: float) -> float:
    """Return the length at which a step's falling slope is small: 0 if uphill, infinite if never."""
    start = linear + float(np.clip(residual, -width, width) @ shift)
    if start <= 0:
        return 0.0
    size, moves = float(np.linalg.norm(residual)) + width, float(np.linalg.norm(shift))
    low, high, t = 0.0, np.inf, min(1.0, 10 * size / moves) if moves > 0 else 1.0
    up, down = start, -np.inf
    while low * moves < _ENDLESS * size and (moves > 0 or quadratic > 0):
        slope = linear - t * quadratic + float(np.clip(residual - t * shift, -width, width) @ shift)
        if abs(slope) <= _FLAT * start or high - low < _EPS * high:
            return t
        # The secant, with the slope at the end that stays halved: else one end may never move (Dowell & Jarratt 1971).
        low, up, high, down = (t, slope, high, down / 2) if slope > 0 else (low, up / 2, t, slope)
        t = low + (high - low) * up / (up - down) if high < np.inf else 4 * low
    return np.inf


def loss(residual: Floats, width: float) -> float:
    """Return Σ huber(rᵢ)."""
    held = np.minimum(np.abs(residual), width)
    return float(held @ (np.abs(residual) - held / 2))


def _smallest(values: Floats, count: int) -> float:
    """Return the value that `count` values do not exceed, infinity where there are fewer."""
    return float(np.partition(values, count - 1)[count - 1]) if count <= len(values) else np.inf
