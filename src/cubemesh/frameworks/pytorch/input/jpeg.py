"""JPEG decoder of a device: nvJPEG on a GPU (`nvjpeg.py`), Pillow on a CPU.

A decoder receives the JPEGs that `data/images/jpeg_header.py` accepts, and may refuse any: the host
decodes those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cubemesh.batches import EncodedImage
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch.input.crops import Bitmap
from cubemesh.frameworks.pytorch.input.nvjpeg import NvJpeg

INSTALL = (
    "Decoding images on a GPU needs nvJPEG: pip install nvidia-nvjpeg (nvidia-nvjpeg-cu12 for "
    "CUDA 12), or set decode_location=host."
)
CHECKED = 8
"""Valid JPEGs of which at least one must be decoded."""


class JpegDecoder(Protocol):
    """Decodes minibatches."""

    name: str
    """Of the library."""

    def decode(self, images: Sequence[EncodedImage]) -> Sequence[Bitmap | None]:
        """Each as (channels, height, width) in uint8 on the device, of any strides; None for one
        that was refused. Queued on the current stream; results of an earlier call that were dropped
        must not be in use on another stream."""


def open_decoder(device: torch.device, channels: int) -> JpegDecoder:
    """The decoder of a device. Unsupported, with what to install, where a GPU has none."""
    if device.type == "cpu":
        return HostDecoder()
    try:
        return CheckedDecoder(NvJpeg(device, channels))
    except ImportError as error:
        raise Unsupported(f"{error}. {INSTALL}") from error


class CheckedDecoder:
    """A decoder that raises Unsupported if it decodes nothing at all, instead of leaving all images
    to the host."""

    def __init__(self, decoder: JpegDecoder) -> None:
        self.name = decoder.name
        self._decoder, self._works = decoder, False

    def decode(self, images: Sequence[EncodedImage]) -> Sequence[Bitmap | None]:
        """See `JpegDecoder`."""
        decoded = self._decoder.decode(images)
        self._works = self._works or any(one is not None for one in decoded)
        if not self._works and len(decoded) >= CHECKED:
            raise Unsupported(
                f"{self.name} decoded 0 of {len(decoded)} JPEGs: it does not support these files, "
                "or the library does not match the driver. Set decode_location=host."
            )
        return decoded


class HostDecoder:
    """Pillow, where the device is the host."""

    name = "Pillow"

    def decode(self, images: Sequence[EncodedImage]) -> list[Tensor | None]:
        """See `JpegDecoder`."""
        decoded = (image.whole() for image in images)
        return [None if pixels is None else torch.from_numpy(pixels) for pixels in decoded]
