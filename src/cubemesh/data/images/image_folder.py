"""Image folders, one folder per class, as ImageNet is usually stored.

`train/CLASS/IMAGE` and `val/CLASS/IMAGE`; or only `CLASS/IMAGE`, with every tenth image of a class
for validation. Classes are numbered in the order of their names. Images end in .jpg, .jpeg, .png,
.gif or .bmp; other files are counted and ignored. No file is opened here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import SUFFIXES
from cubemesh.data.images.files import identity_of, read_whole, readable
from cubemesh.data.page_cache import Extent
from cubemesh.data.source import Split, in_split
from cubemesh.errors import DataError
from cubemesh.units import format_count

SPLITS: dict[Split, tuple[str, ...]] = {"train": ("train",), "validation": ("val", "validation")}


class ImageFolder:
    """The images of one split; see `EncodedImages`."""

    def __init__(self, root: Path, split: Split | None) -> None:
        """DataError if there is no image, or a class for validation without training images.
        Without a split: all images of a folder that has none."""
        folder = None if split is None else split_folder(root, split)
        self.root = folder or root
        train = None if split is None else split_folder(root, "train")
        self.classes = class_names(train or root)
        own = set(class_names(self.root))
        if unknown := sorted(own - set(self.classes)):
            raise DataError(
                f"{self.root} has {len(unknown)} classes without training images, such as "
                f"'{unknown[0]}'. Both must have folders of the same names."
            )
        self.ignored: Counter[str] = Counter()
        self._names: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(self.classes):
            if name not in own:
                continue
            files = sorted(self._images(name), key=os.fsencode)
            if folder is None and split is not None:
                files = [f for n, f in enumerate(files, 1) if in_split(split, n)]
            self._names += files
            labels += [label] * len(files)
        self.labels: NDArray[np.int64] = np.array(labels, np.int64)
        if not labels:
            wanted = "" if split is None else f" for {split}"
            raise DataError(f"{self.root} has no images{wanted}. {LAYOUT}")

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`."""
        return read_whole(self._path(number))

    def name(self, number: int) -> str:
        """Class and file."""
        return readable(f"{self.classes[self.labels[number]]}/{self._names[number]}")

    def order(self, generator: np.random.Generator) -> Iterable[int]:
        """A random order."""
        return generator.permutation(len(self.labels))

    def extent(self, number: int) -> Extent:
        """The whole file; empty if it is missing."""
        path = Path(self._path(number))
        try:
            return Extent(path, 0, path.stat().st_size)
        except OSError:
            return Extent(path, 0, 0)

    def identity(self) -> str:
        """By the names, and by when the classes' folders changed."""
        return identity_of(self._names, (self.root / name for name in self.classes))

    def _path(self, number: int) -> str:
        return os.path.join(self.root, self.classes[self.labels[number]], self._names[number])

    def _images(self, name: str) -> Iterator[str]:
        try:
            with os.scandir(self.root / name) as entries:
                for entry in entries:
                    if os.path.splitext(entry.name)[1].lower() in SUFFIXES:
                        yield entry.name
                    else:
                        self.ignored["not an image by its name"] += 1
        except OSError as error:
            raise DataError(f"{self.root / name} cannot be read: {error.strerror}.") from error


LAYOUT = (
    "The layout is train/CLASS/IMAGE and val/CLASS/IMAGE, or CLASS/IMAGE, or tar files "
    "(docs/data.md)."
)


def split_folder(root: Path, split: Split) -> Path | None:
    """The folder of a split, where the data have one each."""
    found = (root / name for name in SPLITS[split])
    return next((folder for folder in found if folder.is_dir()), None)


def check_splits(root: Path, contents: str) -> None:
    """DataError for a folder of the split for training without one for validation."""
    if split_folder(root, "train") is not None and split_folder(root, "validation") is None:
        raise DataError(
            f"{root} has train and neither val nor validation. Name the folder above both, or one "
            f"that holds {contents} themselves."
        )


def class_names(folder: Path) -> tuple[str, ...]:
    """The folders in `folder`, sorted; hidden ones are left out."""
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    return tuple(sorted(names, key=os.fsencode))


def check_folder(root: Path) -> None:
    """DataError if there are no folders with images; opens no image."""
    folder = split_folder(root, "train") or root
    classes = class_names(folder)
    if not classes:
        raise DataError(f"{folder} has no folders of images. {LAYOUT}")
    check_splits(root, "the classes")
    with os.scandir(folder / classes[0]) as entries:
        if not any(os.path.splitext(e.name)[1].lower() in SUFFIXES for e in entries):
            raise DataError(
                f"{folder / classes[0]} has no image, the first of "
                f"{format_count(len(classes))} classes. {LAYOUT}"
            )
