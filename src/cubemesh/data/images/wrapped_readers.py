"""Readers of encoded images that change where the bytes come from.

`UncachedReader` drops a file's pages from the page cache after it was read, as if the data set were
larger than the memory. `InMemoryReader` has the bytes in memory, so only decoding is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.files import EncodedImages
from cubemesh.data.page_cache import Extent, drop

MEMORY_BYTES = 256 << 20
"""Memory limit of `InMemoryReader`."""


class WrappedReader:
    """`EncodedImages` with the same images as `encoded`."""

    def __init__(self, encoded: EncodedImages) -> None:
        self._encoded = encoded
        self.labels: NDArray[np.int64] = encoded.labels
        self.classes = encoded.classes

    @property
    def ignored(self) -> Mapping[str, int]:
        """See `EncodedImages.ignored`."""
        return self._encoded.ignored

    def name(self, number: int) -> str:
        """See `EncodedImages.name`."""
        return self._encoded.name(number)

    def order(self, generator: np.random.Generator) -> Iterable[int]:
        """See `EncodedImages.order`."""
        return self._encoded.order(generator)

    def extent(self, number: int) -> Extent:
        """See `EncodedImages.extent`."""
        return self._encoded.extent(number)

    def identity(self) -> str:
        """See `EncodedImages.identity`."""
        return self._encoded.identity()


class UncachedReader(WrappedReader):
    """Drops the pages of all files when it is made, and those of a file after each read."""

    def __init__(self, encoded: EncodedImages) -> None:
        super().__init__(encoded)
        ends: dict[Path, int] = {}
        for number in range(len(encoded.labels)):
            extent = encoded.extent(number)
            ends[extent.path] = max(ends.get(extent.path, 0), extent.offset + extent.size)
        for path, end in ends.items():
            drop(Extent(path, 0, end))

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`."""
        data = self._encoded.read(number)
        drop(self.extent(number))
        return data


class InMemoryReader(WrappedReader):
    """The first images that fit `MEMORY_BYTES`, read when it is made."""

    def __init__(self, encoded: EncodedImages) -> None:
        super().__init__(encoded)
        self._data: list[bytes] = []
        size_bytes = 0
        for number in range(len(encoded.labels)):
            try:
                self._data.append(encoded.read(number))
            except Skipped:
                self._data.append(b"")
            size_bytes += len(self._data[-1])
            if size_bytes >= MEMORY_BYTES:
                break
        self.labels = encoded.labels[: len(self._data)]

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`."""
        return self._data[number]

    def order(self, generator: np.random.Generator) -> Iterable[int]:
        """A random order."""
        return generator.permutation(len(self._data))
