"""Transfer of minibatches to the device, in the type and layout that a program reads.

    arrays      pinned memory ──▶ asynchronous copy ──▶ type, layout
    encoded     the device's decoder (`jpeg.py`) ──▶ crop, resize, mirror, 0 to 1, type and layout
                in one kernel (`crops.py`) ──▶ the static input of a captured step

Encoded images are decoded on a stream of their own, concurrently with a step; images that the
decoder refuses, or whose size differs from the header, are decoded by the host. Images are 16-bit
if every layer that reads them computes in 16 bits.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from cubemesh.batches import Array, Batch, EncodedBatch, EncodedImage, Pixels
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch.input.crops import WHITE, Crop, crop_into
from cubemesh.frameworks.pytorch.input.jpeg import JpegDecoder, open_decoder
from cubemesh.frameworks.pytorch.runtime import ARRAY_TYPES, AUTOCAST_TYPES, MEMORY_FORMATS
from cubemesh.networks.layers import Convolution, Linear
from cubemesh.schema.work import Infer, InferLoad

Placed = tuple[Tensor, ...]
"""The network's inputs, then labels, on the device."""


def array_type(request: BuildRequest) -> torch.dtype:
    """Type of the program's arrays: in 16-bit training they are float32, under autocast."""
    precision = request.program.precision
    if isinstance(request.work, Infer | InferLoad) and precision in AUTOCAST_TYPES:
        return AUTOCAST_TYPES[precision]
    return ARRAY_TYPES.get(precision, torch.float32)


class DecodedBatch(Batch):
    """A minibatch decoded on the device: `placed` is resident there."""

    __slots__ = ("placed",)

    def __init__(self, placed: Placed, labels: Array) -> None:
        super().__init__(labels=labels)
        self.placed = placed


class HostToDevice:
    """Transfers minibatches for one program."""

    def __init__(self, request: BuildRequest) -> None:
        """Unsupported where images must be decoded and no decoder is installed."""
        settings = request.program
        self.device = torch.device(request.device)
        self._dtype = array_type(request)
        self._memory_format = MEMORY_FORMATS[settings.layout]
        self._converts = self._dtype != torch.float32 or settings.layout == "nhwc"
        self._shape = request.network.inputs[0].shape
        self._image_type = low_precision_types(request)[0] or self._dtype
        self._lock = threading.Lock()  # evaluation and prefetching decode concurrently
        self._decoder: JpegDecoder | None = None
        self._stream: torch.cuda.Stream | None = None
        if settings.decode_location == "device":
            self._decoder = open_decoder(self.device, self._shape[0])
            if self.device.type == "cuda":  # before the step's kernels
                self._stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]

    def place(self, batch: Batch) -> Placed:
        """See `Program.place`."""
        if isinstance(batch, EncodedBatch):
            batch = self.decode(batch)
        if isinstance(batch, DecodedBatch):
            for array in batch.placed:
                if array.is_cuda:  # allocated on the other stream, which must not reuse it yet
                    array.record_stream(torch.cuda.current_stream(self.device))
            return batch.placed
        return tuple(map(self.array, (*batch.inputs, batch.labels)))

    def array(self, array: Array) -> Tensor:
        """Copy to the device; to a GPU asynchronously, from pinned memory: its allocator reuses no
        buffer before the GPU has read it."""
        given = torch.from_numpy(array)
        is_image = given.dim() == 4
        layout = self._memory_format if is_image else torch.contiguous_format
        dtype = self._dtype if given.is_floating_point() else given.dtype
        if self.device.type != "cuda":
            return given.to(dtype, memory_format=layout, copy=True)
        placed = given.pin_memory().to(self.device, non_blocking=True)
        return placed.to(dtype, memory_format=layout) if self._converts else placed

    def decode(self, batch: EncodedBatch) -> DecodedBatch:
        """See `SupportsDecoding`. Returns when the device is done with it."""
        with self._lock, self._on_stream():
            images = torch.empty(
                (batch.samples, *self._shape),
                dtype=self._image_type,
                device=self.device,
                memory_format=self._memory_format,
            )
            sources = self._fill(images, batch)
            labels = self.array(batch.labels)
            if self._stream is not None:
                self._stream.synchronize()
            del sources  # no kernel reads them now
        return DecodedBatch((images, labels), batch.labels.copy())

    def _on_stream(self) -> AbstractContextManager[object]:
        """Queue work on the stream that decodes."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _fill(self, images: Tensor, batch: EncodedBatch) -> list[Crop]:
        """Queue all work that fills `images`; returns what must live until it is done."""
        assert self._decoder is not None, "created for this setting"
        rows = batch.rows
        encoded = {n: row for n, row in enumerate(rows) if isinstance(row, EncodedImage)}
        pixels = {n: row for n, row in enumerate(rows) if not isinstance(row, EncodedImage)}
        crops = []
        decoded = self._decoder.decode(list(encoded.values()))
        for (n, image), source in zip(encoded.items(), decoded, strict=True):
            if source is None or (source.shape[2], source.shape[1]) != image.size:
                pixels[n], batch.labels[n] = image.by_host()
                batch.images[n] = pixels[n]
            else:
                crops.append(Crop(source, image.box, image.mirrored, n))
        crop_into(images, crops)
        self._fill_pixels(images, pixels)
        return crops

    def _fill_pixels(self, images: Tensor, pixels: Mapping[int, Pixels]) -> None:
        """Rows decoded by the host, transferred as uint8."""
        if pixels:
            pixels_on_device = self.array(np.stack(list(pixels.values()))).to(torch.float32) / WHITE
            images[torch.tensor(list(pixels), device=self.device)] = pixels_on_device.to(
                self._image_type
            )


def low_precision_types(request: BuildRequest) -> tuple[torch.dtype | None, ...]:
    """For each input of the network the 16-bit type of the program, if every layer that reads it
    casts it to that type; else None. With another precision by layer than fp8, None for all."""
    program = request.program
    wide = any(not line.endswith("=fp8") for line in program.precision_of)
    low_precision = None if wide else AUTOCAST_TYPES.get(program.precision)
    readers = {
        i.name: [n.layer for n in request.network.nodes if i.name in n.inputs]
        for i in request.network.inputs
    }
    return tuple(
        low_precision if all(isinstance(layer, (Convolution, Linear)) for layer in layers) else None
        for layers in readers.values()
    )
