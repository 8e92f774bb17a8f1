"""Images in files, with a file of labels for each: masks or boxes.

`train/images/NAME.jpg` with `train/LABELS/NAME.txt`, and the same below `val`; or both folders
alone, with every tenth image for validation.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import SUFFIXES
from cubemesh.data.images.files import identity_of, read_whole, readable
from cubemesh.data.images.image_folder import check_splits, split_folder
from cubemesh.data.images.open_images import ImageOptions
from cubemesh.data.page_cache import Extent
from cubemesh.data.source import Split, in_split
from cubemesh.errors import DataError, UsageError
from cubemesh.units import format_count

IMAGES = "images"
ENDINGS = f"Names of images end in {', '.join(SUFFIXES)}."


class LabelledImages:
    """The image files of one split, without classes of their own; see `EncodedImages`."""

    def __init__(
        self,
        root: Path,
        images: Sequence[Path],
        classes: tuple[str, ...],
        ignored: Mapping[str, int],
    ) -> None:
        """Images are named by their paths below `root`."""
        self.classes = classes
        self.ignored = ignored
        self.labels: NDArray[np.int64] = np.zeros(len(images), np.int64)
        self._root = root
        self._images = images

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`."""
        return read_whole(self._images[number])

    def name(self, number: int) -> str:
        """The file."""
        return readable(str(self._images[number].relative_to(self._root)))

    def order(self, generator: np.random.Generator) -> Iterable[int]:
        """A random order."""
        return generator.permutation(len(self._images))

    def extent(self, number: int) -> Extent:
        """The whole image file; empty if it is missing."""
        path = self._images[number]
        try:
            return Extent(path, 0, path.stat().st_size)
        except OSError:
            return Extent(path, 0, 0)

    def identity(self) -> str:
        """By the names, and by when the folders of the images changed."""
        names = (str(path) for path in self._images)
        return identity_of(names, sorted({path.parent for path in self._images}))


class LabelFiles(NamedTuple):
    """The images of a split with their files of labels."""

    root: Path
    """The folder of the split, or that of the data where these have no splits."""
    files: Mapping[Path, Path]
    """Image → its file of labels, in the order of the names."""
    ignored: Mapping[str, int]
    """See `EncodedImages.ignored`."""


def label_files(
    root: Path, split: Split, labels: str, suffix: str, *, advice: str = ""
) -> LabelFiles:
    """The images of `split` and, in the folder `labels`, their files that end in `suffix`.
    DataError if there is no image, or one has no such file; `advice` follows that message."""
    own = split_folder(root, split)
    folder = own or root
    found = listed(folder / IMAGES)
    images = [name for name in found if os.path.splitext(name)[1].lower() in SUFFIXES]
    ignored = Counter({"not an image by its name": len(found) - len(images)})
    images.sort(key=os.fsencode)
    if own is None:
        images = [name for n, name in enumerate(images, 1) if in_split(split, n)]
    if not images:
        raise DataError(f"{folder / IMAGES} has no images for {split}. {ENDINGS}")
    files = {name: os.path.splitext(name)[0] + suffix for name in images}
    there = set(listed(folder / labels))
    lacking = [name for name in images if files[name] not in there]
    if lacking:
        raise DataError(
            f"{format_count(len(lacking))} of {format_count(len(images))} images of "
            f"{folder / IMAGES} have no {labels}, such as {readable(lacking[0])}, whose file is "
            f"{readable(f'{labels}/{files[lacking[0]]}')}.{advice}"
        )
    pairs = {folder / IMAGES / image: folder / labels / file for image, file in files.items()}
    return LabelFiles(folder, pairs, +ignored)


def check_folders(root: Path, labels: str, layout: str) -> None:
    """DataError, which ends in the `layout`, if there are no folders of images and `labels`; opens
    no file."""
    folder = split_folder(root, "train") or root
    for name in (IMAGES, labels):
        if not (folder / name).is_dir():
            raise DataError(f"{folder} has no folder {name}. {layout}")
    check_splits(root, f"{IMAGES} and {labels}")


def check_options(name: str, options: ImageOptions) -> None:
    """UsageError for an option that the data set `name` of labelled images does not have."""
    refused = {
        "cache_decoded": options.cache_decoded,
        "drop_page_cache": options.drop_page_cache,
        "stage_folder": options.stage_folder is not None,
        "decode_location=device": options.stays_encoded,
    }
    for option, given in refused.items():
        if given:
            raise UsageError(f"data={name} does not support {option}. Leave it out.")


def listed(folder: Path) -> list[str]:
    """The names in a folder, without hidden ones; DataError where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}.") from error
