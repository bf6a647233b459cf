"""Residual networks for 32-pixel images (He et al. 2016) with 6 n + 2 layers and 16, 32 and 64 channels.

If the number of channels changes, the shortcuts of `ResNet` pad with zeros (option A), and the shortcuts of
`ProjectingResNet` are 1 × 1 convolutions (option B). The parameters have the names of public checkpoints.
"""

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class ResNet(nn.Module):
    """A network with `depth` layers whose shortcuts have no parameters."""

    def __init__(self, depth: int = 20, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = _conv3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stack(_Padding, depth, 16, 16, 1)
        self.layer2 = _stack(_Padding, depth, 16, 32, 2)
        self.layer3 = _stack(_Padding, depth, 32, 64, 2)
        self.linear = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, c) of images (n, 3, 32, 32)."""
        maps = F.relu(self.bn1(self.conv1(images)))
        maps = self.layer3(self.layer2(self.layer1(maps)))
        logits: Tensor = self.linear(maps.mean((2, 3)))
        return logits


class ProjectingResNet(nn.Module):
    """A network with `depth` layers and convolutions in the shortcuts that change the number of channels."""

    def __init__(self, depth: int = 14, classes: int = 100) -> None:
        super().__init__()
        self.conv1 = _conv3(3, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.stack1 = _stack(_Projecting, depth, 16, 16, 1)
        self.stack2 = _stack(_Projecting, depth, 16, 32, 2)
        self.stack3 = _stack(_Projecting, depth, 32, 64, 2)
        self.fc = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, c) of images (n, 3, 32, 32)."""
        maps = F.relu(self.bn1(self.conv1(images)))
        maps = self.stack3(self.stack2(self.stack1(maps)))
        logits: Tensor = self.fc(maps.mean((2, 3)))
        return logits


class _Padding(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv3(channels_in, channels, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = _conv3(channels, channels), nn.BatchNorm2d(channels)
        self.stride, self.missing = stride, channels - channels_in

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(maps)))))
        # The new channels are zeros, half of them in front of the old channels and half behind.
        half = self.missing // 2
        kept = F.pad(maps[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.missing - half))
        return F.relu(inner + kept)


class _Projecting(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first_conv, self.bn1 = _conv3(channels_in, channels, stride), nn.BatchNorm2d(channels)
        self.second_conv, self.bn2 = _conv3(channels, channels), nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if channels_in != channels:
            self.shortcut.append(nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(channels))

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.bn2(self.second_conv(F.relu(self.bn1(self.first_conv(maps)))))
        return F.relu(inner + self.shortcut(maps))


def _stack(
    block: type[_Padding] | type[_Projecting], depth: int, channels_in: int, channels: int, stride: int
) -> nn.Sequential:
    if (depth - 2) % 6:
        raise ValueError(f"depth must be 6 n + 2, got {depth}")
    rest = (depth - 2) // 6 - 1
    return nn.Sequential(block(channels_in, channels, stride), *(block(channels, channels, 1) for _ in range(rest)))


def _conv3(channels_in: int, channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
