"""nvJPEG by ctypes: decode a minibatch of JPEGs in one call, on the current stream.

On the GPU's JPEG hardware where it has any (A100, H100, H200). The stream that decodes has the
higher priority (`host_to_device.py`); libraries that wrap nvJPEG use streams of their own, where
hundreds of short kernels queue behind those of a training step.

Signatures and constants as in nvjpeg.h of CUDA 12 and 13.
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
from cubemesh.frameworks.pytorch.input.crops import DeviceImage

NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so")
PACKAGES = (("nvidia", "*/lib/libnvjpeg.so*"), ("torchvision", "../torchvision.libs/libnvjpeg*"))
"""(package that may contain the library, its place in the package)."""
HARDWARE, HYBRID = 3, 2
"""NVJPEG_BACKEND_HARDWARE, for a single scan only; NVJPEG_BACKEND_GPU_HYBRID."""
GREY, RGB = 2, 5
"""NVJPEG_OUTPUT_Y; NVJPEG_OUTPUT_RGBI, interleaved."""
REFUSED = frozenset({3, 4, 6, 9, 10})
"""Statuses that an image may cause: BAD_JPEG, JPEG_NOT_SUPPORTED, EXECUTION_FAILED,
IMPLEMENTATION_NOT_SUPPORTED, INCOMPLETE_BITSTREAM."""
NO_MEMORY = 5
"""NVJPEG_STATUS_ALLOCATOR_FAILURE."""
MOST_COMPONENTS = 4
"""NVJPEG_MAX_COMPONENT."""
ALIGNMENT = 256
"""Of the first byte of each image."""


class _Image(ctypes.Structure):
    """nvjpegImage_t: pointers to the channels of an image, and their row strides in bytes."""

    _fields_ = (("channel", c_void_p * MOST_COMPONENTS), ("pitch", c_size_t * MOST_COMPONENTS))


Outputs = ctypes.Array[_Image]
"""The output buffers of a minibatch."""


class NvJpeg:
    """nvJPEG. ImportError where it is not installed or does not start."""

    name = "nvJPEG"

    def __init__(self, device: torch.device, channels: int) -> None:
        self._device, self._channels = device, channels
        libraries = list(_libraries())
        if not libraries:
            raise ImportError("nvJPEG is not installed")
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # creates a context
            pairs = ((_Backend(one, HYBRID), _Backend(one, HARDWARE)) for one in libraries)
            found = next((pair for pair in pairs if pair[0].starts), None)
        if found is None:
            raise ImportError("nvJPEG does not start on this GPU")
        self._hybrid, hardware = found
        self._hardware = hardware if hardware.starts else None

    def decode(self, images: Sequence[EncodedImage]) -> list[DeviceImage | None]:
        """See `JpegDecoder`. One image that fails fails the call, which is bisected until that
        image is the only one."""
        made: dict[int, DeviceImage | None] = {}
        by_backend: dict[_Backend, list[int]] = {}
        for n, image in enumerate(images):
            backend = self._hybrid
            if self._hardware is not None and not image.progressive:
                backend = self._hardware
            if self._hybrid.size_of(image.data) == image.size:
                by_backend.setdefault(backend, []).append(n)
        with torch.cuda.device(self._device):
            for backend, numbers in by_backend.items():
                given = [images[n] for n in numbers]
                made |= zip(numbers, self._bisected(backend, given), strict=True)
        return [made.get(n) for n in range(len(images))]

    def _bisected(self, by: _Backend, images: Sequence[EncodedImage]) -> list[DeviceImage | None]:
        if not images:
            return []
        decoded, outputs = self._allocate(images)
        if self._decode_all(by, images, outputs):
            return list(decoded)
        torch.cuda.current_stream().synchronize()  # queued work still writes to that memory
        if len(images) == 1:
            return [None]
        middle = len(images) // 2
        return self._bisected(by, images[:middle]) + self._bisected(by, images[middle:])

    def _allocate(self, images: Sequence[EncodedImage]) -> tuple[list[DeviceImage], Outputs]:
        """For each, (channels, height, width) with channels last, in one array; and the same as
        nvJPEG's output buffers."""
        channels = self._channels
        widths, heights = np.array([image.size for image in images], np.int64).T
        ends = np.cumsum(-(-widths * heights * channels // ALIGNMENT) * ALIGNMENT)
        memory = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self._device)
        places, start = np.concatenate(([0], ends[:-1])), memory.data_ptr()
        table = np.zeros((len(images), 2 * MOST_COMPONENTS), np.uint64)
        table[:, 0] = places + start
        table[:, MOST_COMPONENTS] = widths * channels
        decoded = [
            DeviceImage(
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
        return decoded, (_Image * len(images)).from_buffer(table.data)

    def _decode_all(self, by: _Backend, images: Sequence[EncodedImage], outputs: Outputs) -> bool:
        """Queue the decoding of all; False if any was refused."""
        return by.decode(
            [image.data for image in images],
            outputs,
            RGB if self._channels == 3 else GREY,
            torch.cuda.current_stream().cuda_stream,
        )


class _Backend:
    """One of nvJPEG's backends, and its state."""

    def __init__(self, library: ctypes.CDLL, number: int) -> None:
        self._library = library
        self._handle, self._state = c_void_p(), c_void_p()
        self._widths, self._heights = (c_int * MOST_COMPONENTS)(), (c_int * MOST_COMPONENTS)()
        # Shared by all calls: one thread decodes at a time (`HostToDevice.decode`).
        self._info = (byref(c_int()), byref(c_int()), self._widths, self._heights)
        """Of a header: components, chroma subsampling, widths and heights."""
        self._prepared: tuple[int, int] | None = None
        """Batch size and output format that it is initialized for."""
        self.starts = not (
            library.nvjpegCreateEx(number, None, None, c_uint(0), byref(self._handle))
            or library.nvjpegJpegStateCreate(self._handle, byref(self._state))
        )

    def size_of(self, data: bytes) -> tuple[int, int] | None:
        """(width, height) of the output; None if it is refused."""
        info = self._library.nvjpegGetImageInfo
        if self._refused(info(self._handle, data, len(data), *self._info)):
            return None
        return self._widths[0], self._heights[0]

    def decode(self, data: Sequence[bytes], outputs: Outputs, output: int, stream: int) -> bool:
        """Queue a minibatch on a stream; False if any was refused. RuntimeError for any other
        failure."""
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
        status = self._library.nvjpegDecodeBatched(*own, given, lengths, outputs, c_void_p(stream))
        if status:
            self._prepared = None  # a failed call leaves the state undefined
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
    """Those that load, with their functions declared."""
    for name in (*NAMES, *_bundled()):
        try:
            library: Any = ctypes.CDLL(str(name))
        except OSError:
            continue
        # Microseconds per image: releasing the GIL would take as long.
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


def _bundled() -> Iterator[Path]:
    """The files that Python packages contain."""
    for package, pattern in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from sorted(Path(folder).glob(pattern), reverse=True)
