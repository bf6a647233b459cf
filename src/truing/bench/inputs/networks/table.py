"""The networks by name: how to build each one, its preprocessing, and its classes.

Importing this table does not import torch; building a network does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .preprocessing import Colour, Preprocessing

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Odin:
    """ODIN's parameters: temperature, ε for pixels in [0, 1], and the features to store, `clean` or `perturbed`."""

    temperature: float
    epsilon: float
    features: str = "clean"


@dataclass(frozen=True)
class Network:
    """A network: `build(classes)` returns it with random weights; `weights()` returns the path of packaged weights.

    `labels` names the network's classes. The labels of a set are used only if the set has the same classes. `odin`
    holds the paper's parameters for this kind of network.
    """

    build: Callable[[int], "nn.Module"]
    preprocessing: Preprocessing
    classes: int
    labels: str
    odin: Odin
    weights: Callable[[], Path] | None = None


def _wrn40_2(classes: int) -> "nn.Module":
    from .wideresnet import WideResNet

    return WideResNet(40, 2, classes)


def _resnet20(classes: int) -> "nn.Module":
    from .resnet import ResNet

    return ResNet(20, classes)


def _resnet56(classes: int) -> "nn.Module":
    from .resnet import ResNet

    return ResNet(56, classes)


def _resnet14(classes: int) -> "nn.Module":
    from .resnet import ProjectingResNet

    return ProjectingResNet(14, classes)


def _resnetv2_101(classes: int) -> "nn.Module":
    from .bit import ResNetV2

    return ResNetV2(classes=classes)


def _densenet100(classes: int) -> "nn.Module":
    from .densenet import DenseNet

    return DenseNet(100, 12, classes)


def _efficientnet_lite0(classes: int) -> "nn.Module":
    from .efficientnet import efficientnet_lite0

    return efficientnet_lite0(classes)


def _efficientnet_weights() -> Path:
    from .efficientnet import packaged_weights

    return packaged_weights()


def _of_255(red: float, green: float, blue: float) -> Colour:
    return red / 255, green / 255, blue / 255


# The means and standard deviations with which each network was trained.
_ENERGY_OOD = Preprocessing(32, "shorter", _of_255(125.3, 123.0, 113.9), _of_255(63.0, 62.1, 66.7))
_IMAGENET_AT_32 = Preprocessing(32, "shorter", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR100 = Preprocessing(32, "shorter", (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
_CIFAR10 = Preprocessing(32, "shorter", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_BIT = Preprocessing(480, "stretch", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_EFFICIENTNET = Preprocessing(224, "crop", _of_255(127, 127, 127), _of_255(128, 128, 128))

# As in the paper: on CIFAR a small step and temperature 1, on ImageNet a high temperature and no step.
_ON_CIFAR, _ON_IMAGENET = Odin(1.0, 0.0024), Odin(1000.0, 0.0)

NETWORKS: dict[str, Network] = {
    "wrn40-2": Network(_wrn40_2, _ENERGY_OOD, 10, "cifar10", _ON_CIFAR),
    "resnet20": Network(_resnet20, _IMAGENET_AT_32, 10, "cifar10", _ON_CIFAR),
    "resnet56": Network(_resnet56, _IMAGENET_AT_32, 10, "cifar10", _ON_CIFAR),
    "densenet100": Network(_densenet100, _CIFAR10, 10, "cifar10", _ON_CIFAR),
    "cifar100-resnet14": Network(_resnet14, _CIFAR100, 100, "cifar100", _ON_CIFAR),
    "resnetv2-101x1": Network(_resnetv2_101, _BIT, 1000, "imagenet", _ON_IMAGENET),
    "efficientnet-lite0": Network(
        _efficientnet_lite0, _EFFICIENTNET, 1000, "imagenet", _ON_IMAGENET, _efficientnet_weights
    ),
}


def labels_of(network: Network, classes: int) -> str | None:
    """Return the name of a network's classes, or of another network's in the table with the same number of classes.

    >>> labels_of(NETWORKS["wrn40-2"], 10), labels_of(NETWORKS["wrn40-2"], 100), labels_of(NETWORKS["wrn40-2"], 7)
    ('cifar10', 'cifar100', None)
    """
    by_count = {other.classes: other.labels for other in NETWORKS.values()}
    return network.labels if classes == network.classes else by_count.get(classes)
