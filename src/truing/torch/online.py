"""A model that says of every batch how far it can be trusted: called like the model, learning as it goes."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .._check import Floats
from ..decisions.thresholds import Decision, Rate
from ..detector import Detector
from ..outputs import Outputs
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
    detector
        What learns from every batch.
    accept, false_alarm, fdr
        The rate of `Detector.decide`; at most one. A calibrated detector needs one. Before `calibrate`,
        decisions are None.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: nn.Module | str | None = None,
        detector: Detector,
        accept: float | None = None,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> None:
        if not isinstance(detector, Detector):
            raise TypeError(f"detector must be a truing.Detector, got {type(detector).__name__}")
        if detector.base == "given":
            raise ValueError("detector must have a score made of features and logits, got 'given'")
        rates = {"accept": accept, "false_alarm": false_alarm, "fdr": fdr}
        self._rate = {name: value for name, value in rates.items() if value is not None}
        if self._rate:
            Rate.of(**self._rate)
        self.model, self.detector = model, detector
        self._check_rate()
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
        self._check_rate()
        returned, features, logits = head.run(*args, **kwargs)
        arrays: dict[str, Any] = columns(features, logits)
        outputs = Outputs(**arrays)
        if self.detector.reference is None:
            return OnlineResult(returned, logits, self.detector.learn_and_score(outputs), None)
        decision = self.detector.learn_and_decide(outputs, **self._rate)
        return OnlineResult(returned, logits, decision.scores, decision)

    def close(self) -> None:
        """Remove the hooks from the model; a second time does nothing."""
        if self._head is not None:
            self._head.close()
            self._head = None

    def __enter__(self) -> "OnlineModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_rate(self) -> None:
        if self.detector.reference is not None and not self._rate:
            raise ValueError("a calibrated detector decides at a rate: give accept, false_alarm or fdr")
