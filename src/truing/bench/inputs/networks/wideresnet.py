"""Wide residual networks for 32-pixel images (Zagoruyko & Komodakis 2016), pre-activation, with dropout.

The parameters have the names of the public energy_ood checkpoints, so these checkpoints load unchanged.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class WideResNet(nn.Module):
    """A network with `depth` = 6 n + 4 layers and three blocks of 16, 32 and 64 channels times `width`."""

    def __init__(self, depth: int = 40, width: int = 2, classes: int = 10, dropout: float = 0.3) -> None:
        super().__init__()
        if (depth - 4) % 6:
            raise ValueError(f"depth must be 6 n + 4, got {depth}")
        layers = (depth - 4) // 6
        self.conv1 = _conv3(3, 16)
        self.block1 = _Block(layers, 16, 16 * width, 1, dropout)
        self.block2 = _Block(layers, 16 * width, 32 * width, 2, dropout)
        self.block3 = _Block(layers, 32 * width, 64 * width, 2, dropout)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, c) of images (n, 3, 32, 32)."""
        maps = self.block3(self.block2(self.block1(self.conv1(images))))
        # Pool one 8 × 8 window, as in energy_ood. For LSUN-C's 36-pixel images, this drops the last row and column of
        # the maps.
        features = F.avg_pool2d(F.relu(self.bn1(maps)), 8).flatten(1)
        logits: Tensor = self.fc(features)
        return logits


class _Block(nn.Module):
    def __init__(self, layers: int, channels_in: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        first = _Layer(channels_in, channels, stride, dropout)
        self.layer = nn.Sequential(first, *(_Layer(channels, channels, 1, dropout) for _ in range(layers - 1)))

    def forward(self, maps: Tensor) -> Tensor:
        out: Tensor = self.layer(maps)
        return out


class _Layer(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = _conv3(channels_in, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3(channels, channels)
        self.dropout = dropout
        self.convShortcut = (
            None if channels_in == channels else nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)
        )

    def forward(self, maps: Tensor) -> Tensor:
        active = F.relu(self.bn1(maps))
        inner = F.relu(self.bn2(self.conv1(active)))
        inner = self.conv2(F.dropout(inner, self.dropout, self.training))
        # A shortcut with a convolution starts from the activated maps, an identity shortcut from the input.
        return torch.add(maps if self.convShortcut is None else self.convShortcut(active), inner)


def _conv3(channels_in: int, channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
