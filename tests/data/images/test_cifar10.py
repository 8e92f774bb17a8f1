"""Files in the published format, of the published size, sparse but for the records looked at."""

from pathlib import Path

import numpy as np
import pytest

from cubemesh.data.images import cifar10
from cubemesh.data.images.cifar10 import FILE_BYTES, FILES, check_files, open_cifar10
from cubemesh.errors import DataError, UsageError

NAMES = (*FILES["train"], *FILES["validation"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        with open(tmp_path / name, "wb") as file:
            file.truncate(FILE_BYTES)
    return tmp_path


def record(label: int, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=3072).astype(np.uint8)
    return bytes([label]) + pixels.tobytes()


def write(file: Path, number: int, content: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(number * cifar10.RECORD_BYTES)
        opened.write(content)


def test_records_are_read_in_the_order_of_the_files(folder: Path) -> None:
    write(folder / "data_batch_1.bin", 0, record(7, 1))
    write(folder / "data_batch_3.bin", 9_999, record(9, 2))
    source = open_cifar10(folder, "train", (3, 32, 32), 10)
    assert source.samples == 50_000
    batch = source.batch(np.array([29_999, 1, 0]))
    assert batch.labels.tolist() == [9, 0, 7]
    expected = np.frombuffer(record(9, 2)[1:], np.uint8).reshape(3, 32, 32) / np.float32(255)
    assert np.array_equal(batch.images[0], expected.astype(np.float32))
    assert not batch.images[1].any()


def test_validation_is_the_test_file(folder: Path) -> None:
    write(folder / "test_batch.bin", 5, record(3))
    source = open_cifar10(folder, "validation", (3, 16, 16), 10)
    assert source.samples == 10_000
    batch = source.batch(np.array([5]))
    assert batch.labels.tolist() == [3]
    assert batch.images.shape == (1, 3, 16, 16)
    # Halving looks at the two nearest pixels of each axis: the mean of every block of 2×2.
    pixels = np.frombuffer(record(3)[1:], np.uint8).reshape(3, 16, 2, 16, 2) / 255
    assert np.allclose(batch.images[0], pixels.mean((2, 4)), atol=1e-6)


def test_the_folder_above_is_good_too(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    above = tmp_path_factory.mktemp("above")
    (above / cifar10.CHILD).symlink_to(folder)
    assert check_files(above) == above / cifar10.CHILD
    assert check_files(folder) == folder


@pytest.mark.parametrize(
    ("size", "words"), [(FILE_BYTES - 1, "is truncated"), (FILE_BYTES + 3073, "is too long")]
)
def test_a_file_of_another_size(folder: Path, size: int, words: str) -> None:
    with open(folder / "data_batch_4.bin", "r+b") as file:
        file.truncate(size)
    with pytest.raises(DataError) as caught:
        check_files(folder)
    message = str(caught.value)
    assert f"data_batch_4.bin {words}" in message
    assert f"{size:,} bytes" in message
    assert "30,730,000" in message


def test_a_missing_file(folder: Path) -> None:
    (folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"test_batch\.bin"):
        check_files(folder)


def test_a_missing_folder_and_an_archive(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        check_files(tmp_path / "nowhere")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"")
    with pytest.raises(DataError, match="unpack it first"):
        check_files(archive)


def test_labels_above_nine(folder: Path) -> None:
    write(folder / "data_batch_2.bin", 17, record(10))
    check_files(folder)  # sizes alone do not show it
    with pytest.raises(DataError, match=r"\b1 of .*\b10,000 .*\b17 \(10\)"):
        open_cifar10(folder, "train", (3, 32, 32), 10)


def test_too_few_classes(folder: Path) -> None:
    with pytest.raises(UsageError, match="cifar-10 has 10 classes"):
        open_cifar10(folder, "train", (3, 32, 32), 9)
