"""Files in CIFAR-10's Python format, made from noise; and pickles that would do harm."""

import os
import pickle

import numpy as np
import pytest

from cubemesh.data.images.cifar10 import FILES, check_files, open_cifar10
from cubemesh.data.images.cifar10_python import IMAGE_BYTES, RECORDS, read_batch
from cubemesh.errors import DataError

NAMES = [name.removesuffix(".bin") for name in (*FILES["train"], *FILES["validation"])]


def contents(seed=0, **changed):
    rng = np.random.default_rng(seed)
    data = rng.integers(256, size=(RECORDS, IMAGE_BYTES), dtype=np.uint8)
    labels = [n % 10 for n in range(RECORDS)]
    whole = {"data": data, "labels": labels, "batch_label": b"made from noise", **changed}
    return {key.encode(): value for key, value in whole.items()}


@pytest.mark.parametrize("protocol", [2, 4])
def test_images_and_labels_come_back(tmp_path, protocol):
    file = tmp_path / "test_batch"
    file.write_bytes(pickle.dumps(contents(), protocol))
    images, labels = read_batch(file)
    assert np.array_equal(images, contents()[b"data"])
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_a_folder_of_the_python_format_is_opened(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / NAMES[0]).write_bytes(pickle.dumps(contents(3), 2))
    for name in NAMES[1:]:
        (folder / name).hardlink_to(folder / NAMES[0])
    source = open_cifar10(tmp_path, "validation", (3, 32, 32), 10)
    batch = source.batch(np.array([9_999, 4]))
    assert batch.labels.tolist() == [9, 4]
    expected = contents(3)[b"data"][4].reshape(3, 32, 32) / np.float32(255)
    assert np.array_equal(batch.images[1], expected.astype(np.float32))
    (folder / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\b"):
        check_files(tmp_path)


class Harm:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_would_run_a_command_is_refused(tmp_path, protocol):
    trace, file = tmp_path / "trace", tmp_path / "test_batch"
    payload = pickle.dumps({b"data": Harm(f"touch {trace}")}, protocol)
    file.write_bytes(payload)
    with pytest.raises(DataError, match=r"(posix|nt)\.system\b"):
        read_batch(file)
    assert not trace.exists()
    pickle.loads(payload)  # the payload is a real one
    assert trace.exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps(contents(), 2)[:5_000]])
def test_what_is_no_pickle_or_a_part_of_one_is_refused(tmp_path, content):
    file = tmp_path / "test_batch"
    file.write_bytes(content)
    with pytest.raises(DataError, match="is refused"):
        read_batch(file)


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": [10] * RECORDS},
        {"labels": [0]},
        {"data": np.zeros((2, IMAGE_BYTES), np.uint8)},
        {"data": [1, 2]},
    ],
)
def test_other_contents_are_refused(tmp_path, changed):
    file = tmp_path / "test_batch"
    file.write_bytes(pickle.dumps(contents(**changed), 2))
    with pytest.raises(DataError, match=r"test_batch .*\b10,000 × 3,072 .*\b0 to 9"):
        read_batch(file)


def test_something_else_than_a_dictionary_is_refused(tmp_path):
    file = tmp_path / "test_batch"
    file.write_bytes(pickle.dumps([1, 2], 2))
    with pytest.raises(DataError, match=r"test_batch .*\b10,000 × 3,072 .*\b0 to 9"):
        read_batch(file)
