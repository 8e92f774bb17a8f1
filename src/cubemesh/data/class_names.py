"""Names of the classes of a data set, in the order of its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cubemesh.data.boxes import source as boxes
from cubemesh.data.images import digits
from cubemesh.data.images.image_folder import class_names as folder_names
from cubemesh.data.images.image_folder import split_folder
from cubemesh.data.images.image_source import NAME as IMAGES
from cubemesh.data.images.tar_shards import TarShards, find_shards
from cubemesh.errors import CubemeshError

CIFAR_10 = (
    *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
"""A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009); batches.meta."""


def class_names(data: str, path: str | None) -> tuple[str, ...]:
    """The names of the classes of a data set; none where it has none, as synthetic data, or where
    its files cannot be read any more."""
    find = _NAMES.get(data)
    if find is None:
        return ()
    try:
        return find(None if path is None else Path(path).expanduser())
    except (CubemeshError, OSError):
        return ()


def _of_images(path: Path | None) -> tuple[str, ...]:
    if path is None or not path.is_dir():
        return ()
    shards = find_shards(path)
    if shards:
        return TarShards(shards, "train").classes
    return folder_names(split_folder(path, "train") or path)


_NAMES: Mapping[str, Callable[[Path | None], tuple[str, ...]]] = {
    "digits": lambda path: tuple(map(str, range(digits.CLASSES))),
    "cifar-10": lambda path: CIFAR_10,
    IMAGES: _of_images,
    boxes.NAME: lambda path: () if path is None else boxes.names_of(path),
}
"""Data set → its names."""
