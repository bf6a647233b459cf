"""A model that says of every batch how far it can be trusted: called like the model, learning as it goes."""

from dataclasses import dataclass
from threading import Lock
from typing import Any

from torch import Tensor, nn

from .._check import Floats, as_share
from ..detector import Detector
from ..outputs import Outputs
from ..threshold import Decision
from ._head import Head, columns


@dataclass(frozen=True, eq=False, repr=False)
class OnlineResult:
    """What one call says: what the model returned, the head's logits (n, c), trued scores (n,), and a decision or None.

    A model may go on after its head, with a softmax say: `returned` is then no longer the logits.
    """

    returned: Any
    logits: Tensor
    scores: Floats
    decision: Decision | None

    def __repr__(self) -> str:
        rows, classes = self.logits.shape
        decided = "no decision" if self.decision is None else f"{int(self.decision.is_out.sum())} out"
        low, high = self.scores.min(), self.scores.max()
        return f"OnlineResult({rows} rows: logits {classes}, scores {low:.4g} to {high:.4g}, {decided})"


class OnlineModel:
    """A model and a detector: each call learns the batch, then scores and decides it (Algorithm 3).

    >>> import torch, truing
    >>> with OnlineModel(nn.Linear(4, 3).eval(), detector=truing.Detector()) as online, torch.no_grad():
    ...     online(torch.randn(8, 4)).scores.shape
    (8,)

    The model is called as it stands: in eval mode, which is checked, on its device, with gradients or without.
    Threads may call it at the same time: each gets what it asked for, and the batches are learned one after another.
    The detector may be saved and calibrated at any time between calls; a call that fails teaches it nothing.

    Parameters
    ----------
    head
        As for `extract`.
    false_alarm, fdr
        The level of `Detector.decide`; at most one. A calibrated detector needs one. Before `calibrate`,
        decisions are None.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: nn.Module | str | None = None,
        detector: Detector,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> None:
        if not isinstance(detector, Detector):
            raise TypeError(f"detector must be a truing.Detector, got {type(detector).__name__}")
        if detector.base == "given":
            raise ValueError("detector must have a score made of features and logits, got 'given'")
        if false_alarm is not None and fdr is not None:
            raise ValueError("false_alarm and fdr exclude one another, got both")
        self.false_alarm = None if false_alarm is None else as_share(false_alarm, "false_alarm")
        self.fdr = None if fdr is None else as_share(fdr, "fdr")
        self.model, self.detector = model, detector
        self._learning = Lock()
        self._check_level()
        self._head: Head | None = Head(model, head)

    def __call__(self, *args: Any, **kwargs: Any) -> OnlineResult:
        """Call the model with these arguments; learn, then score and decide what it said."""
        head = self._head
        if head is None:
            raise ValueError("this OnlineModel is closed: make another")
        training = next((name for name, part in self.model.named_modules() if part.training), None)
        if training is not None:
            which = f"its part {training!r}" if training else "one"
            raise ValueError(f"model must be in eval mode, got {which} in training: call model.eval() first")
        self._check_level()
        returned, features, logits = head.run(*args, **kwargs)
        scores, decision = self._learn_and_decide(Outputs(**columns(features, logits)))
        return OnlineResult(returned, logits, scores, decision)

    def close(self) -> None:
        """Remove the hooks from the model; a second time does nothing."""
        if self._head is not None:
            self._head.close()
            self._head = None

    def __enter__(self) -> "OnlineModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _learn_and_decide(self, outputs: Outputs) -> tuple[Floats, Decision | None]:
        with self._learning:
            self.detector.learn(outputs)
            if self.detector.reference is None:
                return self.detector.score(outputs), None
            decision = self.detector.decide(outputs, false_alarm=self.false_alarm, fdr=self.fdr)
            return decision.scores, decision

    def _check_level(self) -> None:
        if self.detector.reference is not None and self.false_alarm is None and self.fdr is None:
            raise ValueError("a calibrated detector decides at a level: give false_alarm or fdr")
