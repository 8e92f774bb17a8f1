"""HDF5 and NetCDF-4 files: images and labels as two arrays, of which each rank reads its part.

    images   (samples, height, width, channels), (samples, channels, height, width) or
             (samples, height, width), of uint8, uint16 or floats from 0 to 1
    labels   (samples,), integers from 0

They are at the top of the file, where every tenth sample is for validation, or in the groups
`train` and `validation`. A NetCDF-4 file is an HDF5 file whose variables are its datasets.

Every process opens the file and reads rows as hyperslabs: a run of neighbouring rows is one
request. In training, blocks of neighbouring rows (the rows of a chunk) come in random order and
stay together, so a batch is a few hyperslabs, and ranks read different ones. The library has one
lock: threads read one after another, while the step goes on.

A file may refer to other files (external links, external storage, virtual datasets). Such datasets
are refused: a file of others would choose what is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.arrays import RawImages
from cubemesh.data.source import Epoch, Indices, Shape, Split, check_classes, in_split
from cubemesh.errors import DataError
from cubemesh.frameworks.contract.program import NotInstalled
from cubemesh.units import format_bytes
from cubemesh.untrusted import clean

NAME = "hdf5"
IMAGES = ("images", "image", "data", "x")
LABELS = ("labels", "label", "targets", "y")
GROUPS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "test"),
}
BLOCK = 32
"""Rows that stay together, of data without chunks."""
MOST_BLOCK = 1024
GAP = 8
"""Rows between two that are wanted, up to which they are read together."""
MOST_SAMPLES = 1 << 28
"""Labels are read whole; a file of a few kilobytes can claim any number of them."""
MOST_IMAGE_BYTES = 1 << 28
MOST_LINKS = 16
_MAGIC = b"\x89HDF\r\n\x1a\n"
_CLASSIC = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_WHITE = {"u1": 255, "u2": 65535, "f2": 1, "f4": 1, "f8": 1}
"""Type → the value that becomes 1.0."""


def check_file(path: Path) -> None:
    """DataError if there is no HDF5 file at `path`; needs no library."""
    try:
        with open(path, "rb") as file:
            begins = [file.read(len(_MAGIC))]
            for offset in (512, 1024, 2048):  # after a user block
                file.seek(offset)
                begins.append(file.read(len(_MAGIC)))
    except OSError as error:
        raise DataError(f"data_path={path} cannot be read: {error.strerror}.") from error
    if begins[0][:4] in _CLASSIC:
        raise DataError(
            f"{path} is a classic NetCDF file. Convert it: nccopy -k nc4 {path.name} NEW.nc"
        )
    if _MAGIC not in begins:
        raise DataError(f"{path} is neither an HDF5 nor a NetCDF-4 file.")


def open_hdf5(path: Path, split: Split, shape: Shape, classes: int) -> Hdf5Images:
    """The images of `split`, in `shape`, for a network of `classes` classes.

    NotInstalled without h5py; DataError where the file has no such arrays; UsageError if the
    network has fewer classes, or other channels.
    """
    check_file(path)
    try:
        import h5py
    except ImportError as error:
        raise NotInstalled(
            f"HDF5 and NetCDF files are read by h5py, which is not installed ({error}). Install "
            "it with: pip install 'cubemesh[hdf5]'"
        ) from error
    try:
        file = h5py.File(path, "r", locking="best-effort")
        group, has_splits = _group(h5py, file, split)
        images, labels = _dataset(h5py, group, IMAGES), _dataset(h5py, group, LABELS)
        own = _integers(labels)
        every = own
        if has_splits:
            train, _ = _group(h5py, file, "train")
            every = _integers(_dataset(h5py, train, LABELS))
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {clean(str(error), 200)}.") from error
    kind = f"{images.dtype.kind}{images.dtype.itemsize}"
    raw_shape = _shape(images.shape[1:])
    if kind not in _WHITE or raw_shape is None:
        raise DataError(
            f"{path}: {images.name} has shape {images.shape} and type {images.dtype}. It must be "
            "(samples, height, width, channels), (samples, channels, height, width) or (samples, "
            "height, width) with 1 or 3 channels, of uint8, uint16 or floats."
        )
    if not 0 < math.prod(raw_shape) * images.dtype.itemsize <= MOST_IMAGE_BYTES:
        raise DataError(
            f"{path}: an image of {images.name} has shape {images.shape[1:]}. It must have 1 byte "
            f"to {format_bytes(MOST_IMAGE_BYTES)}."
        )
    if own.shape != images.shape[:1] or not own.size or not every.size:
        raise DataError(
            f"{path}: {labels.name} has shape {own.shape} and type {own.dtype}. It must have an "
            f"integer for each of the {images.shape[0]} images."
        )
    has = int(every.max()) + 1
    if int(own.min()) < 0 or int(own.max()) >= has:
        raise DataError(f"{path}: {labels.name} has classes that no training image has.")
    check_classes(NAME, has, classes)
    rows = np.arange(len(own))
    if not has_splits:
        rows = np.array([n for n in range(len(own)) if in_split(split, n + 1)], np.int64)
    if not len(rows):
        raise DataError(f"{path} has no images for {split}.")
    return Hdf5Images(images, rows, own[rows].astype(np.int64), raw_shape, shape, has, _WHITE[kind])


class Hdf5Images(RawImages):
    """A `Source` of rows of a dataset; `HasEpochs`."""

    def __init__(
        self,
        dataset: Any,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        raw_shape: Shape,
        shape: Shape,
        classes: int,
        white: int,
    ) -> None:
        super().__init__(
            NAME, [], labels, raw_shape=raw_shape, white=white, classes=classes, shape=shape
        )
        self._dataset = dataset
        self._rows = rows
        self._is_channels_last = dataset.shape[1:] != raw_shape
        chunk = dataset.chunks[0] if dataset.chunks else BLOCK
        self.block = max(1, min(int(chunk), MOST_BLOCK))
        """Samples that stay together in an epoch."""

    def epoch(self, number: int, seed: int) -> Epoch:
        """See `HasEpochs`: blocks in random order."""
        return Epoch(source=self, order=self._order(np.random.default_rng((seed, number))))

    def _order(self, generator: np.random.Generator) -> Iterator[int]:
        blocks = -(-self.samples // self.block)
        for block in generator.permutation(blocks).tolist():
            start = block * self.block
            yield from range(start, min(start + self.block, self.samples))

    def _gather(self, indices: Indices) -> NDArray[Any]:
        rows = self._rows[indices]
        order = np.argsort(rows, kind="stable")
        wanted = rows[order]
        gathered = np.empty((len(rows), *self._dataset.shape[1:]), self._dataset.dtype)
        starts = np.flatnonzero(np.diff(wanted, prepend=-GAP - 1) > GAP)
        for start, stop in zip(starts, [*starts[1:], len(wanted)], strict=True):
            slab = self._slab(int(wanted[start]), int(wanted[stop - 1]) + 1)
            gathered[order[start:stop]] = slab[wanted[start:stop] - wanted[start]]
        if self._is_channels_last and gathered.ndim == 4:
            gathered = np.ascontiguousarray(gathered.transpose(0, 3, 1, 2))
        return gathered

    def _slab(self, start: int, stop: int) -> NDArray[Any]:
        """Rows as one request; DataError where they cannot be read."""
        try:
            found: NDArray[Any] = self._dataset[start:stop]
        except (OSError, RuntimeError, ValueError) as error:
            raise DataError(
                f"Rows {start} to {stop} of {self._dataset.name} cannot be read: "
                f"{clean(str(error), 200)}."
            ) from error
        return found


def _shape(found: tuple[int, ...]) -> Shape | None:
    """Channels, height and width of an image of this shape; None if it is none."""
    if len(found) == 2:
        return 1, found[0], found[1]
    if len(found) == 3 and found[2] in (1, 3):
        return found[2], found[0], found[1]
    if len(found) == 3 and found[0] in (1, 3):
        return found[0], found[1], found[2]
    return None


def _group(h5py: Any, file: Any, split: Split) -> tuple[Any, bool]:
    """The group of a split, or the whole file; and whether splits are separate."""
    if not any(_has(file, name) for name in GROUPS["train"]):
        return file, False
    for name in GROUPS[split]:
        if _has(file, name):
            group = _followed(h5py, file, name)
            if not isinstance(group, h5py.Group):
                raise ValueError(f"{name} is not a group")
            return group, True
    raise ValueError(f"it has a group for training, and no {' or '.join(GROUPS[split])}")


def _dataset(h5py: Any, group: Any, names: tuple[str, ...]) -> Any:
    """The first of `names` in a group; ValueError where there is none, or it is in another file."""
    for name in names:
        if not _has(group, name):
            continue
        found = _followed(h5py, group, name)
        if not isinstance(found, h5py.Dataset) or not found.shape:
            raise ValueError(f"{name} is not an array")
        if found.external or found.is_virtual:
            raise ValueError(f"the values of {name} are in other files, which are not read")
        return found
    raise ValueError(f"it has no dataset {', '.join(names)}")


def _integers(labels: Any) -> NDArray[Any]:
    """The values of a dataset; ValueError where they are not integers, or too many to read."""
    if labels.dtype.kind not in "iu" or len(labels.shape) != 1:
        raise ValueError(
            f"{labels.name} has shape {labels.shape} and type {labels.dtype}, and must have an "
            "integer for each image"
        )
    if len(labels) > MOST_SAMPLES:
        raise ValueError(f"{labels.name} has {len(labels):,} labels; {MOST_SAMPLES:,} are allowed")
    values: NDArray[Any] = labels[()]
    return values


def _has(group: Any, name: str) -> bool:
    """Whether a group has a link of this name; none is followed, as `in` would."""
    return group.get(name, getlink=True) is not None


def _followed(h5py: Any, group: Any, name: str) -> Any:
    """The object of a name, through links in the same file; ValueError where one leads to another
    file. None of another file is opened."""
    here, parts, links = group, [name], 0
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if not isinstance(here, h5py.Group) or (link := here.get(part, getlink=True)) is None:
            raise ValueError(f"{name} is a link to an object that is not there")
        if isinstance(link, h5py.ExternalLink):
            raise ValueError(f"{name} is a link to another file, which is not followed")
        if not isinstance(link, h5py.SoftLink):
            here = here[part]
            continue
        links += 1
        if links > MOST_LINKS:
            raise ValueError(f"{name} is more than {MOST_LINKS} links long, or a circle")
        if link.path.startswith("/"):
            here = here.file
        parts += reversed(link.path.split("/"))
    return here
