"""A small real network, images for it, and everything that can be seen of a model."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch
    from torch import nn

    torch.set_num_threads(1)  # Small networks run slower on more threads.

    class Small(nn.Module):
        """Convolution, BatchNorm, Dropout, pooling and a linear head; `other` comes later and is not the head."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, stride=2)
            self.norm = nn.BatchNorm2d(8)
            self.drop = nn.Dropout(0.5)
            self.head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
            self.other = nn.Identity()

        def body(self, images: Any) -> Any:
            z = torch.relu(self.norm(self.conv(images))).mean(dim=(2, 3))
            return self.head[1](self.head[0](self.drop(z)))

        def forward(self, images: Any) -> Any:
            return self.head[2](self.body(images))


@pytest.fixture
def network() -> Any:
    """Return the network in training mode, like a new network, with BatchNorm statistics that are not the defaults."""
    torch.manual_seed(0)
    network = Small()
    network(2 + torch.randn(32, 3, 12, 12))
    return network


@pytest.fixture
def images() -> Any:
    return torch.randn(20, 3, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def everything() -> Callable[[Any], Any]:
    """Return a function that lists the state of a model: objects, numbers, flags, hooks, gradients and devices."""

    def tensor(value: Any) -> Any:
        if value is None:
            return None
        numbers = None if value.device.type == "meta" else value.detach().numpy().tobytes()
        return id(value), value.data_ptr(), numbers, value.device, value.requires_grad, value.is_leaf

    def seen(model: Any) -> Any:
        return [
            (
                name,
                id(part),
                part.training,
                {
                    key: (tensor(value), tensor(value.grad))
                    for key, value in part._parameters.items()
                    if value is not None
                },
                {key: tensor(value) for key, value in part._buffers.items()},
                {key: list(value.items()) for key, value in vars(part).items() if "hook" in key and value},
            )
            for name, part in model.named_modules()
        ]

    return seen
