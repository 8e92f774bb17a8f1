import dataclasses

import numpy as np
import pytest

from cubemesh.batches import Batch
from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.frameworks.contract.program import monotonic_s


def test_the_size_of_a_batch():
    batch = Batch(images=np.zeros((3, 1, 2, 2), np.float32), labels=np.zeros(3, np.int64))
    assert batch.samples == 3
    assert batch.size_bytes == 3 * 4 * 4 + 3 * 8


def test_a_batch_of_tokens_has_an_array_for_each_input():
    source, target = np.zeros((3, 7), np.int64), np.ones((3, 5), np.int64)
    batch = Batch(source, target, labels=np.zeros((3, 5), np.int64))
    assert batch.inputs == (source, target)
    assert batch.samples == 3
    assert batch.size_bytes == 8 * 3 * (7 + 5 + 5)


def test_the_clock_never_goes_back():
    readings = [monotonic_s() for _ in range(100)]
    assert readings == sorted(readings)


def test_an_unknown_framework_suggests_the_nearest():
    assert entry("null") is FRAMEWORKS["null"]
    with pytest.raises(UsageError, match="pytorch"):
        entry("pytorc")


def test_a_missing_framework_is_detected_without_importing_it():
    missing = dataclasses.replace(FRAMEWORKS["pytorch"], requires="no_such_module")
    assert not missing.installed
    assert FRAMEWORKS["null"].installed
