"""A model with a detector. Each call runs the model, learns the batch, and scores and decides its rows."""

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
    """The result of a call: the model's return value, the head's logits (n, c), trued scores (n,), and a decision.

    The decision is None before the detector is calibrated. `returned` differs from the logits if the model continues
    after its head, as with a softmax.
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

    >>> import torch
    >>> with OnlineModel(nn.Linear(4, 3).eval()) as online, torch.no_grad():
    ...     online(torch.randn(8, 4)).scores.shape
    (8,)

    The model must be in eval mode. Its device and gradient mode stay unchanged. Threads may share an `OnlineModel`:
    batches are learned one at a time. The detector may be saved and calibrated between calls. A call that fails changes
    nothing.

    Parameters
    ----------
    head
        As for `extract`.
    detector
        Learns from every batch. The default is `Detector()`: a contrast if `online.detector` is calibrated before the
        first call, and Online DLR otherwise.
    accept, false_alarm, fdr
        The rate of `Detector.decide`; at most one. A calibrated detector needs one. Before `calibrate`,
        decisions are None.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: nn.Module | str | None = None,
        detector: Detector | None = None,
        accept: float | None = None,
        false_alarm: float | None = None,
        fdr: float | None = None,
    ) -> None:
        detector = Detector() if detector is None else detector
        if not isinstance(detector, Detector):
            raise TypeError(f"detector must be a truing.Detector, got {type(detector).__name__}")
        if detector.base == "given":
            raise ValueError("detector must compute its base score from features and logits, got base='given'")
        rates = {"accept": accept, "false_alarm": false_alarm, "fdr": fdr}
        self._rate = {name: value for name, value in rates.items() if value is not None}
        if self._rate:
            Rate.of(**self._rate)
        self.model, self.detector = model, detector
        self._check_rate()
        self._head: Head | None = Head(model, head)

    def __call__(self, *args: Any, **kwargs: Any) -> OnlineResult:
        """Call the model with these arguments, such as `**batch`; learn the batch, score and decide its rows."""
        head = self._head
        if head is None:
            raise ValueError("this OnlineModel is closed: create a new one")
        training = next((name for name, part in self.model.named_modules() if part.training), None)
        if training is not None:
            which = f"its part {training!r}" if training else "it"
            raise ValueError(f"model must be in eval mode, but {which} is in training mode: call model.eval() first")
        self._check_rate()
        returned, features, logits = head.run(*args, **kwargs)
        arrays: dict[str, Any] = columns(features, logits)
        outputs = Outputs(**arrays)
        if self.detector.reference is None:
            return OnlineResult(returned, logits, self.detector.learn_and_score(outputs), None)
        decision = self.detector.learn_and_decide(outputs, **self._rate)
        return OnlineResult(returned, logits, decision.scores, decision)

    def close(self) -> None:
        """Remove the hooks from the model. Closing again does nothing."""
        if self._head is not None:
            self._head.close()
            self._head = None

    def __enter__(self) -> "OnlineModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_rate(self) -> None:
        if self.detector.reference is not None and not self._rate:
            raise ValueError("a calibrated detector needs an error rate: pass accept, false_alarm or fdr")
