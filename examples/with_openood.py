"""truing as a postprocessor of OpenOOD: `setup`, `postprocess`, `inference`, higher = in.

`setup` uses the validation images as the reference. `inference` fits and scores all rows of a loader together. To
compare two sets, put both into one loader (`ConcatDataset`), because scores from two calls come from two fits.
`postprocess` fits and scores one batch in the same way.

    evaluator = Evaluator(net, id_name="cifar10", postprocessor=TruingPostprocessor(None))

OpenOOD is installed from its repository, https://github.com/Jingkang50/OpenOOD.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from openood.postprocessors import BasePostprocessor
from torch import Tensor, nn

import truing


class TruingPostprocessor(BasePostprocessor):  # type: ignore[misc]
    """Scores the rows of a loader by `truing.detect`, with the validation images as the reference."""

    def __init__(self, config: Any) -> None:
        BasePostprocessor.__init__(self, config)
        self.reference: truing.Outputs | None = None

    def setup(self, net: nn.Module, id_loader_dict: dict[str, Any], ood_loader_dict: dict[str, Any]) -> None:
        """Use the validation images as the reference."""
        net.eval()
        self.reference = self.outputs(net, id_loader_dict["val"])

    def postprocess(self, net: nn.Module, data: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted class and the score of each image of a batch."""
        outputs = self.outputs(net, [{"data": data}])
        return torch.from_numpy(outputs.logits.argmax(axis=1)), torch.from_numpy(self.scores(outputs))

    def inference(self, net: nn.Module, data_loader: Iterable[dict[str, Any]], progress: bool = True) -> Any:
        """Return the predicted class, the score and the label of each image."""
        outputs = self.outputs(net, data_loader)
        return outputs.logits.argmax(axis=1), self.scores(outputs), outputs.labels

    def scores(self, outputs: truing.Outputs) -> Any:
        """Return the trued scores of the rows."""
        assert self.reference is not None, "call setup first"
        return truing.detect(outputs, self.reference).scores

    @torch.no_grad()
    def outputs(self, net: nn.Module, batches: Iterable[dict[str, Any]]) -> truing.Outputs:
        """Return features and logits of all batches, and labels if there are any."""
        device = next(net.parameters()).device
        parts = []
        for batch in batches:
            logits, features = net(batch["data"].to(device).float(), return_feature=True)
            labels = np.asarray(batch["label"]).astype(int) if "label" in batch else None
            parts.append(truing.Outputs(features.cpu(), logits.cpu(), labels))
        return truing.Outputs.concatenate(parts)
