"""nvJPEG itself, called without a library between: a minibatch in one call, on the current stream.

Work on the stream that decodes comes first wherever the GPU has room (`placing.py`). Libraries that
call nvJPEG for us queue it on streams of their own, where hundreds of short kernels stand behind
those of a training step, one after the other.

Declared after nvjpeg.h of CUDA 12 and 13, whose names stand beside the numbers.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from cubemesh.data.base import EncodedImage

NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so")
PLACES = (("nvidia", "*/lib/libnvjpeg.so*"), ("torchvision", "../torchvision.libs/libnvjpeg*"))
"""(package, where in its folder the library lies, if it brings one)."""
CIRCUITS, KERNELS = 3, 2
"""NVJPEG_BACKEND_HARDWARE, NVJPEG_BACKEND_GPU_HYBRID: what a GPU without circuits has."""
GREY, COLOURS = 2, 5
"""NVJPEG_OUTPUT_Y; NVJPEG_OUTPUT_RGBI, the three of a pixel together."""
MOST_COMPONENTS = 4
"""NVJPEG_MAX_COMPONENT."""
APART = 256
"""Bytes between the beginnings of images, or a multiple."""


class _Image(ctypes.Structure):
    """nvjpegImage_t: where the channels of an image are written, and bytes from row to row."""

    _fields_ = (("channel", c_void_p * MOST_COMPONENTS), ("pitch", c_size_t * MOST_COMPONENTS))


class NvJpeg:
    """nvJPEG. ImportError where it is not there."""

    name = "nvJPEG"

    def __init__(self, device: torch.device, channels: int) -> None:
        self._library = _load()
        self._device, self._channels = device, channels
        self._handle, self._state = c_void_p(), c_void_p()
        self._size = 0
        """Of the minibatch that is prepared for."""
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # there is a context
            for backend in (CIRCUITS, KERNELS):
                args = (backend, None, None, c_uint(0), byref(self._handle))
                if not self._library.nvjpegCreateEx(*args):
                    break
            else:
                raise ImportError("nvJPEG does not start on this GPU")
            if self._library.nvjpegJpegStateCreate(self._handle, byref(self._state)):
                raise ImportError("nvJPEG does not start on this GPU")

    def decode(self, images: Sequence[EncodedImage]) -> list[Tensor | None]:
        """See `JpegDecoder`. One image that fails costs its minibatch, which is halved until that
        image is alone."""
        taken = [image if self._size_of(image.data) == image.size else None for image in images]
        with torch.cuda.device(self._device):
            made = iter(self._halved([image for image in taken if image is not None]))
            return [None if image is None else next(made) for image in taken]

    def _size_of(self, data: bytes) -> tuple[int, int] | None:
        """(width, height) as nvJPEG will write it; None for what it does not take."""
        components, sampling = c_int(), c_int()
        widths, heights = (c_int * MOST_COMPONENTS)(), (c_int * MOST_COMPONENTS)()
        args = (byref(components), byref(sampling), widths, heights)
        if self._library.nvjpegGetImageInfo(self._handle, data, c_size_t(len(data)), *args):
            return None
        return widths[0], heights[0]

    def _halved(self, images: Sequence[EncodedImage]) -> list[Tensor | None]:
        if not images:
            return []
        made = self._all(images)
        if made is not None:
            return list(made)
        if len(images) == 1:
            return [None]
        middle = len(images) // 2
        return self._halved(images[:middle]) + self._halved(images[middle:])

    def _all(self, images: Sequence[EncodedImage]) -> list[Tensor] | None:
        """Queue the decoding of all; None where one cannot be."""
        output = COLOURS if self._channels == 3 else GREY
        if self._size != len(images):
            state = (self._handle, self._state)
            if self._library.nvjpegDecodeBatchedInitialize(*state, len(images), 1, output):
                return None
            self._size = len(images)
        shapes = [(image.size[1], image.size[0], self._channels) for image in images]
        places = [0]
        for height, width, channels in shapes:
            places.append(places[-1] + -(-height * width * channels // APART) * APART)
        memory = torch.empty(places[-1], dtype=torch.uint8, device=self._device)
        targets = (_Image * len(images))()
        for target, place, (_, width, channels) in zip(targets, places, shapes, strict=False):
            target.channel[0] = memory.data_ptr() + place
            target.pitch[0] = width * channels
        data = (c_char_p * len(images))(*[image.data for image in images])
        lengths = (c_size_t * len(images))(*[len(image.data) for image in images])
        stream = c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        args = (self._handle, self._state, data, lengths, targets, stream)
        if self._library.nvjpegDecodeBatched(*args):
            self._size = 0  # what is prepared for a call does not outlive its failure
            return None
        return [
            memory.as_strided(shape, (shape[1] * shape[2], shape[2], 1), place).permute(2, 0, 1)
            for place, shape in zip(places, shapes, strict=False)
        ]

    def __del__(self) -> None:
        library = getattr(self, "_library", None)
        if library is not None and self._state:
            library.nvjpegJpegStateDestroy(self._state)
        if library is not None and self._handle:
            library.nvjpegDestroy(self._handle)


def _load() -> ctypes.CDLL:
    """The library, its calls declared."""
    for name in (*NAMES, *_brought()):
        try:
            library = ctypes.CDLL(str(name))
        except OSError:
            continue
        library.nvjpegGetImageInfo.argtypes = (
            c_void_p, c_char_p, c_size_t, POINTER(c_int), POINTER(c_int), POINTER(c_int),
            POINTER(c_int),
        )  # fmt: skip
        library.nvjpegCreateEx.argtypes = (c_int, c_void_p, c_void_p, c_uint, POINTER(c_void_p))
        library.nvjpegJpegStateCreate.argtypes = (c_void_p, POINTER(c_void_p))
        library.nvjpegDecodeBatchedInitialize.argtypes = (c_void_p, c_void_p, c_int, c_int, c_int)
        library.nvjpegDecodeBatched.argtypes = (
            c_void_p, c_void_p, POINTER(c_char_p), POINTER(c_size_t), POINTER(_Image), c_void_p,
        )  # fmt: skip
        library.nvjpegJpegStateDestroy.argtypes = library.nvjpegDestroy.argtypes = (c_void_p,)
        return library
    raise ImportError("nvJPEG is not installed")


def _brought() -> Iterator[Path]:
    """Those that Python packages brought along."""
    for package, pattern in PLACES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from sorted(Path(folder).glob(pattern), reverse=True)
