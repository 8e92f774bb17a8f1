"""The table of sources, and what is found wrong before anything runs."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from cubemesh import data
from cubemesh.data.feed import in_order
from cubemesh.data.images import generated_jpegs as made_images
from cubemesh.data.images.cifar10 import FILE_BYTES, FILES
from cubemesh.errors import DataError, UsageError
from cubemesh.networks import build

IMAGES = [name for name, line in data.SOURCES.items() if line.open is not None]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """A path for every source that takes one."""
    for names in FILES.values():
        for name in names:
            with open(tmp_path / name, "wb") as file:
                file.truncate(FILE_BYTES)
    monkeypatch.setattr(made_images, "FILES", 200)
    monkeypatch.setattr(made_images, "DIFFERENT", 2)
    image = pytest.importorskip("PIL.Image").new("RGB", (20, 20), (9, 99, 199))
    for number in range(20):
        folder = tmp_path / f"class-{number % 2}"
        folder.mkdir(exist_ok=True)
        image.save(folder / f"{number}.jpg")
    found = {n: str(tmp_path) if e.check_path else None for n, e in data.SOURCES.items()}
    found["hdf5"] = str(tmp_path / "set.h5")
    with suppress(ImportError):
        import h5py

        with h5py.File(found["hdf5"], "w") as file:
            file["images"] = np.zeros((20, 8, 8, 3), np.uint8)
            file["labels"] = np.arange(20) % 10
    return found


@pytest.fixture(autouse=True)
def _its_library(request: pytest.FixtureRequest) -> None:
    """A test of a source whose library is not installed is skipped."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("name") == "hdf5":
        pytest.importorskip("h5py")


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_source_gives_batches(
    name: str, split: data.source.Split, paths: dict[str, str | None]
) -> None:
    data.check(name, paths[name], batch_per_device=8)
    network = build("little-cnn", 12, 16)
    source = data.open_for(network, name, paths[name], split, seed=0, samples_needed=8)
    batch = next(in_order(source, 8))
    assert source.name == name
    assert batch.images.shape == (min(8, source.samples), 3, 12, 12)
    assert 0 <= batch.images.min() <= batch.images.max() <= 1
    assert batch.labels.max() < source.classes <= 16


@pytest.mark.parametrize("name", IMAGES)
def test_the_table_says_what_opening_finds(name: str, paths: dict[str, str | None]) -> None:
    line = data.entry(name)
    source = data.open_for(build("little-cnn", 8, 10), name, paths[name], "train", seed=0)
    assert line.classes in (None, source.classes)
    assert line.train_samples in (None, source.samples)
    assert line.about


def test_an_unknown_name_meets_its_nearest() -> None:
    with pytest.raises(UsageError, match=r"'cifar10' .*\bcifar-10\b"):
        data.check("cifar10", None)


def test_a_path_where_none_is_taken() -> None:
    with pytest.raises(UsageError, match=r"data_path=/tmp .*data=digits"):
        data.check("digits", "/tmp")


def test_no_path_where_one_is_needed() -> None:
    with pytest.raises(UsageError, match=r"data=cifar-10 .*\bdata_path\b"):
        data.check("cifar-10")


def test_broken_files(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"data_batch_1\.bin .*\b5 bytes"):
        data.check("cifar-10", str(tmp_path))


def test_a_home_folder_is_found(monkeypatch: pytest.MonkeyPatch, paths: dict[str, str]) -> None:
    monkeypatch.setenv("HOME", paths["cifar-10"])
    data.check("cifar-10", "~")
    source = data.open_for(build("little-cnn"), "cifar-10", "~", "train", seed=0)
    assert np.array_equal(source.batch(np.array([4])).labels, [0])


def test_a_batch_larger_than_the_data() -> None:
    data.check("digits", None, batch_per_device=1438)
    data.check("synthetic", None, batch_per_device=100_000)
    with pytest.raises(UsageError, match=r"batch_per_device=1439 .*\b1,438 .*\bdigits\b"):
        data.check("digits", None, batch_per_device=1439)


def test_the_home_folder_of_an_unknown_user_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"data_path=~no such user/x begins with the home folder"):
        data.check("images", "~no such user/x")
