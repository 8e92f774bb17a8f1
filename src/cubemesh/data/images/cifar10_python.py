"""CIFAR-10 in its Python format: pickles, read by an unpickler that runs no code.

Each of data_batch_1 to data_batch_5 and test_batch is a pickled dictionary with b"data", an array
(10000, 3072) of bytes, and b"labels", a list of 10,000 numbers. A pickle may name any function to
be called while it is read, so only the names that rebuild a NumPy array are allowed; every other
name is refused before it is looked up.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.errors import DataError
from cubemesh.units import format_count

RECORDS = 10_000
IMAGE_BYTES = 3 * 32 * 32
CLASSES = 10
LARGEST_BYTES = 64 * 2**20
"""A published file has 31 MB; a larger one is not opened."""
PYTHON_ARCHIVE = "cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"
_AGAIN = f"Unpack {PYTHON_ARCHIVE} again."
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}
"""Names that a pickled byte array refers to, in old and new NumPy; protocol 2 stores bytes as
text and the call that encodes it. Containers, numbers and strings need no name."""


_ERRORS = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError),
    *(LookupError, ImportError, MemoryError, OverflowError),
)
"""What reading a damaged or hostile pickle raises."""


def _encode(text: str, encoding: str) -> bytes:
    """The only allowed encoding of bytes; any other would load a codec."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding}")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Refuses every name but those of `_ADMITTED`."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        if name == "encode":
            return _encode
        return super().find_class(module, name)


def read_batch(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (10000, 3072) and labels (10000,) of `file`.

    DataError for another kind of file: too large, not a pickle, one that refers to more than arrays
    and plain containers, or other contents.
    """
    size = file.stat().st_size
    if size > LARGEST_BYTES:
        raise DataError(f"{file} has {format_count(size)} bytes, too many for CIFAR-10. {_AGAIN}")
    try:
        with file.open("rb") as opened:
            found = _ArraysOnly(opened, encoding="bytes").load()
    except _ERRORS as error:
        raise DataError(
            f"{file} is refused: {error}; only arrays and plain containers are read from a pickle. "
            f"{_AGAIN}"
        ) from error
    if not _is_valid(found):
        raise DataError(
            f"{file} is not a file of CIFAR-10: it must hold data, {format_count(RECORDS)} × "
            f"{format_count(IMAGE_BYTES)} bytes, and as many labels from 0 to 9. {_AGAIN}"
        )
    return found[b"data"], np.array(found[b"labels"], np.int64)


def _is_valid(found: Any) -> bool:
    """Whether it has `RECORDS` images of bytes and as many labels."""
    if not isinstance(found, dict):
        return False
    data, labels = found.get(b"data"), found.get(b"labels")
    return (
        isinstance(data, np.ndarray)
        and data.dtype == np.uint8
        and data.shape == (RECORDS, IMAGE_BYTES)
        and isinstance(labels, list)
        and len(labels) == RECORDS
        and all(type(label) is int and 0 <= label < CLASSES for label in labels)
    )
