"""A pack has what its source has, and no more than it may."""

import re
from pathlib import Path

import numpy as np
import pytest

from cubemesh.data.feed import Feed
from cubemesh.data.images import local_cache as staging
from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.image_folder import ImageFolder
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.local_cache import LocalCache
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.errors import UsageError

Image = pytest.importorskip("PIL.Image")
COUNT = 30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """30 different files with names of images."""
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        place = tmp_path / "source" / split / "a"
        place.mkdir(parents=True)
        for number in range(COUNT):
            (place / f"{number:02}.jpg").write_bytes(generator.bytes(1000 + number))
    return tmp_path / "source"


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """However full the disk of this machine is."""
    monkeypatch.setattr(staging, "FREE_FRACTION", 0.0)


def opened(source: Path, limit_bytes: int = 1 << 20) -> LocalCache:
    return LocalCache(ImageFolder(source, "train"), source.parent / "local", limit_bytes)


def read_all(staged: LocalCache) -> list[bytes]:
    return [staged.read(n) for n in range(COUNT)]


def test_what_was_read_once_comes_from_the_local_disk_also_in_later_runs(source: Path) -> None:
    first = opened(source)
    expected = read_all(first)
    first.close()
    assert first.staged == COUNT
    assert first.staged_bytes == sum(map(len, expected))
    later = opened(source)
    assert later.staged == COUNT
    for file in source.rglob("*.jpg"):
        content = file.read_bytes()
        with open(file, "r+b") as opened_again:  # the same file, and not to be read any more
            opened_again.write(bytes(len(content)))
    assert read_all(later) == expected
    later.close()
    names = sorted(p.suffix for p in (source.parent / "local").iterdir())
    assert names == [".npz", ".pack"], "nothing half made is left"


def test_a_run_that_ends_early_is_gone_on_with(source: Path) -> None:
    first = opened(source)
    for number in range(10):
        first.read(number)
    first.close()
    second = opened(source)
    assert second.staged == 10
    expected = read_all(second)
    second.close()
    third = opened(source)
    assert third.staged == COUNT
    assert read_all(third) == expected
    assert third.pack.stat().st_size == sum(map(len, expected)), "each is there once"
    third.close()


def test_a_run_that_was_killed_leaves_what_was_true_before(source: Path) -> None:
    first = opened(source)
    for number in range(5):
        first.read(number)
    first.close()
    with open(first.pack, "ab") as pack:
        pack.write(b"half an image of a run that was killed")
    second = opened(source)
    assert second.staged == 5
    expected = [(source / "train/a" / f"{n:02}.jpg").read_bytes() for n in range(COUNT)]
    assert read_all(second) == expected
    second.close()
    assert read_all(opened(source)) == expected


def test_the_limit_holds_and_the_rest_is_read_from_the_source(source: Path) -> None:
    staged = opened(source, limit_bytes=5000)
    expected = read_all(staged)
    staged.close()
    assert "size limit" in staged.stopped
    assert staged.pack.stat().st_size <= 5000
    assert staged.staged == 4
    assert read_all(staged) == expected


def test_a_disk_that_is_nearly_full_is_left_alone(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FREE_FRACTION", 1.0)
    staged = opened(source)
    read_all(staged)
    staged.close()
    assert staged.staged == 0
    assert "tenth" in staged.stopped


def test_of_two_runs_one_writes(source: Path) -> None:
    one, other = opened(source), opened(source)
    assert "another run" in other.stopped
    assert not one.stopped
    assert read_all(other) == read_all(one)
    other.close()
    one.close()
    assert opened(source).staged == COUNT


@pytest.mark.parametrize("content", [b"", b"no index", b"PK\x03\x04 half a zip"])
def test_an_invalid_index_is_ignored(source: Path, content: bytes) -> None:
    first = opened(source)
    read_all(first)
    first.close()
    first.pack.with_suffix(".npz").write_bytes(content)
    again = opened(source)
    assert again.staged == 0
    assert len(read_all(again)) == COUNT
    again.close()
    assert again.staged == COUNT


def test_other_files_have_another_pack(source: Path) -> None:
    before = opened(source).pack
    (source / "train/a/new.jpg").write_bytes(b"new")
    assert opened(source).pack != before
    assert LocalCache(ImageFolder(source, "validation"), source.parent / "local").pack != before


def test_unreadable_images_are_not_cached(source: Path) -> None:
    staged = opened(source)
    (source / "train/a/03.jpg").unlink()
    with pytest.raises(Skipped, match="missing"):
        staged.read(3)
    staged.close()
    assert staged.staged == 0


def test_a_folder_that_cannot_be_written_to(source: Path) -> None:
    (source / "file").write_text("")
    with pytest.raises(UsageError, match=re.escape(f"stage_folder={source / 'file'}")):
        LocalCache(ImageFolder(source, "train"), source / "file")


def test_training_through_a_pack_is_the_same_training(tmp_path: Path) -> None:
    for number in range(20):
        place = tmp_path / "set" / f"class-{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 30), (10 * number,) * 3).save(place / f"{number}.jpg")

    def epochs(reading: ImageOptions) -> list[float]:
        images = open_images(tmp_path / "set", "train", (3, 8, 8), 2, reading)
        assert isinstance(images, ImageSource)
        feed = Feed(images, 6, 0, threads=2, epochs=2)
        made = [float(b.images.sum()) for b in feed]
        feed.close()
        return made

    plain = epochs(ImageOptions())
    assert epochs(ImageOptions(stage_folder=tmp_path / "local")) == plain
