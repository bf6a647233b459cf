"""Learning-rate schedules: the share of the highest rate after a share of the steps."""

import math
from collections.abc import Callable

_WARM_UP = 0.3


def cosine(done: float) -> float:
    """Return a share that falls from 1 to 0 along half a cosine.

    >>> [round(cosine(done), 2) for done in (0, 0.5, 1)]
    [1.0, 0.5, 0.0]
    """
    return 0.5 * (1 + math.cos(math.pi * done))


def one_cycle(done: float) -> float:
    """Return a share that rises linearly from zero to one until three tenths, then falls along a cosine.

    >>> [round(one_cycle(done), 2) for done in (0, 0.15, 0.3, 1)]
    [0.0, 0.5, 1.0, 0.0]
    """
    return done / _WARM_UP if done < _WARM_UP else cosine((done - _WARM_UP) / (1 - _WARM_UP))


SCHEDULES: dict[str, Callable[[float], float]] = {"cosine": cosine, "one-cycle": one_cycle}
