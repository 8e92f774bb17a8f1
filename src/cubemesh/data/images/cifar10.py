"""CIFAR-10 from a folder of the user, in its published binary or Python format.

60,000 colour images of 32×32 in 10 classes (A. Krizhevsky, "Learning Multiple Layers of Features
from Tiny Images", 2009): data_batch_1.bin to data_batch_5.bin for training and test_batch.bin for
validation. Each file is 10,000 records of one label byte and 3,072 image bytes (red, green, blue
plane, each row by row), 30,730,000 bytes in all. Files are mapped, not read: what a run does not
touch is not loaded. The Python format, data_batch_1 to test_batch without an extension, is read
completely (`cifar10_python.py`); if a folder has both, the binary files are used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.arrays import RawImages, prepared
from cubemesh.data.images.cifar10_python import (
    CLASSES,
    IMAGE_BYTES,
    PYTHON_ARCHIVE,
    RECORDS,
    read_batch,
)
from cubemesh.data.source import Shape, Source, Split, check_classes
from cubemesh.errors import DataError
from cubemesh.units import format_count

RECORD_BYTES = 1 + IMAGE_BYTES
FILE_BYTES = RECORDS * RECORD_BYTES
TRAIN_SAMPLES = 50_000
FILES: dict[Split, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
    "validation": ("test_batch.bin",),
}
_NAMES = (*FILES["train"], *FILES["validation"])
CHILD = "cifar-10-batches-bin"
"""The folder the published archive unpacks into."""
PYTHON_CHILD = "cifar-10-batches-py"
"""The same of the Python format."""
_ARCHIVE = "cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"


def open_cifar10(path: Path, split: Split, shape: Shape, classes: int) -> Source:
    """The images of `split` in `shape`, for a network of `classes` classes (10 or more).

    `path` is the folder of the files or the one above it. DataError as in `check_files`, and for a
    label above 9.
    """
    check_classes("cifar-10", CLASSES, classes)
    folder = check_files(path)
    if _is_python(folder):
        batches = [read_batch(folder / _python_name(name)) for name in FILES[split]]
    else:
        records = [_mapped(folder / name) for name in FILES[split]]
        batches = [(r[:, 1:], r[:, 0].astype(np.int64)) for r in records]
    raw = RawImages(
        "cifar-10",
        [images for images, _ in batches],
        np.concatenate([labels for _, labels in batches]),
        raw_shape=(3, 32, 32),
        white=255,
        classes=CLASSES,
        shape=shape,
    )
    return prepared(raw)


def check_files(path: Path) -> Path:
    """The folder with all six files, each of the right size, checked by size only.

    DataError for a missing folder or file, and for a file of another size. Files of the Python
    format are validated when they are opened.
    """
    folder = _folder(path)
    is_python = _is_python(folder)
    archive, child = (PYTHON_ARCHIVE, PYTHON_CHILD) if is_python else (_ARCHIVE, CHILD)
    for name in _NAMES:
        file = folder / (_python_name(name) if is_python else name)
        if not file.is_file():
            raise DataError(
                f"CIFAR-10 needs {file}, which does not exist. Unpack {archive} again and give its "
                f"folder {child} as data_path."
            )
        size = file.stat().st_size
        if size != FILE_BYTES and not is_python:
            fault = "truncated" if size < FILE_BYTES else "too long"
            raise DataError(
                f"{file} is {fault}: it has {format_count(size)} bytes, and a file of CIFAR-10 has "
                f"{format_count(FILE_BYTES)} ({format_count(RECORDS)} records of "
                f"{format_count(RECORD_BYTES)}). Unpack {_ARCHIVE} again."
            )
    return folder


def _folder(path: Path) -> Path:
    if not path.is_dir():
        found = "a file; unpack it first" if path.exists() else "missing"
        raise DataError(
            f"data_path={path} is {found}. Give the folder that holds data_batch_1.bin, which "
            f"comes with {_ARCHIVE}."
        )
    for child in (CHILD, PYTHON_CHILD):
        if (path / child).is_dir():
            return path / child
    return path


def _python_name(name: str) -> str:
    return name.removesuffix(".bin")


def _is_python(folder: Path) -> bool:
    """Whether `folder` has files of the Python format and none of the binary one."""
    binary = any((folder / name).exists() for name in _NAMES)
    return not binary and any((folder / _python_name(name)).exists() for name in _NAMES)


def _mapped(file: Path) -> NDArray[np.uint8]:
    """The records (10000, 3073) of `file`; DataError for a label above 9."""
    records = np.memmap(file, np.uint8, mode="r", shape=(RECORDS, RECORD_BYTES))
    wrong = np.flatnonzero(records[:, 0] >= CLASSES)
    if len(wrong):
        raise DataError(
            f"{file} is not a file of CIFAR-10: {format_count(len(wrong))} of its "
            f"{format_count(RECORDS)} labels are above 9, the first in record {wrong[0]} "
            f"({records[wrong[0], 0]}). Unpack {_ARCHIVE} again."
        )
    return records
