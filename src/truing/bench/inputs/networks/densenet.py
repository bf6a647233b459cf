"""Densely connected networks for 32-pixel images (Huang et al. 2017): DenseNet-BC, with bottlenecks and compression.

The parameters have the names of the public checkpoints of the DICE paper, so these checkpoints load unchanged.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class DenseNet(nn.Module):
    """A network of `depth` = 6 n + 4 layers that adds `growth` channels per layer and halves them in transitions."""

    def __init__(self, depth: int = 100, growth: int = 12, classes: int = 10) -> None:
        super().__init__()
        if (depth - 4) % 6:
            raise ValueError(f"depth must be 6 n + 4, got {depth}")
        layers = (depth - 4) // 6
        channels = 2 * growth
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.block1 = _Block(layers, channels, growth)
        channels += layers * growth
        self.trans1 = _Transition(channels, channels // 2)
        self.block2 = _Block(layers, channels // 2, growth)
        channels = channels // 2 + layers * growth
        self.trans2 = _Transition(channels, channels // 2)
        self.block3 = _Block(layers, channels // 2, growth)
        channels = channels // 2 + layers * growth
        self.bn1 = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, c) of images (n, 3, 32, 32)."""
        maps = self.trans1(self.block1(self.conv1(images)))
        maps = self.block3(self.trans2(self.block2(maps)))
        features = F.avg_pool2d(F.relu(self.bn1(maps)), 8).flatten(1)
        logits: Tensor = self.fc(features)
        return logits


class _Block(nn.Module):
    def __init__(self, layers: int, channels: int, growth: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(*(_Bottleneck(channels + number * growth, growth) for number in range(layers)))

    def forward(self, maps: Tensor) -> Tensor:
        out: Tensor = self.layer(maps)
        return out


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.conv1(F.relu(self.bn1(maps)))
        return torch.cat([maps, self.conv2(F.relu(self.bn2(inner)))], dim=1)


class _Transition(nn.Module):
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels_in), nn.Conv2d(channels_in, channels, 1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv1(F.relu(self.bn1(maps))), 2)
