"""Who decodes JPEGs on this device? Of libraries that may be there, the first; on a CPU, the host.

    nvJPEG          NVIDIA's, called directly (`nvjpeg.py`): on the GPU's own JPEG circuits where it
                    has them (A100, H100, H200), on the stream that decodes
    nvImageCodec    NVIDIA's as well, on the same circuits; what fails is None, the rest of the
                    minibatch comes
    TorchVision     nvJPEG again, on a stream of its own; one image that fails costs its minibatch,
                    which is halved until that image is alone

All are optional. A decoder takes JPEGs that `jpeg_header.py` calls plain, and may refuse any: the
host decodes it then.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from cubemesh.batches import EncodedImage
from cubemesh.frameworks.api.program import Unsupported
from cubemesh.frameworks.pytorch.input.crops import Bitmap
from cubemesh.frameworks.pytorch.input.nvjpeg import NvJpeg
from cubemesh.frameworks.pytorch.runtime import is_out_of_memory

INSTALL = (
    "To decode images on a GPU it needs nvJPEG (pip install nvidia-nvjpeg, or nvidia-nvjpeg-cu12 "
    "for CUDA 12), nvImageCodec (nvidia-nvimgcodec-cu13[nvjpeg] or -cu12) or TorchVision "
    "(torchvision). Or set decode_location=host."
)

PROOF = 8
"""Plain JPEGs of which one at least must be good."""


class JpegDecoder(Protocol):
    """Decodes minibatches."""

    name: str
    """Of the library."""

    def decode(self, images: Sequence[EncodedImage]) -> Sequence[Bitmap | None]:
        """Each as (channels, height, width) in uint8 on the device, of any strides; None for one
        that was refused. Work queued on the current stream may follow; nothing else on the device
        may still read what an earlier call has returned and was dropped."""


def open_decoder(device: torch.device, channels: int) -> JpegDecoder:
    """The first that is there; Unsupported, with what to install, where a GPU has none."""
    if device.type == "cpu":
        return HostDecoder()
    for make in (NvJpeg, NvImageCodec, TorchVision):
        try:
            return Unproved(make(device, channels))
        except ImportError:
            continue
    raise Unsupported(INSTALL)


class Unproved:
    """A decoder that has yet to prove that it decodes at all: libraries may be installed without
    the nvJPEG that they call."""

    def __init__(self, decoder: JpegDecoder) -> None:
        self.name = decoder.name
        self._decoder, self._proved = decoder, False

    def decode(self, images: Sequence[EncodedImage]) -> Sequence[Bitmap | None]:
        """See `JpegDecoder`. Unsupported where nothing comes of so many that some must be good."""
        made = self._decoder.decode(images)
        self._proved = self._proved or any(one is not None for one in made)
        if not self._proved and len(made) >= PROOF:
            raise Unsupported(
                f"{self.name} decoded none of {len(made)} JPEGs: it does not take files like these "
                "or lacks nvJPEG (pip install nvidia-nvjpeg, for CUDA 12 nvidia-nvjpeg-cu12). "
                "Set decode_location=host to decode them there."
            )
        return made


class HostDecoder:
    """The host's own decoder, where the device is the host."""

    name = "the host's decoder"

    def decode(self, images: Sequence[EncodedImage]) -> list[Tensor | None]:
        """See `JpegDecoder`."""
        whole = (image.whole() for image in images)
        return [None if pixels is None else torch.from_numpy(pixels) for pixels in whole]


class NvImageCodec:
    """`nvidia.nvimgcodec`. ImportError where it is not installed."""

    name = "nvImageCodec"

    def __init__(self, device: torch.device, channels: int, backends: Any = None) -> None:
        codec = importlib.import_module("nvidia.nvimgcodec")
        self._stream_of = codec.CodeStream
        self._decoder = codec.Decoder(device_id=device.index or 0, backends=backends)
        colours = codec.ColorSpec.SRGB if channels == 3 else codec.ColorSpec.GRAY
        self._params = codec.DecodeParams(color_spec=colours, apply_exif_orientation=False)
        self._stream: Callable[[], int] = lambda: torch.cuda.current_stream(device).cuda_stream

    def decode(self, images: Sequence[EncodedImage]) -> list[Tensor | None]:
        """See `JpegDecoder`."""
        streams = [self._parsed(image.data) for image in images]
        given = [stream for stream in streams if stream is not None]
        made = iter(self._decoder.decode(given, params=self._params, cuda_stream=self._stream()))
        return [None if stream is None else _channels_first(next(made)) for stream in streams]

    def _parsed(self, data: bytes) -> Any | None:
        try:
            return self._stream_of(data)
        except RuntimeError:  # it finds no image in it
            return None


def _channels_first(image: Any | None) -> Tensor | None:
    """A tensor in the memory of one of nvImageCodec's, which has channels last."""
    return None if image is None else from_dlpack(image).permute(2, 0, 1)


class TorchVision:
    """`torchvision.io.decode_jpeg`. ImportError where it is not installed."""

    name = "TorchVision"

    def __init__(self, device: torch.device, channels: int) -> None:
        io = importlib.import_module("torchvision.io")
        self._decode = io.decode_jpeg
        self._mode = io.ImageReadMode.RGB if channels == 3 else io.ImageReadMode.GRAY
        self._device = device

    def decode(self, images: Sequence[EncodedImage]) -> list[Tensor | None]:
        """See `JpegDecoder`. The library decodes on a stream of its own and returns when that is
        done, but writes into memory that this stream may not have done with: it is waited for."""
        torch.cuda.current_stream(self._device).synchronize()
        given = [torch.from_numpy(np.frombuffer(image.data, np.uint8)) for image in images]
        return halved(given, self._all)

    def _all(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        made: list[Tensor] = self._decode(list(given), mode=self._mode, device=self._device)
        return made


def halved(
    given: Sequence[Tensor], decode: Callable[[Sequence[Tensor]], Sequence[Tensor]]
) -> list[Tensor | None]:
    """What `decode` makes of all that is given; where it raises, of one half and of the other, so
    that None stands for those alone that cannot be decoded. A refusal of memory is raised."""
    if not given:
        return []
    try:
        return list(decode(given))
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        if len(given) == 1:
            return [None]
    middle = len(given) // 2
    return halved(given[:middle], decode) + halved(given[middle:], decode)
