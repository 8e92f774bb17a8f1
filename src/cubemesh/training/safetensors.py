"""Arrays in a file that anybody can read: the safetensors format, written and read here.

    8 bytes        N, little-endian
    N bytes        a JSON object, padded with blanks: name → {"dtype", "shape", "data_offsets"},
                   and "__metadata__": text → text
    the rest       the arrays one after the other, row by row, little-endian, no gaps

(https://huggingface.co/docs/safetensors, "Format".) The package of that name is no dependency,
because a worker has nothing but NumPy; the tests read these files with it where it is installed. A
checksum of everything, arrays and header, is put into the metadata, so that a torn or changed file
is told from a whole one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cubemesh.errors import DataError

Array = NDArray[Any]
DTYPES: dict[str, str] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip
"""The format's name of a type → NumPy's."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA = "__metadata__"
_CHECKSUM = "sha256"
_ALIGNED = 8
_MOST_HEADER_BYTES = 100 << 20
"""As the format's own readers have it."""


def write(file: BinaryIO, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> int:
    """Write `arrays` and `metadata` to `file`, with their checksum; how many bytes that is.

    ValueError for a type the format has no name for. OSError as the disk has it.
    """
    held = {name: _portable(array) for name, array in arrays.items()}
    index: dict[str, Any] = {}
    end = 0
    for name, array in held.items():
        start, end = end, end + array.nbytes
        index[name] = {
            "dtype": _NAMES[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    checksum = _checksum_of(index, metadata, held.values())
    header = _json({_METADATA: {**metadata, _CHECKSUM: checksum}, **index})
    header += b" " * (-len(header) % _ALIGNED)
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for array in held.values():
        file.write(_bytes(array))
    return 8 + len(header) + end


def read(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the metadata in a file that `write` made. DataError where it is torn, changed,
    or none."""
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            header = _header(file, size)
            metadata, index = header.pop(_METADATA), header
            checksum = metadata.pop(_CHECKSUM)
            arrays = {name: _array(file, entry) for name, entry in index.items()}
            rest = file.read(1)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise DataError(f"'{path}' is torn or no safetensors file: {error}.") from error
    if rest or _checksum_of(index, metadata, arrays.values()) != checksum:
        raise DataError(f"'{path}' is damaged: its content does not fit its checksum.")
    return arrays, metadata


def _header(file: BinaryIO, size: int) -> dict[str, Any]:
    length = int.from_bytes(file.read(8), "little")
    if length > min(size, _MOST_HEADER_BYTES):
        raise ValueError("its header is longer than the file")
    header = json.loads(file.read(length))
    if not isinstance(header, dict) or not isinstance(header.get(_METADATA), dict):
        raise ValueError("its header holds no metadata")
    return header


def _array(file: BinaryIO, entry: Mapping[str, Any]) -> Array:
    """The next array of the file, writable and the reader's own."""
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
    start, end = entry["data_offsets"]
    array = np.empty(shape, dtype)
    if array.nbytes != end - start:
        raise ValueError("an array's bytes do not fit its shape")
    if file.readinto(_bytes(array)) != array.nbytes:  # type: ignore[attr-defined]
        raise EOFError("it ends too early")
    return array


def _portable(array: Array) -> Array:
    """Little-endian and row by row."""
    ordered = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if ordered.dtype.str not in _NAMES:
        raise ValueError(f"safetensors has no name for arrays of {array.dtype}")
    return ordered


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).data.cast("B") if array.size else memoryview(bytearray())


def _checksum_of(
    index: Mapping[str, Any], metadata: Mapping[str, str], arrays: Iterable[Array]
) -> str:
    digest = hashlib.sha256(_json([metadata, index]))
    for array in arrays:
        digest.update(_bytes(array))
    return digest.hexdigest()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
