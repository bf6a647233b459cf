"""The detectors of pytorch-ood that take pooled features or logits; the others need images or inner layers.

The detectors that equal a base score of truing (MaxSoftmax, EnergyBased, GEN) are left out, and also OpenMax and GMM,
which take much longer than the others and were far behind.
"""

import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec, module_from_spec
from typing import Any

import numpy as np
import torch

from truing import Outputs

from .protocol import Rival, Split

# The package imports torchvision for its datasets. An empty module in place of the package lets its detectors be
# imported without torchvision.
sys.modules.setdefault("pytorch_ood", module_from_spec(find_spec("pytorch_ood")))
from pytorch_ood import detector as ood  # noqa: E402

NUMBERS_AT_ONCE = 10**8  # DICE stores rows × classes × features, so it gets fewer rows.
BY_CLASS = (ood.Mahalanobis, ood.RMD, ood.SHE)
SLOW_WITH_MANY_CLASSES = (ood.DICE, ood.GradNorm)


def rivals(split: Split) -> Iterator[Rival]:
    """Yield the detectors with the arguments of their constructors."""
    head = torch.nn.Linear(*split.weight.T.shape)
    head.load_state_dict({"weight": torch.from_numpy(split.weight), "bias": torch.from_numpy(split.bias)})
    pooled = torch.nn.Sequential(torch.nn.Flatten(), head)
    for kind, arguments, classes in (
        ("logits", (None,), (ood.MaxLogit, ood.Entropy, ood.KLMatching)),
        ("features", (None,), (ood.KNN, ood.Mahalanobis, ood.RMD)),
        ("features", (None, head), (ood.LTS, ood.NNGuide, ood.fDBD, ood.NCI, ood.PNML, ood.SHE)),
        ("features", (None, min(512, head.in_features // 2), head.weight, head.bias), (ood.ViM,)),
        ("features", (None, head.weight, head.bias, 0.65), (ood.DICE,)),
        ("feature_maps", (None, pooled), (ood.ASH, ood.SCALE, ood.ReAct, ood.VRA)),
        ("inputs", (head, lambda name: name == "weight"), (ood.GradNorm,)),  # The weight only, as in its paper.
    ):
        for make in classes:
            if make in SLOW_WITH_MANY_CLASSES and head.out_features >= 1000:
                continue
            given = ("A, labels" if make in BY_CLASS else "A") if make.requires_fit else "nothing"
            yield Rival(make.__name__, given, partial(scores, make, arguments, kind))


def scores(make: Any, arguments: tuple[Any, ...], kind: str, split: Split, rows: Outputs) -> Any:
    """Return the scores of a detector that learns from A."""
    column, shape = "logits" if kind == "logits" else "features", (..., *[None] * 2 * (kind == "feature_maps"))
    classes = len(split.weight)
    if make in BY_CLASS and (missing := classes - len(np.unique(split.a.labels))):
        raise ValueError(f"{missing:,} of {classes:,} classes have no reference row")
    detector = make(*arguments)
    if detector.requires_fit:
        inputs = torch.from_numpy(vars(split.a)[column]).float()[shape]
        getattr(detector, f"fit_{kind}")(inputs, torch.from_numpy(split.a.labels).long())
    predict = detector.predict if kind == "inputs" else getattr(detector, f"predict_{kind}")
    size = len(rows) if kind == "logits" else NUMBERS_AT_ONCE // split.weight.size
    parts = torch.from_numpy(vars(rows)[column]).float()[shape].split(size)
    return -np.concatenate([predict(part).detach().numpy() for part in parts])
