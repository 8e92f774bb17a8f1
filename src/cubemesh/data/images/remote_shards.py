"""Remote shards: the images of a prepared set at a URL, each read as a byte range of its shard.

The manifest and the indexes are read once; an image is one request on a connection that stays open,
and is compared with the checksum of the index. So any number of ranks and threads read only what
they train on, and `stage_folder` copies it to a local disk in the background (`local_cache.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.files import MAX_FILE_BYTES
from cubemesh.data.images.prepared_set import (
    MANIFEST,
    MANIFEST_BYTES,
    PreparedShards,
    Shard,
    read_manifest,
)
from cubemesh.data.page_cache import NO_FILE, Extent
from cubemesh.data.remote.folder import RemoteFolder
from cubemesh.data.source import Split

READERS = 4
"""Threads that read the indexes."""


class RemoteShards(PreparedShards):
    """The images of one split of a set at a URL; see `EncodedImages`."""

    def __init__(self, folder: RemoteFolder, split: Split) -> None:
        """DataError where the manifest or an index cannot be read, or is damaged."""
        manifest = read_manifest(folder.read_file(MANIFEST, MANIFEST_BYTES), folder.url)
        shards = manifest.of(split) or manifest.of("train")

        def fetch(shard: Shard) -> bytes:
            return folder.read_file(shard.index, shard.index_bytes)

        with ThreadPoolExecutor(READERS) as pool:
            indexes = dict(zip(shards, pool.map(fetch, shards), strict=True))
        super().__init__(manifest, split, NO_FILE, indexes.__getitem__)
        self._folder = folder

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`. DataError where the server does not answer any more."""
        size, offset = int(self._size[number]), int(self._offset[number])
        if size > MAX_FILE_BYTES:
            raise Skipped("file too large")
        file = self._shards[self._shard[number]].file
        for _ in range(2):
            data = self._folder.read(file, offset, size)
            if crc32(data) == self._crc32[number]:
                return data
        raise Skipped("wrong checksum")

    def extent(self, number: int) -> Extent:
        """No file of this machine, with the image's size."""
        return Extent(NO_FILE, 0, int(self._size[number]))

    def _reading_ahead(self, stream: Iterable[int]) -> Iterator[int]:
        return iter(stream)
