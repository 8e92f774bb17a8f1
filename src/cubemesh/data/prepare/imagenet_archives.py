"""ImageNet's archives as they are distributed: a tar of tars, and a flat tar for validation.

ILSVRC2012_img_train.tar has one tar file per class, named as the class: n01440764.tar.
ILSVRC2012_img_val.tar has 50,000 images and no classes: these are in a text file, one line per
image. Nothing is unpacked: an image is read at its place in the outer file.

Lines of the text file, with blanks, tabs or commas between columns:

    ILSVRC2012_val_00000001.JPEG n01751748     image and class; further columns are ignored, so
    ILSVRC2012_val_00048981,n03995372 85 1 499 272      LOC_val_solution.csv of Kaggle is read too
    n01751748                                  or the class only, in the order of the images' names
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import SUFFIXES, Skipped
from cubemesh.data.images.files import MAX_FILE_BYTES, identity_of, pread, readable
from cubemesh.data.images.tar_shards import BoundedFile, OpenFiles
from cubemesh.errors import DataError, UsageError
from cubemesh.untrusted import quoted

LABELS_BYTES = 64 << 20
"""Most bytes of the text file."""


@dataclass(frozen=True, slots=True)
class _Image:
    archive: int
    class_name: str
    name: str
    offset: int
    size: int


class ImageNetArchives:
    """See `Originals`."""

    def __init__(self, train: Path, validation: Path | None, labels: Path | None) -> None:
        """DataError for an archive without images, or images whose class is not known."""
        self._files = [train] if validation is None else [train, validation]
        images = list(_of_classes(train))
        self.classes = tuple(sorted({image.class_name for image in images}))
        if not images:
            raise DataError(f"{train} has no images in its archives of classes.")
        count = len(images)
        if validation is not None:
            images += _labelled(validation, labels, self.classes)
        elif labels is not None:
            raise UsageError(
                f"--validation-labels is given, and there is no archive for validation with "
                f"{train.name}. Put ILSVRC2012_img_val.tar into the same folder and name that."
            )
        number = {name: label for label, name in enumerate(self.classes)}
        self._images = images
        self.labels: NDArray[np.int64] = np.array([number[i.class_name] for i in images], np.int64)
        self.is_validation: NDArray[np.bool_] | None = None
        if validation is not None:
            self.is_validation = np.arange(len(images)) >= count
        self._open = OpenFiles()

    def read(self, number: int) -> bytes:
        """See `Originals.read`."""
        image = self._images[number]
        if image.size > MAX_FILE_BYTES:
            raise Skipped("file too large")
        try:
            file = self._open.get(self._files[image.archive])
            data = pread(file.descriptor, image.size, image.offset)
        except OSError as error:
            raise Skipped("cannot be read") from error
        if len(data) < image.size:
            raise Skipped("truncated")
        return data

    def name(self, number: int) -> str:
        """See `Originals.name`."""
        return readable(self._images[number].name)

    def identity(self) -> str:
        """See `Originals.identity`."""
        return identity_of((image.name for image in self._images), self._files)

    def mean_bytes(self) -> float:
        """See `Originals.mean_bytes`."""
        return float(np.mean([image.size for image in self._images]))


def find_archives(path: Path) -> tuple[Path, Path | None] | None:
    """The archive for training and the one for validation, in a folder or named itself; None where
    there is no tar of tars."""
    if os.path.isfile(path):
        return (path, None) if _is_tar_of_tars(path) else None
    if not os.path.isdir(path):
        return None
    tars = sorted(file for file in path.glob("*.tar") if file.is_file())
    nested = [file for file in tars if _is_tar_of_tars(file)]
    if not nested:
        return None
    if len(nested) > 1:
        names = ", ".join(file.name for file in nested)
        raise DataError(f"{path} has {len(nested)} tars of tars ({names}). Name one of them.")
    validation = [file for file in tars if "val" in file.name and file not in nested]
    return nested[0], validation[0] if validation else None


def _is_tar_of_tars(path: Path) -> bool:
    """Whether the first file in an archive is an archive."""
    try:
        return next((m.name.endswith(".tar") for m in _members(path, 0, 0, None)), False)
    except DataError:
        return False


def _of_classes(path: Path) -> Iterator[_Image]:
    for outer in list(_members(path, 0, 0, None)):
        if not outer.name.endswith(".tar"):
            continue
        name = PurePosixPath(outer.name).stem
        end = outer.offset + outer.size
        for image in _members(path, 0, outer.offset, end):
            if _is_image(image.name):
                yield _Image(0, name, f"{name}/{image.name}", image.offset, image.size)


def _labelled(path: Path, labels: Path | None, classes: Sequence[str]) -> list[_Image]:
    """The images for validation with their classes."""
    images = [i for i in _members(path, 1, 0, None) if _is_image(i.name)]
    images.sort(key=lambda image: image.name)
    if labels is None:
        raise UsageError(
            f"The images of {path.name} have no classes. Name a text file with the class of each: "
            "--validation-labels FILE (docs/data.md)."
        )
    known = _read_labels(labels, [PurePosixPath(i.name).name for i in images])
    found = []
    for image in images:
        name = PurePosixPath(image.name).name
        class_name = known.get(name, known.get(name.rpartition(".")[0], ""))
        if class_name not in classes:
            what = f"class {quoted(class_name)}" if class_name else "no class"
            raise DataError(
                f"{labels} gives {readable(name)} {what}; it must be one of the {len(classes)} of "
                f"the training images, such as {classes[0]}."
            )
        found.append(_Image(1, class_name, image.name, image.offset, image.size))
    return found


def _read_labels(path: Path, names: Sequence[str]) -> Mapping[str, str]:
    """Image → class."""
    try:
        if path.stat().st_size > LABELS_BYTES:
            raise DataError(f"{path} has more than {LABELS_BYTES >> 20} MiB: it is no list.")
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}.") from error
    rows = [re.split(r"[\s,]+", line.strip()) for line in lines if line.strip()]
    if all(len(row) == 1 for row in rows):
        if len(rows) != len(names):
            raise DataError(
                f"{path} has {len(rows)} classes, and there are {len(names)} images. Give one "
                "class for each image, in the order of their names, or IMAGE CLASS lines."
            )
        return dict(zip(names, (row[0] for row in rows), strict=True))
    return {row[0]: row[1] for row in rows if len(row) > 1}


def _members(path: Path, archive: int, start: int, end: int | None) -> Iterator[_Image]:
    """The files in an archive that begins at `start` of a file; offsets are of the whole file.
    DataError where it is damaged."""
    try:
        with BoundedFile(path) as raw:
            raw.seek(start)
            with tarfile.open(fileobj=raw, mode="r:") as opened:
                for member in opened:
                    opened.members = []  # type: ignore[attr-defined]  # keeps all otherwise
                    if opened.offset <= member.offset:
                        raise tarfile.ReadError("a member ends before it begins")
                    if not member.isreg() or member.issparse():
                        continue
                    if end is not None and member.offset_data + member.size > end:
                        raise tarfile.ReadError("a member ends after its archive")
                    yield _Image(archive, "", member.name, member.offset_data, member.size)
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path} is not a whole tar file: {error or type(error).__name__}. Copy it again."
        ) from error


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES
