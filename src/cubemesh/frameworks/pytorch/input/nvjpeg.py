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
from typing import Any

import numpy as np
import torch

from cubemesh.batches import EncodedImage
from cubemesh.frameworks.pytorch.input.crops import LyingImage

NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so")
PLACES = (("nvidia", "*/lib/libnvjpeg.so*"), ("torchvision", "../torchvision.libs/libnvjpeg*"))
"""(package, where in its folder the library lies, if it brings one)."""
CIRCUITS, KERNELS = 3, 2
"""NVJPEG_BACKEND_HARDWARE, which takes a single scan; NVJPEG_BACKEND_GPU_HYBRID."""
GREY, COLOURS = 2, 5
"""NVJPEG_OUTPUT_Y; NVJPEG_OUTPUT_RGBI, the three of a pixel together."""
REFUSED = frozenset({3, 4, 6, 9, 10})
"""Statuses that may be an image's own fault: BAD_JPEG, JPEG_NOT_SUPPORTED, EXECUTION_FAILED,
IMPLEMENTATION_NOT_SUPPORTED, INCOMPLETE_BITSTREAM."""
NO_MEMORY = 5
"""NVJPEG_STATUS_ALLOCATOR_FAILURE."""
MOST_COMPONENTS = 4
"""NVJPEG_MAX_COMPONENT."""
APART = 256
"""Bytes between the beginnings of images, or a multiple."""


class _Image(ctypes.Structure):
    """nvjpegImage_t: where the channels of an image are written, and bytes from row to row."""

    _fields_ = (("channel", c_void_p * MOST_COMPONENTS), ("pitch", c_size_t * MOST_COMPONENTS))


Targets = ctypes.Array[_Image]
"""Where the images of a minibatch are written."""


class NvJpeg:
    """nvJPEG. ImportError where it is not there, or does not start."""

    name = "nvJPEG"

    def __init__(self, device: torch.device, channels: int) -> None:
        self._device, self._channels = device, channels
        libraries = list(_libraries())
        if not libraries:
            raise ImportError("nvJPEG is not installed")
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # there is a context
            pairs = ((_Backend(one, KERNELS), _Backend(one, CIRCUITS)) for one in libraries)
            found = next((pair for pair in pairs if pair[0].starts), None)
        if found is None:
            raise ImportError("nvJPEG does not start on this GPU")
        self._kernels, circuits = found
        self._circuits = circuits if circuits.starts else None

    def decode(self, images: Sequence[EncodedImage]) -> list[LyingImage | None]:
        """See `JpegDecoder`. One image that fails costs its minibatch, which is halved until that
        image is alone."""
        made: dict[int, LyingImage | None] = {}
        by_backend: dict[_Backend, list[int]] = {}
        for n, image in enumerate(images):
            backend = self._kernels
            if self._circuits is not None and not image.progressive:
                backend = self._circuits
            if self._kernels.size_of(image.data) == image.size:
                by_backend.setdefault(backend, []).append(n)
        with torch.cuda.device(self._device):
            for backend, numbers in by_backend.items():
                given = [images[n] for n in numbers]
                made |= zip(numbers, self._halved(backend, given), strict=True)
        return [made.get(n) for n in range(len(images))]

    def _halved(self, by: _Backend, images: Sequence[EncodedImage]) -> list[LyingImage | None]:
        if not images:
            return []
        made, targets = self._room(images)
        if self._decode_all(by, images, targets):
            return list(made)
        torch.cuda.current_stream().synchronize()  # what is queued still writes to that memory
        if len(images) == 1:
            return [None]
        middle = len(images) // 2
        return self._halved(by, images[:middle]) + self._halved(by, images[middle:])

    def _room(self, images: Sequence[EncodedImage]) -> tuple[list[LyingImage], Targets]:
        """For each, (channels, height, width) with channels last, in one piece of memory; and the
        same places as nvJPEG is told them."""
        channels = self._channels
        widths, heights = np.array([image.size for image in images], np.int64).T
        ends = np.cumsum(-(-widths * heights * channels // APART) * APART)
        memory = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self._device)
        places, start = np.concatenate(([0], ends[:-1])), memory.data_ptr()
        told = np.zeros((len(images), 2 * MOST_COMPONENTS), np.uint64)
        told[:, 0] = places + start
        told[:, MOST_COMPONENTS] = widths * channels
        rooms = [
            LyingImage(
                memory,
                place,
                start + place,
                (channels, height, width),
                (1, width * channels, channels),
            )
            for height, width, place in zip(
                heights.tolist(), widths.tolist(), places.tolist(), strict=True
            )
        ]
        return rooms, (_Image * len(images)).from_buffer(told.data)

    def _decode_all(self, by: _Backend, images: Sequence[EncodedImage], targets: Targets) -> bool:
        """Queue the decoding of all; whether none was refused."""
        return by.decode(
            [image.data for image in images],
            targets,
            COLOURS if self._channels == 3 else GREY,
            torch.cuda.current_stream().cuda_stream,
        )


class _Backend:
    """One of nvJPEG's ways to decode, and what it keeps from call to call."""

    def __init__(self, library: ctypes.CDLL, number: int) -> None:
        self._library = library
        self._handle, self._state = c_void_p(), c_void_p()
        self._widths, self._heights = (c_int * MOST_COMPONENTS)(), (c_int * MOST_COMPONENTS)()
        # One of each: who decodes is one thread at a time (`Placer.decode`).
        self._found = (byref(c_int()), byref(c_int()), self._widths, self._heights)
        """What a header says: components, how colours are halved, and sizes."""
        self._prepared: tuple[int, int] | None = None
        """Size of the minibatch, and output, that it is prepared for."""
        self.starts = not (
            library.nvjpegCreateEx(number, None, None, c_uint(0), byref(self._handle))
            or library.nvjpegJpegStateCreate(self._handle, byref(self._state))
        )

    def size_of(self, data: bytes) -> tuple[int, int] | None:
        """(width, height) as nvJPEG will write it; None for what it does not take."""
        ask = self._library.nvjpegGetImageInfo
        if self._refused(ask(self._handle, data, len(data), *self._found)):
            return None
        return self._widths[0], self._heights[0]

    def decode(self, data: Sequence[bytes], targets: Targets, output: int, stream: int) -> bool:
        """Queue a minibatch on a stream; whether none was refused. RuntimeError where that is no
        image's fault."""
        own = (self._handle, self._state)
        if self._prepared != (len(data), output):
            self._prepared = None
            if self._refused(
                self._library.nvjpegDecodeBatchedInitialize(*own, len(data), 1, output)
            ):
                return False
            self._prepared = (len(data), output)
        given = (c_char_p * len(data))(*data)
        lengths = (c_size_t * len(data))(*map(len, data))
        status = self._library.nvjpegDecodeBatched(*own, given, lengths, targets, c_void_p(stream))
        if status:
            self._prepared = None  # what is prepared for a call does not outlive its failure
        return not self._refused(status)

    @staticmethod
    def _refused(status: int) -> bool:
        if status == NO_MEMORY:
            raise RuntimeError("nvJPEG: out of memory")
        if status and status not in REFUSED:
            raise RuntimeError(f"nvJPEG failed with status {status} (nvjpegStatus_t in nvjpeg.h)")
        return bool(status)

    def __del__(self) -> None:
        if self._state:
            self._library.nvjpegJpegStateDestroy(self._state)
        if self._handle:
            self._library.nvjpegDestroy(self._handle)


def _libraries() -> Iterator[ctypes.CDLL]:
    """Those that load, their calls declared."""
    for name in (*NAMES, *_brought()):
        try:
            library: Any = ctypes.CDLL(str(name))
        except OSError:
            continue
        # Microseconds, and for every image: to let go of Python's lock would take as long.
        locked = ctypes.PyDLL(library._name, handle=library._handle)
        library.nvjpegGetImageInfo = locked.nvjpegGetImageInfo
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
        yield library


def _brought() -> Iterator[Path]:
    """Those that Python packages brought along."""
    for package, pattern in PLACES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from sorted(Path(folder).glob(pattern), reverse=True)
