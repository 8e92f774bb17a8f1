"""Minibatches of files: what they hold, and who decodes what the device does not."""

import io
from pathlib import Path

import numpy as np
import pytest

from cubemesh.batches import PADDING, EncodedBatch, EncodedImage
from cubemesh.data.feed import Feed, in_order
from cubemesh.data.images.decode import Augmentation, Decoder, Skipped
from cubemesh.data.images.encoded_source import REFUSED, EncodedSource
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.data.stage_benchmark import decode_only
from cubemesh.errors import UsageError

Image = pytest.importorskip("PIL.Image")
SHAPE = (3, 16, 16)
PER_CLASS = 10


def saved(value: int, kind: str = "JPEG", mode: str = "RGB", **saving: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (value,) * 3).convert(mode).save(file, kind, **saving)
    return file.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for label in range(2):
            place = tmp_path / split / f"class-{label}"
            place.mkdir(parents=True)
            for n in range(PER_CLASS):
                (place / f"{n:02}.jpg").write_bytes(saved(20 * n))
    return tmp_path


def opened(root: Path, split="train", **reading: object) -> EncodedSource:
    source = open_images(root, split, SHAPE, 2, ImageOptions(stays_encoded=True, **reading))
    assert isinstance(source, EncodedSource)
    return source


def rows(source: EncodedSource, *numbers: int) -> tuple[EncodedBatch, list[object]]:
    batch = source.batch(np.array(numbers))
    assert isinstance(batch, EncodedBatch)
    return batch, list(batch.rows)


def test_a_minibatch_holds_files_and_what_of_them_is_wanted(root: Path) -> None:
    source = opened(root)
    drawn = source.epoch(3, seed=5).source.batch(np.array([4, 15]))
    assert isinstance(drawn, EncodedBatch)
    assert drawn.labels.tolist() == [0, 1]
    for number, row in zip((4, 15), drawn.rows, strict=True):
        assert isinstance(row, EncodedImage)
        assert row.data == source.encoded.read(number)
        assert row.size == (40, 30)
        assert (row.box, row.mirrored) == Augmentation(5, 3).box(number, 40, 30)
    assert drawn.size_bytes == sum(len(r.data) for r in drawn.rows) + 16
    assert (source.empty(2).samples, source.empty(2).size_bytes) == (2, 16)


def test_the_host_decodes_what_is_no_plain_jpeg(root: Path) -> None:
    (root / "train/class-0/00.jpg").write_bytes(saved(80, "PNG"))
    (root / "train/class-0/01.jpg").write_bytes(saved(80, mode="CMYK"))
    (root / "train/class-0/02.jpg").write_bytes(saved(80, mode="L"))
    source = opened(root)
    same = open_images(root, "train", SHAPE, 2)
    _, (png, cmyk, grey, plain) = rows(source, 0, 1, 2, 3)
    assert isinstance(grey, EncodedImage)
    assert isinstance(plain, EncodedImage)
    for number, pixels in ((0, png), (1, cmyk)):
        assert isinstance(pixels, np.ndarray)
        assert np.array_equal(pixels / np.float32(255), same.batch(np.array([number])).images[0])
    same.batch(np.array([2]))
    tally, other = (s.tally(np.ones(20, bool)) for s in (source, same))
    assert tally.by_host == {"no plain JPEG": 2}
    assert tally.conversions == other.conversions == {"PNG named as JPEG": 1, "CMYK": 1, "grey": 1}
    assert other.by_host == {}
    again = rows(source, 0)[1][0]
    assert np.array_equal(again, png), "in later epochs too"


def test_large_images_are_left_to_the_host(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubemesh.data.images.encoded_source.LARGE_PIXELS", 1199)
    source = opened(root)
    assert isinstance(rows(source, 7)[1][0], np.ndarray)
    assert source.tally(np.ones(20, bool)).by_host == {"large": 1}


def test_unusable_images_are_skipped_as_on_the_host(root: Path) -> None:
    (root / "train/class-0/00.jpg").write_bytes(b"")
    (root / "train/class-0/01.jpg").write_bytes(saved(0)[:-300])
    (root / "train/class-0/02.jpg").write_bytes(b"text")
    (root / "train/class-1/09.jpg").unlink()
    (root / "train/class-1/09.jpg").mkdir()
    source, same = opened(root), open_images(root, "train", SHAPE, 2)
    batch, held = rows(source, 0, 1, 2, 19)
    assert batch.labels.tolist() == [0, 0, 0, 0]
    assert [r.data for r in held if isinstance(r, EncodedImage)] == [source.encoded.read(3)] * 4
    same.batch(np.array([0, 1, 2, 19]))
    tallies = [s.tally(np.ones(20, bool)) for s in (source, same)]
    assert tallies[0].skipped == tallies[1].skipped
    assert tallies[0].skipped_images == 4
    assert tallies[0].by_host == {}, "skipped images are not decoded"


def test_a_file_the_device_refuses_is_decoded_on_the_host(root: Path) -> None:
    source = opened(root)
    row = rows(source, 6)[1][0]
    assert isinstance(row, EncodedImage)
    pixels, label = row.by_host()
    assert label == 0
    assert pixels.shape == SHAPE
    assert abs(int(pixels.mean()) - 120) <= 2
    assert source.tally(np.ones(20, bool)).by_host == {REFUSED: 1}
    assert isinstance(rows(source, 6)[1][0], np.ndarray), "it is not offered again"
    assert row.whole() is not None


def test_a_file_that_both_refuse_is_replaced(root: Path) -> None:
    broken = bytearray(saved(0))
    broken[broken.index(b"\xff\xc4") + 5 : broken.index(b"\xff\xc4") + 21] = b"\xff" * 16
    (root / "train/class-0/05.jpg").write_bytes(broken)
    (root / "val/class-0/05.jpg").write_bytes(broken)
    train, validation = opened(root), opened(root, "validation")
    held = [rows(source, 5)[1][0] for source in (train, validation)]
    assert all(isinstance(row, EncodedImage) for row in held), "its header is plain"
    pixels, label = held[0].by_host()
    assert (label, round(pixels.mean() / 20)) == (0, 6), "the next takes its place"
    pixels, label = held[1].by_host()
    assert (label, pixels.max()) == (PADDING, 0)
    assert held[0].whole() is None
    assert train.tally(np.ones(20, bool)).skipped_images == 1


def test_any_number_of_threads_gives_the_same_epochs(root: Path) -> None:
    (root / "train/class-0/03.jpg").write_bytes(saved(60, "PNG"))

    def epochs(threads: int) -> list[object]:
        feed = Feed(opened(root), 6, seed=5, threads=threads, epochs=2)
        made = [
            [(r.data, r.box) if isinstance(r, EncodedImage) else r.tobytes() for r in b.rows]
            for b in feed
        ]
        feed.close()
        return made

    assert epochs(0) == epochs(3)
    assert len(epochs(2)) == 6


def test_a_broken_image_is_black_and_not_counted_in_evaluation(root: Path) -> None:
    (root / "val/class-1/02.jpg").write_bytes(b"")
    (whole,) = in_order(opened(root, "validation"), 20)
    assert whole.labels.tolist().count(PADDING) == 1
    assert whole.rows[12].max() == 0


def test_decoding_alone_stays_encoded(root: Path) -> None:
    alone = decode_only(opened(root))
    for path in root.rglob("*.jpg"):
        path.unlink()
    assert isinstance(alone.batch(np.arange(20)).rows[19], EncodedImage)


def test_decoded_once_and_by_the_device_are_two_ways() -> None:
    with pytest.raises(UsageError, match=r"cache_decoded=true .*decode_location=device"):
        ImageOptions(cache_decoded=True, stays_encoded=True)


def test_an_image_with_too_many_pixels_is_not_decoded_whole(root: Path) -> None:
    """Whatever its header seemed to say."""
    decoder = opened(root).decoder
    assert decoder.whole(saved(0)).shape == (3, 30, 40)
    few = Decoder(3, 16, 16, max_pixels=1199)
    with pytest.raises(Skipped, match="too many pixels"):
        few.whole(saved(0))
