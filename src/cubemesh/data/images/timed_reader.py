"""Readers of encoded images that change where the bytes come from.

`UncachedReader` drops a file's pages from the page cache as soon as it was read, as if the set were
larger than the memory. `InMemoryReader` has the bytes in memory, so only decoding is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.files import EncodedImages
from cubemesh.data.page_cache import Extent, drop

MEMORY_BYTES = 256 << 20
"""Most that encoded images take which are kept in memory."""


class WrappedReader:
    """`EncodedImages` like those given."""

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
    """Encoded images whose pages are dropped from memory now, and as soon as they were read."""

    def __init__(self, encoded: EncodedImages) -> None:
        super().__init__(encoded)
        for number in range(len(encoded.labels)):
            drop(encoded.extent(number))

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`."""
        data = self._encoded.read(number)
        drop(self.extent(number))
        return data


class InMemoryReader(WrappedReader):
    """Encoded images whose bytes are read now: the first that fit `MEMORY_BYTES` stand for all."""

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
        """Any order is as good as any other."""
        return generator.permutation(len(self._data))
