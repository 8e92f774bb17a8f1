"""How does a minibatch come to the device, in the type and layout that a program reads?

    arrays      pinned memory ──▶ copy, without waiting ──▶ type, layout
    encoded     the device's decoder (`jpeg.py`) ──▶ crop, resize, mirror, 0 to 1, type and layout
                in one kernel (`crops.py`) ──▶ the program's own copy, where it replays a graph

Encoded images are decoded on a stream of their own, so that this goes on beside a step; what the
decoder refuses, or finds to be of another size than the header said, comes from the host. Where
every layer that reads the images computes in 16 bits, they are made in 16 bits.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from cubemesh.batches import Array, Batch, EncodedBatch, EncodedImage, Pixels
from cubemesh.frameworks.api.program import BuildRequest
from cubemesh.frameworks.pytorch.input.crops import WHITE, Crop, crop_into
from cubemesh.frameworks.pytorch.input.jpeg import JpegDecoder, open_decoder
from cubemesh.frameworks.pytorch.runtime import ARRAY_TYPES, MEMORY_FORMATS, NARROW_TYPES
from cubemesh.networks.layers import Convolution, Linear

Placed = tuple[Tensor, ...]
"""Images, or what else the network's inputs are, then labels, on the device."""


class Decoded(Batch):
    """A minibatch that was decoded on the device: `placed` lies there."""

    __slots__ = ("placed",)

    def __init__(self, placed: Placed, labels: Array) -> None:
        super().__init__(labels=labels)
        self.placed = placed


class Placer:
    """Places minibatches for one program."""

    def __init__(self, request: BuildRequest) -> None:
        """Unsupported where images are to be decoded and nothing is there that does."""
        settings = request.program
        self.device = torch.device(request.device)
        self._dtype = ARRAY_TYPES.get(settings.precision, torch.float32)
        self._memory_format = MEMORY_FORMATS[settings.layout]
        self._converts = settings.precision in ARRAY_TYPES or settings.layout == "nhwc"
        self._shape = request.network.inputs[0].shape
        self._image_type = narrow_types(request)[0] or self._dtype
        self._lock = threading.Lock()  # one evaluates while another decodes ahead
        self._decoder: JpegDecoder | None = None
        self._stream: torch.cuda.Stream | None = None
        if settings.decode_location == "device":
            self._decoder = open_decoder(self.device, self._shape[0])
            if self.device.type == "cuda":  # first where a step leaves room: it has little to do
                self._stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]

    def place(self, batch: Batch) -> Placed:
        """See `Program.place`."""
        if isinstance(batch, EncodedBatch):
            batch = self.decode(batch)
        if isinstance(batch, Decoded):
            for array in batch.placed:
                if array.is_cuda:  # its memory is the other stream's, which must not reuse it yet
                    array.record_stream(torch.cuda.current_stream(self.device))
            return batch.placed
        return tuple(map(self.array, (*batch.inputs, batch.labels)))

    def array(self, array: Array) -> Tensor:
        """Copy to the device. A GPU is sent the array from pinned memory, without waiting: the
        allocator of pinned memory gives no buffer out again before the GPU has read it."""
        given = torch.from_numpy(array)
        is_image = given.dim() == 4
        layout = self._memory_format if is_image else torch.contiguous_format
        dtype = self._dtype if given.is_floating_point() else given.dtype
        if self.device.type != "cuda":
            return given.to(dtype, memory_format=layout, copy=True)
        placed = given.pin_memory().to(self.device, non_blocking=True)
        return placed.to(dtype, memory_format=layout) if self._converts else placed

    def decode(self, batch: EncodedBatch) -> Decoded:
        """See `SupportsDecoding`. Returns when the device is done with it."""
        with self._lock, self._beside():
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
            del sources  # now that nothing reads them
        return Decoded((images, labels), batch.labels.copy())

    def _beside(self) -> AbstractContextManager[object]:
        """Within it work goes to the stream that decodes."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _fill(self, images: Tensor, batch: EncodedBatch) -> list[Crop]:
        """Queue all that makes `images`; what must be kept until it is done."""
        assert self._decoder is not None, "asked for by the settings"
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
        """Rows that the host has decoded; they travel as bytes."""
        if pixels:
            made = self.array(np.stack(list(pixels.values()))).to(torch.float32) / WHITE
            images[torch.tensor(list(pixels), device=self.device)] = made.to(self._image_type)


def narrow_types(request: BuildRequest) -> tuple[torch.dtype | None, ...]:
    """For each input of the network the 16-bit type of the program, where every layer that reads it
    would make it narrow anyway; None where the input keeps its own. Layers of a precision of their
    own make none narrow."""
    program = request.program
    narrow = None if program.precision_of else NARROW_TYPES.get(program.precision)
    readers = {
        i.name: [n.layer for n in request.network.nodes if i.name in n.inputs]
        for i in request.network.inputs
    }
    return tuple(
        narrow if all(isinstance(layer, (Convolution, Linear)) for layer in layers) else None
        for layers in readers.values()
    )
