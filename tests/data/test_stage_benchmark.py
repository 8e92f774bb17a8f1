"""Stages of the input pipeline, generated images, and the page cache."""

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cubemesh.data.feed import Feed
from cubemesh.data.images import generated_jpegs as made_images
from cubemesh.data.images import wrapped_readers
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.data.page_cache import Extent, drop, resident_fraction
from cubemesh.data.stage_benchmark import ReadOnly, decode_only
from cubemesh.errors import DataError
from cubemesh.measure.log import Log
from cubemesh.worker.run.inputs import log_images

pytest.importorskip("PIL.Image")
SHAPE = (3, 16, 16)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(made_images, "FILES", 40)
    monkeypatch.setattr(made_images, "DIFFERENT", 3)
    return made_images.folder()


def opened(root: Path, **reading: Any) -> ImageSource:
    source = open_images(root, "train", SHAPE, 10, ImageOptions(**reading))
    assert isinstance(source, ImageSource)
    return source


def test_generated_images_have_a_realistic_size_and_are_generated_once(made: Path) -> None:
    files = sorted(made.rglob("*.jpg"))
    assert len(files) == 40
    assert 90e3 < np.mean([f.stat().st_size for f in files]) < 130e3
    before = files[0].stat().st_mtime_ns
    assert made_images.folder() == made
    assert files[0].stat().st_mtime_ns == before
    left = [p.name for p in made.parent.iterdir() if p.name != "compile"]
    assert left == [made.name], "nothing half made is left"
    assert opened(made).samples == 40, "no tenth image in classes of four"


def test_no_space_for_generated_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cubemesh").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match="Make room there"):
        made_images.folder()


def test_reading_reads_every_file_and_decodes_none(made: Path) -> None:
    (made / "class-0/00000.jpg").write_bytes(b"no image, but a file")
    source = ReadOnly(opened(made))
    feed = Feed(source, 10, 0, threads=2, epochs=1)
    assert sum(b.samples for b in feed) == 40
    feed.close()
    assert source.tally(feed.tried).skipped_images == 0
    (made / "class-0/00000.jpg").unlink()
    source.batch(np.array([0]))
    assert source.tally(np.ones(40, bool)).skipped == {"missing": 1}


def test_reading_into_a_local_cache_saves_it(made: Path, tmp_path: Path) -> None:
    class Figures(Log):
        found: ClassVar[dict[str, float]] = {}

        def emit(self, event: str, **fields: Any) -> None:
            if event == "figure":
                self.found[fields["name"]] = fields["figure"].value

    source = ReadOnly(opened(made, stage_folder=tmp_path))
    source.batch(np.arange(40))
    log_images(Figures(), (source, None))
    assert Figures.found["staged_bytes"] > 0
    assert list(tmp_path.glob("*.npz"))


def test_decoding_only_needs_no_files(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = opened(made)
    images = decode_only(whole)
    expected = whole.batch(np.arange(40)).images
    monkeypatch.setattr(wrapped_readers, "MEMORY_BYTES", 250_000)
    few = decode_only(whole)
    for file in made.rglob("*.jpg"):
        file.unlink()
    assert np.array_equal(images.batch(np.arange(40)).images, expected)
    assert few.samples == 3, "as many as fit"
    feed = Feed(images, 8, 0, threads=2, epochs=1)
    assert sum(b.samples for b in feed) == 40
    feed.close()


def test_files_can_be_dropped_from_the_page_cache(made: Path) -> None:
    files = [Extent(f, 0, f.stat().st_size) for f in made.rglob("*.jpg")]
    for extent in files:
        extent.path.read_bytes()
    if resident_fraction(files) is None:
        pytest.skip("this file system does not report what is in memory")
    assert resident_fraction(files) == 1
    for extent in files[:20]:
        drop(extent)
    if resident_fraction(files[:20]) == 1:
        pytest.skip("this file system does not drop pages")
    # The kernel keeps what it is about to sort into its lists: a file or two.
    assert resident_fraction(files) == pytest.approx(0.5, abs=0.1)
    source = opened(made, drop_page_cache=True)
    assert source.in_page_cache() == pytest.approx(0, abs=0.2)
    source.batch(np.arange(40))
    assert source.in_page_cache() == pytest.approx(0, abs=0.2)
    assert source.mean_bytes() == np.mean([e.size for e in files])


def test_missing_files_are_neither_in_memory_nor_dropped(tmp_path: Path) -> None:
    nothing = Extent(tmp_path / "nothing", 0, 10)
    drop(nothing)
    assert resident_fraction([nothing]) is None
    os.mkfifo(tmp_path / "pipe")
    drop(Extent(tmp_path / "pipe", 0, 10))
    assert resident_fraction([Extent(tmp_path / "pipe", 0, 10)]) is None
