"""BiT's ResNetV2 (Kolesnikov et al. 2020): pre-activation bottlenecks, group norm, standardised convolutions.

The parameters have the names of the public torch release. The NumPy release has the same numbers under
other names, with kernels as (height, width, in, out); `from_public` converts it. The torch checkpoint that was
fine-tuned for GradNorm has another name for the last norm; `from_fine_tuned` converts it.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

UNITS_101 = (3, 4, 23, 3)
_GROUPS = 32
_TINY = 1e-10  # Added to the variance of a kernel, as in the release.


class ResNetV2(nn.Module):
    """A network with `units` bottlenecks in each of its four blocks, 256 to 2048 channels times `width` wide."""

    def __init__(self, units: tuple[int, ...] = UNITS_101, classes: int = 1000, width: float = 1) -> None:
        super().__init__()
        root = int(64 * width)
        self.root = nn.Sequential(OrderedDict(conv=_Conv(3, root, 7, 2)))
        blocks, channels_in = OrderedDict[str, nn.Module](), root
        for number, count in enumerate(units, 1):
            channels = root * 2 ** (number + 1)
            block = OrderedDict[str, nn.Module]()
            for unit in range(1, count + 1):
                stride = 2 if unit == 1 and number > 1 else 1
                block[f"unit{unit:02d}"] = _Bottleneck(channels_in, channels, stride)
                channels_in = channels
            blocks[f"block{number}"] = nn.Sequential(block)
        self.body = nn.Sequential(blocks)
        # The release has a 1 × 1 convolution of pooled maps, which is a linear layer.
        parts = {"gn": nn.GroupNorm(_GROUPS, channels_in), "conv": nn.Linear(channels_in, classes)}
        self.head = nn.ModuleDict(parts)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, c) of images (n, 3, h, w)."""
        # Pad with zeros here, because `max_pool2d` itself would pad with minus infinity.
        maps = F.max_pool2d(F.pad(self.root(images), (1, 1, 1, 1)), 3, 2)
        features = F.relu(self.head["gn"](self.body(maps))).mean((2, 3))
        logits: Tensor = self.head["conv"](features)
        return logits


def from_public(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Rename the parameters of a checkpoint in the release's NumPy layout.

    Other names stay unchanged, so loading the result reports them.
    """
    other = next((name for name, array in arrays.items() if array.dtype.kind != "f"), None)
    if other is not None:
        raise ValueError(f"{other} must have a floating-point dtype, got {arrays[other].dtype}")
    return {_our_name(name): _our_order(array) for name, array in arrays.items()}


def from_fine_tuned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the parameters of a torch checkpoint whose last norm is in front of the head."""
    ours = {name: re.sub(r"^before_head\.gn\.", "head.gn.", name) for name in state}
    # A checkpoint with both norms is invalid: its names stay unchanged, so loading it reports them.
    return {ours[name]: state[name] for name in state} if len(set(ours.values())) == len(state) else dict(state)


class _Conv(nn.Conv2d):
    """A convolution with kernels standardised to mean zero and variance one."""

    def __init__(self, channels_in: int, channels: int, side: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels, side, stride=stride, padding=side // 2, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        kernel = (self.weight - mean) / torch.sqrt(variance + _TINY)
        return F.conv2d(input, kernel, None, self.stride, self.padding)


class _Bottleneck(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        inner = channels // 4
        self.gn1, self.conv1 = nn.GroupNorm(_GROUPS, channels_in), _Conv(channels_in, inner, 1)
        self.gn2, self.conv2 = nn.GroupNorm(_GROUPS, inner), _Conv(inner, inner, 3, stride)
        self.gn3, self.conv3 = nn.GroupNorm(_GROUPS, inner), _Conv(inner, channels, 1)
        same = stride == 1 and channels_in == channels
        self.downsample = None if same else _Conv(channels_in, channels, 1, stride)

    def forward(self, maps: Tensor) -> Tensor:
        active = F.relu(self.gn1(maps))
        inner = self.conv2(F.relu(self.gn2(self.conv1(active))))
        inner = self.conv3(F.relu(self.gn3(inner)))
        return torch.add(maps if self.downsample is None else self.downsample(active), inner)


_ENDINGS = {
    "standardized_conv2d/kernel": "conv{}.weight",
    "group_norm/gamma": "gn{}.weight",
    "group_norm/beta": "gn{}.bias",
}
_OUTER = {
    "root_block/standardized_conv2d/kernel": "root.conv.weight",
    "group_norm/gamma": "head.gn.weight",
    "group_norm/beta": "head.gn.bias",
    "head/conv2d/kernel": "head.conv.weight",
    "head/conv2d/bias": "head.conv.bias",
}


def _our_name(name: str) -> str:
    inner = name.removeprefix("resnet/")
    found = re.fullmatch(r"(block\d+)/(unit\d+)/([abc])/(proj/)?(\w+/\w+)", inner)
    if found is None or found[5] not in _ENDINGS:
        return _OUTER.get(inner, name)
    block, unit, place, projecting, ending = found.groups()
    own = "downsample.weight" if projecting else _ENDINGS[ending].format("abc".index(place) + 1)
    return f"body.{block}.{unit}.{own}"


def _our_order(array: NDArray[Any]) -> Tensor:
    turned = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
    return torch.from_numpy(np.array(turned, dtype=np.float32))
