"""The file format: what is written comes back, others read it, and damage is told."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from cubemesh.errors import DataError
from cubemesh.training import safetensors

KINDS = st.sampled_from([np.dtype(name) for name in safetensors.DTYPES.values()])
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


def written(arrays, metadata=None):
    file = io.BytesIO()
    size = safetensors.write(file, arrays, metadata or {"k": "v"})
    assert size == len(file.getvalue())
    return file.getvalue()


@PATIENT
@given(ARRAYS, st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3))
def test_arrays_come_back_bit_for_bit(tmp_path_factory, arrays, metadata):
    path = tmp_path_factory.mktemp("s") / "f"
    metadata.pop("sha256", None)
    path.write_bytes(written(arrays, metadata or {"k": "v"}))
    found, told = safetensors.read(path)
    assert told == (metadata or {"k": "v"})
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
        assert found[name].flags.writeable


def test_the_layout_is_the_published_one():
    data = written(TWO)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header["a"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert header["b"] == {"dtype": "U8", "shape": [2], "data_offsets": [24, 26]}
    assert data[8 + length :] == TWO["a"].tobytes() + b"\x01\x02"
    assert header["__metadata__"]["k"] == "v"


def test_the_package_of_that_name_reads_it(tmp_path):
    package = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    (tmp_path / "f").write_bytes(written(TWO))
    found = package.load_file(tmp_path / "f")
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in TWO.items()
    }


@PATIENT
@given(st.data())
def test_one_changed_bit_or_a_torn_end_is_told(tmp_path_factory, data):
    whole = written(TWO)
    path: Path = tmp_path_factory.mktemp("s") / "f"
    cut = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:cut])
    with pytest.raises(DataError, match=r"torn|damaged"):
        safetensors.read(path)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    with pytest.raises(DataError, match=r"torn|damaged"):
        safetensors.read(path)


def test_more_than_there_should_be_and_nothing_at_all(tmp_path):
    (tmp_path / "f").write_bytes(written(TWO) + b"x")
    with pytest.raises(DataError, match="damaged"):
        safetensors.read(tmp_path / "f")
    with pytest.raises(DataError, match="cannot be read: No such file"):
        safetensors.read(tmp_path / "none")
    with pytest.raises(ValueError, match="no name for arrays of complex64"):
        safetensors.write(io.BytesIO(), {"a": np.zeros(1, np.complex64)}, {})
