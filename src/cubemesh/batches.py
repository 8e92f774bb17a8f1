"""Batches: the samples of one step on the host, as arrays or as JPEG files still to decode.

Data sources make them and frameworks take them; neither needs to know the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""
Pixels = NDArray[np.uint8]
"""(channels, height, width)."""
PADDING = -1
"""Label of a position that does not count."""


class Batch:
    """One minibatch on the host, as contiguous arrays; they may be reused once `place` returns.

    Of images: `Batch(images=…, labels=…)` with images (batch, channels, height, width) in float32,
    pixel values 0 to 1, and labels (batch,) in int64. Of tokens: `Batch(tokens, …, labels=…)`, one
    array for each input of the network, (batch, length) in int64, and labels (batch, length), of
    which `PADDING` does not count.
    """

    __slots__ = ("inputs", "labels")

    def __init__(self, *inputs: Array, labels: Array, images: Array | None = None) -> None:
        self.inputs = inputs if images is None else (images, *inputs)
        """What each input of the network takes, in its order."""
        self.labels = labels

    @property
    def images(self) -> Array:
        """The first input."""
        return self.inputs[0]

    @property
    def samples(self) -> int:
        """Samples in the batch."""
        return len(self.labels)

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays together: what a copy to the device moves."""
        return sum(array.nbytes for array in (*self.inputs, self.labels))


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An encoded JPEG, and its crop."""

    data: bytes
    size: tuple[int, int]
    """Width and height, by its header."""
    box: Box
    """What is cut out and brought to the network's size."""
    mirrored: bool
    whole: Callable[[], Pixels | None]
    """Decodes it on the host, in its own size and the network's channels; None where it cannot be
    used."""
    by_host: Callable[[], tuple[Pixels, int]]
    """For one that the device's decoder refused: pixels of the network's size, decoded on the host
    from it or from the image that takes its place, and the label of the one that was used."""
    progressive: bool = False
    """Whether it is progressive (several scans), which hardware decoders do not support."""


class EncodedBatch(Batch):
    """A batch of images still to be decoded: (batch,) objects in `images`.

    Each is an `EncodedImage`, or pixels of the network's size if the device's decoder does not
    support the file and the host has decoded it.
    """

    @property
    def rows(self) -> Sequence[EncodedImage | Pixels]:
        """The images, in their order."""
        rows: list[EncodedImage | Pixels] = self.images.tolist()
        return rows

    @property
    def size_bytes(self) -> int:
        """See `Batch.size_bytes`; the files' own bytes."""
        filled = (row for row in self.rows if row is not None)
        images = (len(r.data) if isinstance(r, EncodedImage) else r.nbytes for r in filled)
        return sum(images) + int(self.labels.nbytes)
