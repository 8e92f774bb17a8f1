"""Checkpoint files: arrays come back bit for bit, and damage is detected."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from cubemesh.errors import DataError
from cubemesh.training.checkpoint import read_arrays, write_arrays

TYPES = ["f8", "f4", "f2", "bool", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", ">f4", ">i2"]
KINDS = st.sampled_from([np.dtype(name) for name in TYPES])
ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__"),
    KINDS.flatmap(
        lambda kind: arrays_of.arrays(
            kind, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
        )
    ),
    max_size=4,
)
PATIENT = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
"""The disk may be slow, and so may a machine that others use."""
TWO = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2], np.uint8)}


@PATIENT
@given(ARRAYS, st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3))
def test_arrays_are_read_back_bit_for_bit(tmp_path_factory, arrays, metadata):
    path = tmp_path_factory.mktemp("s") / "f"
    metadata.pop("sha256", None)
    write_arrays(path, arrays, metadata)
    found, read = read_arrays(path)
    assert read == metadata
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype.newbyteorder("<")
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
        assert found[name].flags.writeable


@PATIENT
@given(st.data())
def test_one_changed_bit_or_a_truncated_file_is_detected(tmp_path_factory, data):
    path: Path = tmp_path_factory.mktemp("s") / "f"
    write_arrays(path, TWO, {"k": "v"})
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:cut])
    with pytest.raises(DataError):
        read_arrays(path)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    with pytest.raises(DataError):
        read_arrays(path)


def test_trailing_bytes_a_missing_file_and_an_unknown_type(tmp_path):
    write_arrays(tmp_path / "f", TWO, {})
    with open(tmp_path / "f", "ab") as file:
        file.write(b"x")
    with pytest.raises(DataError):
        read_arrays(tmp_path / "f")
    with pytest.raises(DataError, match="No such file"):
        read_arrays(tmp_path / "none")
    with pytest.raises(ValueError, match="complex128"):
        write_arrays(tmp_path / "g", {"a": np.zeros(1, np.complex128)}, {})
