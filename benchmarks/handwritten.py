"""Networks written by hand in PyTorch: the reference for the modules generated from graphs.

They share no code with cubemesh and hold their parameters in the graph's order, so that weights can
be copied one by one. Benchmarks compare times, tests compare values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn


def little_cnn(image_size: int = 32, classes: int = 10) -> nn.Module:
    """LittleCNN, of the DGX-1 best practices [001]."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * (image_size // 4) ** 2, 512),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(512, classes),
    )


class WithinChannelNorm(nn.Module):
    """Caffe's WITHIN_CHANNEL response normalization over 3×3 patches."""

    def forward(self, x: Tensor) -> Tensor:
        """Unchanged in shape."""
        means = F.conv2d(
            x.square().flatten(0, 1).unsqueeze(1),
            torch.full((1, 1, 3, 3), 1 / 9, dtype=x.dtype, device=x.device),
            padding=1,
        ).view_as(x)
        return x * (1 + 5e-5 * means) ** -0.75


def cifarnet(image_size: int = 32, classes: int = 10) -> nn.Module:
    """Caffe's cifar10_full."""
    features = nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.ReLU(inplace=True),
        WithinChannelNorm(),
        nn.Conv2d(32, 32, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        WithinChannelNorm(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.Flatten(),
    )
    width = features(torch.zeros(1, 3, image_size, image_size)).shape[1]
    return nn.Sequential(*features, nn.Linear(width, classes))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut (He et al. 2015)."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != filters:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, filters, height / stride, width / stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions with a shortcut; the 3×3 one halves the image (v1.5)."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv3 = nn.Conv2d(filters, 4 * filters, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * filters)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != 4 * filters:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, 4 * filters, 1, stride, bias=False), nn.BatchNorm2d(4 * filters)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 4 filters, height / stride, width / stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def resnet_50(image_size: int = 224, classes: int = 1000) -> nn.Module:
    """ResNet-50, for images of any size."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels = 64
    for filters, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(depth):
            layers.append(Bottleneck(channels, filters, 2 if filters > 64 and i == 0 else 1))
            channels = 4 * filters
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


def alexnet(image_size: int = 224, classes: int = 1000) -> nn.Module:
    """AlexNet in one column (Krizhevsky 2014)."""
    side = (image_size - 7) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(256 * side**2, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, classes),
    )


def resnet_18(image_size: int = 224, classes: int = 1000) -> nn.Module:
    """ResNet-18, for images of any size."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels = 64
    for filters in (64, 128, 256, 512):
        layers.append(BasicBlock(channels, filters, stride=1 if filters == 64 else 2))
        layers.append(BasicBlock(filters, filters, stride=1))
        channels = filters
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


NETWORKS = {
    "little-cnn": little_cnn,
    "cifarnet": cifarnet,
    "alexnet": alexnet,
    "resnet-18": resnet_18,
    "resnet-50": resnet_50,
}


def train_step(
    name: str,
    weights: Sequence[NDArray[np.float32]],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    classes: int,
    device: str,
    rate: float,
    momentum: float,
    compiled: bool = False,
    low_precision: torch.dtype | None = None,
) -> Callable[[], None]:
    """A step on the network `name`: copy the batch, forward (autocast to `low_precision`, if
    given), backward, update. `weights` are its parameters in their order."""
    model = NETWORKS[name](images.shape[-1], classes)
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(array))
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, fused=True)
    kind = torch.device(device).type
    run = torch.compile(model) if compiled else model

    def step() -> None:
        x, y = torch.from_numpy(images), torch.from_numpy(labels)
        if kind == "cuda":
            x = x.pin_memory().to(device, non_blocking=True)
            y = y.pin_memory().to(device, non_blocking=True)
        else:
            x, y = x.clone(), y.clone()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, low_precision) if low_precision else nullcontext():
            loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()

    return step


def wait_for(device: str) -> Callable[[], None]:
    """What waits until `device` has done all it was given."""
    if torch.device(device).type == "cuda":
        return torch.cuda.synchronize
    return lambda: None
