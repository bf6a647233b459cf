"""What the app asks of whatever answers its requests: the engine of a state, or a read-only replica of one."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from numpy.typing import ArrayLike

from ..contrast import RowSample
from ..decisions.thresholds import Rate
from ..detector import Detector
from ..outputs import Outputs
from ..regression.moments import Moments
from .requests import Answer, Facts, Request, SnapshotFacts


class Serving(Protocol):
    """Answers requests; every call but `facts` and `close` is done when its future is, and what it changed durable.

    A future has a ValueError or a TypeError for bad input, and `Unavailable` where nothing is taken now.
    """

    @property
    def detector(self) -> Detector:
        """The detector as published."""

    @property
    def rate(self) -> Rate:
        """The error rate of decisions."""

    def submit(self, request: Request) -> Future[Answer]:
        """Score rows, and learn them if wanted."""

    def calibrate(self, reference: Outputs, groups: ArrayLike | None = None) -> Future[None]:
        """Take known in-distribution rows, and the label of each row's group if rows come in groups."""

    def choose_rate(self, rate: Rate) -> Future[None]:
        """Decide at another error rate."""

    def merge(self, moments: Moments | RowSample) -> Future[None]:
        """Add the learned rows of another state."""

    def snapshot(self) -> Future[SnapshotFacts]:
        """Take a snapshot."""

    def reset(self) -> Future[None]:
        """Forget the learned rows."""

    def facts(self) -> Facts:
        """Return what there is."""

    def close(self) -> None:
        """Finish, and let go."""
