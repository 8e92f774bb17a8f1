"""Opening of image data: folders or tar shards to a source, with the options for reading."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.arrays import RawImages
from cubemesh.data.images.decode import PILLOW_PIXELS
from cubemesh.data.images.encoded_source import EncodedSource
from cubemesh.data.images.files import EncodedImages
from cubemesh.data.images.image_folder import ImageFolder, check_folder
from cubemesh.data.images.image_source import DECODED, NAME, ImageSource
from cubemesh.data.images.local_cache import LIMIT_BYTES, LocalCache
from cubemesh.data.images.prepared_set import check_prepared, local_manifest, open_prepared
from cubemesh.data.images.remote_shards import RemoteShards
from cubemesh.data.images.skipped_images import ImageCounts
from cubemesh.data.images.tar_shards import TarShards, find_shards
from cubemesh.data.images.wrapped_readers import UncachedReader
from cubemesh.data.remote.folder import is_url
from cubemesh.data.remote.protocols import open_folder
from cubemesh.data.source import Shape, Source, Split, check_classes
from cubemesh.errors import DataError, UsageError
from cubemesh.units import format_count

DECODED_BYTES = 1 << 30
"""Memory limit of cached decoded images."""


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are read."""

    max_pixels: int = PILLOW_PIXELS
    """Images of more pixels are skipped without decoding."""
    cache_decoded: bool = False
    """Whether they are decoded once, before the measurement, and cached in memory."""
    drop_page_cache: bool = False
    """Whether a file's pages are dropped from the page cache after it was read."""
    stage_folder: Path | None = None
    """Folder on a local disk that caches the files; None: no cache."""
    stage_limit_bytes: int = LIMIT_BYTES
    """Size limit of that cache."""
    stays_encoded: bool = False
    """Whether batches have encoded files, for a program that decodes them on its device."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_pixels <= PILLOW_PIXELS:
            raise UsageError(
                f"max_image_pixels={self.max_pixels} is not valid: it must be 1 to "
                f"{format_count(PILLOW_PIXELS)}, the decoder's own limit."
            )
        if self.cache_decoded and self.stays_encoded:
            raise UsageError(
                "cache_decoded=true decodes every image once, on the host, and "
                "decode_location=device decodes each one on the device in every epoch. Leave out "
                "one of them."
            )


def check_files(path: Path) -> None:
    """DataError if there are neither tar shards nor folders of images at `path`, or a prepared set
    is not complete."""
    if not path.is_dir():
        raise DataError(f"data_path={path} is not a folder. Name one with images or tar shards.")
    manifest = local_manifest(path)
    if manifest is not None:
        check_prepared(path, manifest)
    elif not find_shards(path):
        check_folder(path)


def open_encoded(path: Path | str, split: Split) -> EncodedImages:
    """The images of `split` in a folder, or at the URL of a prepared set; DataError as in
    `check_files`, and where a server does not have it; NotInstalled where fsspec is missing."""
    if isinstance(path, str) and is_url(path):
        return RemoteShards(open_folder(path), split)
    path = Path(path)
    check_files(path)
    if (manifest := local_manifest(path)) is not None:
        return open_prepared(path, manifest, split)
    shards = find_shards(path)
    return TarShards(shards, split) if shards else ImageFolder(path, split)


def open_images(
    path: Path | str, split: Split, shape: Shape, classes: int, reading: ImageOptions | None = None
) -> Source:
    """The images of `split`, in `shape`, for a network of `classes` classes.

    Unsupported if the decoder is not installed; otherwise as `open_encoded`; UsageError if the
    network has fewer classes.
    """
    reading = reading or ImageOptions()
    if shape[0] not in (1, 3):
        raise UsageError(
            f"{NAME} has images of 1 or 3 channels and the network takes {shape[0]}. Choose "
            "data=synthetic, which has any."
        )
    encoded = open_encoded(path, split)
    check_classes(NAME, len(encoded.classes), classes)
    if reading.drop_page_cache:
        encoded = UncachedReader(encoded)
    if reading.stage_folder is not None:
        encoded = LocalCache(encoded, reading.stage_folder, reading.stage_limit_bytes)
    if reading.stays_encoded:
        return EncodedSource(encoded, shape, split, reading.max_pixels)
    images = ImageSource(encoded, shape, split, reading.max_pixels)
    return CachedImages(images) if reading.cache_decoded else images


class CachedImages(RawImages):
    """Images decoded once, with the crops of evaluation, and cached as bytes: as many as fit
    `DECODED_BYTES`, evenly spaced. Unusable ones are left out."""

    def __init__(self, images: ImageSource) -> None:
        fit = DECODED_BYTES // int(np.prod(images.shape))
        tried = np.linspace(0, images.samples - 1, min(images.samples, fit)).astype(np.int64)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            decoded = pool.map(images.decoded, tried.tolist())
            used = [(p, n) for p, n in zip(decoded, tried.tolist(), strict=True) if p is not None]
        if not used:
            raise images.unusable()
        super().__init__(
            images.name,
            [np.stack([pixels for pixels, _ in used])],
            images.encoded.labels[[number for _, number in used]],
            raw_shape=images.shape,
            white=DECODED,
            classes=images.classes,
            shape=images.shape,
        )
        self._images = images
        self._tried = np.zeros(images.samples, np.bool_)
        self._tried[tried] = True

    def tally(self, tried: NDArray[np.bool_]) -> ImageCounts:
        """The skipped and converted images: all were tried before the first step."""
        return self._images.tally(self._tried)
