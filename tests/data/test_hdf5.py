"""HDF5 and NetCDF-4 files: rows as hyperslabs, ranks, splits, and files that are refused."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cubemesh.data.feed import Feed, in_order
from cubemesh.data.hdf5 import check_file, open_hdf5
from cubemesh.errors import DataError, UsageError

COUNT = 60
CLASSES = 4
SHAPE = (3, 8, 8)


@pytest.fixture
def h5py():
    return pytest.importorskip("h5py")


def pixels(count: int = COUNT) -> np.ndarray:
    """(count, 8, 8, 3): every image has its number as its value."""
    return np.repeat(np.arange(count, dtype=np.uint8), 8 * 8 * 3).reshape(count, 8, 8, 3)


def write(h5py, path: Path, images=None, labels=None, **more) -> Path:
    images = pixels() if images is None else images
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=images, **more)
        file["labels"] = np.arange(len(images)) % CLASSES if labels is None else labels
    return path


def values(batch) -> list[int]:
    return np.rint(batch.images.mean(axis=(1, 2, 3)) * 255).astype(int).tolist()


@pytest.mark.parametrize("more", [{}, {"chunks": (7, 8, 8, 3), "compression": "gzip"}])
def test_ranks_read_their_parts_of_every_epoch(h5py, tmp_path: Path, more) -> None:
    path = write(h5py, tmp_path / "set.h5", **more)

    def epochs(rank: int, threads: int) -> list[list[int]]:
        source = open_hdf5(path, "train", SHAPE, CLASSES)
        feed = Feed(source, 9, 3, threads=threads, epochs=2, rank=rank, ranks=2)
        made = [values(batch) for batch in feed]
        feed.close()
        return made

    ranks = [epochs(rank, threads=0) for rank in range(2)]
    assert [epochs(rank, threads=3) for rank in range(2)] == ranks
    for epoch in (slice(0, 3), slice(3, 6)):
        seen = [v for rank in ranks for batch in rank[epoch] for v in batch]
        assert sorted(seen) == [n for n in range(COUNT) if n % 10 != 9]
    assert ranks[0][:3] != ranks[0][3:]


def test_neighbouring_rows_are_one_request(h5py, tmp_path: Path) -> None:
    source = open_hdf5(write(h5py, tmp_path / "set.h5"), "train", SHAPE, CLASSES)
    asked, read = [], source._slab
    source._slab = lambda start, stop: asked.append((start, stop)) or read(start, stop)
    batch = source.batch(np.array([5, 3, 4, 40, 41, 10]))
    assert values(batch) == [5, 3, 4, 44, 45, 11]
    assert asked == [(3, 12), (44, 46)]
    assert batch.labels.tolist() == [n % CLASSES for n in values(batch)]
    order = list(source.epoch(0, 0).order)
    runs = Counter(np.diff(order).tolist())
    assert runs[1] > 0.9 * len(order)


@pytest.mark.parametrize(
    ("images", "white"),
    [
        (pixels().transpose(0, 3, 1, 2), 255),
        (pixels()[..., 0], 255),
        (pixels()[..., :1], 255),
        (pixels().astype(np.float32) / 255, 1),
        (pixels().astype(np.uint16) * 257, 65535),
    ],
)
def test_layouts_and_types(h5py, tmp_path: Path, images, white) -> None:
    source = open_hdf5(write(h5py, tmp_path / "set.h5", images), "validation", SHAPE, CLASSES)
    (batch,) = in_order(source, 10)
    assert values(batch) == [9, 19, 29, 39, 49, 59]
    assert batch.images.shape == (6, *SHAPE)


def test_groups_are_splits(h5py, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "set.nc", "w") as file:
        for name, count in (("train", 8), ("val", 4)):
            file[f"{name}/x"] = pixels(count)
            file[f"{name}/y"] = np.arange(count) % CLASSES
    path = tmp_path / "set.nc"
    assert open_hdf5(path, "train", SHAPE, CLASSES).samples == 8
    assert open_hdf5(path, "validation", (3, 16, 16), 10).samples == 4
    with pytest.raises(UsageError, match="classes=4 or more"):
        open_hdf5(path, "train", SHAPE, 2)
    with h5py.File(path, "a") as file:
        del file["val/y"]
        file["val/y"] = np.array([0, 1, 2, 9])
    with pytest.raises(DataError, match="that no training image has"):
        open_hdf5(path, "validation", SHAPE, 10)
    with h5py.File(path, "a") as file:
        del file["val"]
    with pytest.raises(DataError, match="no validation or val or test"):
        open_hdf5(path, "validation", SHAPE, CLASSES)


def test_files_of_others_do_not_choose_what_is_read(h5py, tmp_path: Path) -> None:
    whole = write(h5py, tmp_path / "whole.h5")
    (tmp_path / "raw").write_bytes(pixels().tobytes())
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["images"] = h5py.ExternalLink(str(whole), "/images")
        file["labels"] = np.arange(COUNT)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset(
            "images", pixels().shape, np.uint8, external=[(str(tmp_path / "raw"), 0, COUNT * 192)]
        )
        file["labels"] = np.arange(COUNT)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout(pixels().shape, np.uint8)
        layout[:] = h5py.VirtualSource(str(whole), "images", pixels().shape)
        file.create_virtual_dataset("images", layout)
        file["labels"] = np.arange(COUNT)
    with h5py.File(tmp_path / "detour.h5", "w") as file:
        file["there"] = h5py.ExternalLink(str(whole), "/")
        file["images"] = h5py.SoftLink("/there/images")
        file["labels"] = np.arange(COUNT)
    with h5py.File(tmp_path / "group.h5", "w") as file:
        file["train"] = h5py.ExternalLink(str(whole), "/")
    other = {"link": "another file", "detour": "another file", "group": "another file"}
    for name, words in {**other, "external": "other", "virtual": "other"}.items():
        with pytest.raises(DataError, match=words):
            open_hdf5(tmp_path / f"{name}.h5", "train", SHAPE, COUNT)


def test_links_in_the_file_are_followed(h5py, tmp_path: Path) -> None:
    with h5py.File(write(h5py, tmp_path / "set.h5"), "a") as file:
        file.move("images", "deep/pixels")
        file["deep/again"] = h5py.SoftLink("./pixels")
        file["images"] = h5py.SoftLink("/deep/again")
    assert open_hdf5(tmp_path / "set.h5", "train", SHAPE, CLASSES).samples == 54
    with h5py.File(tmp_path / "set.h5", "a") as file:
        del file["deep/again"]
        file["deep/again"] = h5py.SoftLink("/images")
    with pytest.raises(DataError, match="a circle"):
        open_hdf5(tmp_path / "set.h5", "train", SHAPE, CLASSES)


def test_sizes_that_are_only_claimed_fill_no_memory(h5py, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file.create_dataset("images", (1 << 40, 8, 8, 3), np.uint8, chunks=(32, 8, 8, 3))
        file.create_dataset("labels", (1 << 40,), np.int64, chunks=(1024,))
    with pytest.raises(DataError, match="268,435,456 are allowed"):
        open_hdf5(tmp_path / "labels.h5", "train", SHAPE, CLASSES)
    for number, size in enumerate((1 << 20, 0)):
        path = tmp_path / f"images-{number}.h5"
        with h5py.File(path, "w") as file:
            chunks = (1, 512, 512, 3) if size else None
            file.create_dataset("images", (COUNT, size, size, 3), np.uint8, chunks=chunks)
            file["labels"] = np.arange(COUNT) % CLASSES
        with pytest.raises(DataError, match="1 byte to 256 MiB"):
            open_hdf5(path, "train", SHAPE, CLASSES)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (pixels()[..., :2], None, "1 or 3 channels"),
        (pixels().astype(np.int64), None, "of uint8, uint16 or floats"),
        (None, np.arange(COUNT - 1), "integer for each of the 60"),
        (None, np.arange(COUNT) / 2, "integer for each"),
        (None, np.arange(COUNT) - 1, "no training image"),
        (None, np.array(3), "labels is not an array"),
    ],
)
def test_arrays_that_are_no_images(h5py, tmp_path: Path, images, labels, words: str) -> None:
    path = write(h5py, tmp_path / "set.h5", images, labels)
    with pytest.raises(DataError, match=words):
        open_hdf5(path, "train", SHAPE, COUNT)


def test_a_damaged_file_is_an_error(h5py, tmp_path: Path) -> None:
    path = write(h5py, tmp_path / "set.h5", compression="gzip", chunks=(4, 8, 8, 3))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        open_hdf5(path, "train", SHAPE, CLASSES)
    with h5py.File(tmp_path / "empty.h5", "w"):
        pass
    with pytest.raises(DataError, match="no dataset images"):
        open_hdf5(tmp_path / "empty.h5", "train", SHAPE, CLASSES)


def test_other_files_are_refused_without_the_library(tmp_path: Path) -> None:
    path = tmp_path / "set.nc"
    with pytest.raises(DataError, match="No such file"):
        check_file(path)
    path.write_bytes(b"CDF\x01" + bytes(100))
    with pytest.raises(DataError, match="nccopy -k nc4"):
        check_file(path)
    path.write_bytes(bytes(5000))
    with pytest.raises(DataError, match="neither an HDF5 nor a NetCDF-4 file"):
        check_file(path)
    path.write_bytes(bytes(1024) + b"\x89HDF\r\n\x1a\n")
    check_file(path)
