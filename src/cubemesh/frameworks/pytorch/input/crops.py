"""Crop, resize, mirror and scale decoded images to 0..1, on the device.

As on the host, with Pillow's bilinear filter: output pixel i of a box [low, high) has
its centre at c = low + (i + ½)·s, s = (high - low)/n, and is the mean of the source pixels around
it, a pixel at distance d weighted max(0, 1 - d/max(s, 1)). So an image that shrinks is averaged
(antialiased), and one that grows is interpolated. One axis after the other, in fp32; Pillow rounds
to integers after each axis, the only difference: less than 1/255.

On a GPU with Triton a minibatch is one kernel (`kernels/triton/crop.py`), written in the type and
layout that the program reads. Elsewhere each image is two products with matrices of weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cubemesh.batches import Box

WHITE = 255.0
"""The value that becomes 1.0."""
BLOCK = 256
"""Pixels per program of the kernel."""


class Bitmap(Protocol):
    """A decoded image, (channels, height, width) in uint8, of any strides: a tensor, or
    `DeviceImage`."""

    @property
    def shape(self) -> Sequence[int]:
        """Channels, height and width."""

    def stride(self) -> Sequence[int]:
        """Bytes from channel to channel, row to row and column to column."""

    def data_ptr(self) -> int:
        """The address of its first byte."""


@dataclass(frozen=True, slots=True)
class DeviceImage:
    """A decoded image within a larger array. Slicing a tensor releases the GIL and waits for it
    behind every other thread: for hundreds of images that is most of the time of decoding."""

    memory: Tensor
    """Flat, in uint8."""
    offset: int
    address: int
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]

    def stride(self) -> Sequence[int]:
        """See `Bitmap`."""
        return self.strides

    def data_ptr(self) -> int:
        """See `Bitmap`."""
        return self.address

    def tensor(self) -> Tensor:
        """A view of it."""
        return self.memory.as_strided(self.shape, self.strides, self.offset)


def tensor_of(image: Bitmap) -> Tensor:
    """The image as a tensor in the same memory."""
    if isinstance(image, DeviceImage):
        return image.tensor()
    assert isinstance(image, Tensor), "the only other kind"
    return image


@dataclass(frozen=True, slots=True)
class Crop:
    """A decoded image, the box to crop, and its row in the minibatch."""

    source: Bitmap
    box: Box
    mirrored: bool
    row: int


def crop_into(images: Tensor, crops: Sequence[Crop]) -> None:
    """Write each crop into its row of `images` (batch, channels, height, width), of any floating
    type and strides. Queued on the current stream: sources must live until it is done."""
    if not crops:
        return
    if images.is_cuda and find_spec("triton") is not None:
        _by_kernel(images, crops)
        return
    for crop in crops:
        images[crop.row] = _by_products(crop, images.shape[-2], images.shape[-1])


def _by_kernel(images: Tensor, crops: Sequence[Crop]) -> None:
    from cubemesh.kernels.triton.crop import crop_kernel

    _, channels, height, width = images.shape
    shapes = [
        (c.source.data_ptr(), c.row, *c.source.shape[1:], *c.source.stride(), int(c.mirrored))
        for c in crops
    ]
    numbers = _to_device(np.array(shapes, np.int64), images.device)
    boxes = _to_device(np.array([c.box for c in crops], np.float64), images.device)
    grid = (-(-height * width // BLOCK), len(crops))
    crop_kernel[grid](
        images,
        numbers[:, 0].contiguous(),
        numbers[:, 1:].contiguous(),
        boxes,
        height,
        width,
        *images.stride(),
        channels,
        BLOCK,
    )


def _to_device(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], to: torch.device
) -> Tensor:
    given = torch.from_numpy(array)
    return given.pin_memory().to(to, non_blocking=True) if to.type == "cuda" else given


def _by_products(crop: Crop, height: int, width: int) -> Tensor:
    """(channels, height, width) in float32."""
    source, (left, top, right, bottom) = tensor_of(crop.source), crop.box
    first_y, over_y = _weights(top, bottom, source.shape[1], height, source.device)
    first_x, over_x = _weights(left, right, source.shape[2], width, source.device)
    rows = slice(first_y, first_y + over_y.shape[1])
    columns = slice(first_x, first_x + over_x.shape[1])
    made = over_y @ (source[:, rows, columns].to(torch.float32) @ over_x.T) / WHITE
    return made.flip(-1) if crop.mirrored else made


def _weights(
    low: float, high: float, size_in: int, size_out: int, device: torch.device
) -> tuple[int, Tensor]:
    """The first source pixel with a weight, and the weights (`size_out`, pixels from there on)."""
    scale = (high - low) / size_out
    reach = max(scale, 1.0)
    first = max(0, math.floor(low + 0.5 * scale - reach))
    last = min(size_in, math.ceil(high - 0.5 * scale + reach))
    centres = low + (torch.arange(size_out, dtype=torch.float64) + 0.5) * scale
    pixels = torch.arange(first, last, dtype=torch.float64) + 0.5
    weights = (1 - (pixels - centres[:, None]).abs() / reach).clamp_min(0)
    weights /= weights.sum(1, keepdim=True)
    return first, weights.to(torch.float32).to(device)
