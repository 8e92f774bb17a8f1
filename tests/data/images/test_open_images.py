"""Images in folders and tar shards: reading, order, and skipped files."""

import io
import itertools
import random
import sys
import tarfile
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh import data
from cubemesh.batches import PADDING
from cubemesh.data.feed import Feed, in_order
from cubemesh.data.images import open_images as images
from cubemesh.data.images import tar_shards
from cubemesh.data.images.decode import Augmentation, centre_crop, random_crop, uniform_numbers
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.open_images import CachedImages, ImageOptions, open_images
from cubemesh.data.images.tar_shards import TarShards, find_shards, shuffled
from cubemesh.data.source import HasEpochs
from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.program import Unsupported

Image = pytest.importorskip("PIL.Image")
SHAPE = (3, 32, 32)


def photo(value: int, width: int = 40, height: int = 30) -> bytes:
    """A JPEG of one grey value, which decoding keeps to within 2."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (value,) * 3).save(file, "JPEG", quality=95)
    return file.getvalue()


def folder(root: Path, per_class: int = 12, classes: int = 3) -> Path:
    """Classes of images whose grey value is 20 × number in the class."""
    for split in ("train", "val"):
        for label in range(classes):
            place = root / split / f"class-{label}"
            place.mkdir(parents=True)
            for number in range(per_class):
                (place / f"{number:02}.jpg").write_bytes(photo(20 * number))
    return root


def shard(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def shards(root: Path, count: int = 3, each: int = 10) -> Path:
    for number in range(count):
        members = {}
        for n in range(each):
            members[f"{number}-{n:03}.jpg"] = photo(20 * n)
            members[f"{number}-{n:03}.cls"] = str(n % 4).encode()
        shard(root / f"{number:02}.tar", members)
    return root


@pytest.fixture(params=["folder", "shards"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> ImageSource:
    make = folder if request.param == "folder" else shards
    opened = open_images(make(tmp_path), "train", SHAPE, 10)
    assert isinstance(opened, ImageSource)
    return opened


def test_images_come_with_their_labels(source: ImageSource) -> None:
    batch = next(iter(in_order(source, source.samples)))
    assert batch.images.shape == (source.samples, *SHAPE)
    assert batch.labels.tolist() == source.encoded.labels.tolist()
    values = batch.images.mean(axis=(1, 2, 3)) * 255 / 20
    for number in range(source.samples):
        within = int(source.encoded.name(number).removesuffix(".jpg")[-2:])
        assert values[number] == pytest.approx(within, abs=0.1)


def test_any_number_of_threads_gives_the_same_epochs(source: ImageSource) -> None:
    def epochs(threads: int) -> list[tuple[list[int], list[float]]]:
        feed = Feed(source, 7, seed=5, threads=threads, epochs=2)
        made = [(b.labels.tolist(), b.images.sum(axis=(1, 2, 3)).tolist()) for b in feed]
        feed.close()
        return made

    assert epochs(0) == epochs(1) == epochs(3)


def test_an_epoch_has_every_image_once_in_another_order(source: ImageSource) -> None:
    assert isinstance(source, HasEpochs)
    orders = [list(source.epoch(n, seed=0).order) for n in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(source.samples))
    assert orders[0] != orders[1]
    assert list(source.epoch(0, seed=0).order) == orders[0]
    assert list(source.epoch(0, seed=1).order) != orders[0]


def test_training_crops_and_mirrors_anew_in_each_epoch(tmp_path: Path) -> None:
    place = tmp_path / "one"
    place.mkdir()
    ramp = np.zeros((48, 64, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(64) * 4, np.arange(48)[:, None] * 5
    for number in range(2):
        Image.fromarray(ramp).save(place / f"{number}.png")
    opened = open_images(tmp_path, "train", SHAPE, 2)
    assert isinstance(opened, ImageSource)
    seen = [opened.epoch(n, 0).source.batch(np.array([0])).images for n in range(12)]
    assert len({s.tobytes() for s in seen}) == 12
    rising = {bool(s[0, 0, 0, -1] > s[0, 0, 0, 0]) for s in seen}
    assert rising == {True, False}
    assert np.array_equal(opened.epoch(3, 0).source.batch(np.array([0])).images, seen[3]), (
        "an epoch can be had again"
    )


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 2**32))
def test_crops_lie_within_the_image(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = random_crop(random.Random(seed).random, width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    left, top, right, bottom = centre_crop(width, height, 224, 224)
    assert -1e-9 < left < right < width + 1e-9
    assert right - left == pytest.approx(0.875 * min(width, height))


def test_crops_have_the_areas_and_shapes_of_the_paper() -> None:
    boxes = [Augmentation(0, 0).box(n, 500, 375)[0] for n in range(2000)]
    areas = np.array([(right - left) * (low - top) for left, top, right, low in boxes]) / (
        500 * 375
    )
    ratios = np.array([(right - left) / (low - top) for left, top, right, low in boxes])
    assert 0.07 < areas.min() < 0.1
    assert 0.9 < areas.max() <= 1
    assert 0.72 < ratios.min() < ratios.max() < 1.37


@given(st.text(max_size=20))
def test_the_numbers_of_a_name_are_its_own_and_do_not_end(name: str) -> None:
    numbers, again, other = (
        list(itertools.islice(uniform_numbers(n), 20)) for n in (name, name, name + " ")
    )
    assert numbers == again
    assert not set(numbers) & set(other)
    assert all(0 <= number < 1 for number in numbers)


def test_drawn_numbers_are_spread_evenly() -> None:
    drawn = [next(uniform_numbers(f"0 0 {n}")) for n in range(4000)]
    drawn += itertools.islice(uniform_numbers("one"), 4000)
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert np.square(counts - 400).sum() / 400 < 43.8, "chi-square of 19 degrees, p = 0.001"


@given(st.integers(0, 300), st.integers(1, 50), st.integers(0, 2**32))
def test_shuffling_in_a_buffer_is_a_permutation(count: int, buffer: int, seed: int) -> None:
    order = list(shuffled(range(count), buffer, np.random.default_rng(seed)))
    assert sorted(order) == list(range(count))
    assert all(number <= place + buffer for place, number in enumerate(order)), "none comes early"


def test_a_broken_image_is_replaced_in_training_and_not_counted_in_evaluation(
    tmp_path: Path,
) -> None:
    root = folder(tmp_path)
    (root / "train/class-1/03.jpg").write_bytes(b"")
    (root / "val/class-2/11.jpg").write_bytes(b"GIF89a and no more")
    train, validation = (open_images(root, s, SHAPE, 3) for s in ("train", "validation"))
    assert isinstance(train, ImageSource)
    assert isinstance(validation, ImageSource)
    batch = train.batch(np.array([15, 16]))
    assert batch.labels.tolist() == [1, 1]
    assert np.array_equal(batch.images[0], batch.images[1]), "the next image takes its place"
    (whole,) = in_order(validation, 36)
    assert Counter(whole.labels.tolist()) == {0: 12, 1: 12, 2: 11, PADDING: 1}
    tally = train.tally(np.ones(36, bool))
    assert (tally.tried, tally.skipped) == (36, {"empty file": 1})
    assert tally.examples == {"empty file": ("class-1/03.jpg",)}
    assert train.tally(np.zeros(36, bool)).skipped_images == 0


@pytest.mark.parametrize("split", ["train", "validation"])
def test_nothing_that_can_be_used(tmp_path: Path, split: data.source.Split) -> None:
    root = folder(tmp_path, per_class=2)
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"no image")
    source = open_images(root, split, SHAPE, 3)
    with pytest.raises(DataError, match=r"\b6 images .*: 6 not an image"):
        list(in_order(source, 4, threads=2))


def test_without_splits_every_tenth_image_is_for_validation(tmp_path: Path) -> None:
    place = tmp_path / "only"
    place.mkdir()
    for number in range(25):
        (place / f"{number:02}.png").touch()
    names = {
        split: [s.encoded.name(n) for n in range(s.samples)]
        for split in ("train", "validation")
        if isinstance(s := open_images(tmp_path, split, SHAPE, 1), ImageSource)
    }
    assert names["validation"] == ["only/09.png", "only/19.png"]
    assert sorted(chain(*names.values())) == [f"only/{n:02}.png" for n in range(25)]


def test_images_kept_decoded_are_those_of_evaluation(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "train/class-0/00.jpg").write_bytes(b"")
    kept = open_images(root, "train", SHAPE, 3, ImageOptions(cache_decoded=True))
    fresh = open_images(root, "train", SHAPE, 3)
    assert isinstance(kept, CachedImages)
    assert kept.samples == 35
    assert np.array_equal(kept.batch(np.arange(35)).images, fresh.batch(np.arange(1, 36)).images)
    assert kept.tally(np.zeros(35, bool)).skipped == {"empty file": 1}


def test_without_the_decoder_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Unsupported, match=r"pip install 'cubemesh\[images\]'"):
        open_images(root, "train", SHAPE, 3)


def test_images_larger_than_asked_for(tmp_path: Path) -> None:
    opened = open_images(folder(tmp_path), "train", SHAPE, 3, ImageOptions(max_pixels=1199))
    with pytest.raises(DataError, match="36 too many pixels"):
        opened.batch(np.array([0]))
    with pytest.raises(UsageError, match=r"max_image_pixels=99000000 .*\b1 to \d"):
        ImageOptions(max_pixels=99_000_000)


def test_a_network_of_one_channel_sees_grey(tmp_path: Path) -> None:
    opened = open_images(folder(tmp_path), "train", (1, 8, 8), 3)
    assert opened.batch(np.array([2])).images.mean() == pytest.approx(40 / 255, abs=0.01)
    with pytest.raises(UsageError, match=r"\b1 or 3 channels .*\b4\b"):
        open_images(tmp_path, "train", (4, 8, 8), 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: None, "has no folders of images"),
        (lambda root: (root / "a").mkdir(), r"\b1 classes"),
        (lambda root: (root / "train/a").mkdir(parents=True), "neither val nor validation"),
    ],
)
def test_folders_without_images(tmp_path: Path, make, words: str) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=words):
        data.check("images", str(tmp_path))


def test_a_class_to_validate_on_that_none_trains_on(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "val/class-9").mkdir()
    with pytest.raises(DataError, match=r"\b1 classes .*'class-9'"):
        open_images(root, "validation", SHAPE, 10)


def test_more_classes_than_the_network_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"images .*\b3 classes.*\b2\b"):
        open_images(folder(tmp_path), "train", SHAPE, 2)


NAMES = st.text("abc", min_size=1, max_size=4)
PATHS = st.builds("/".join, st.lists(NAMES, min_size=1, max_size=30))
SUFFIXES = st.sampled_from([".jpg", ".JPEG", ".png", ".txt", ".seg.png"])
FORMATS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.tuples(PATHS, SUFFIXES), st.binary(max_size=1500), max_size=8),
    FORMATS,
)
def test_shards_hold_what_tarfile_reads(tmp_path_factory, members, kind: int) -> None:
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    expected = {}
    with tarfile.open(path, "w", format=kind) as archive:
        for (name, suffix), content in members.items():
            full = f"folder-é/{name}{suffix}"
            if len(full) > 90 and kind == tarfile.USTAR_FORMAT:
                continue
            member = tarfile.TarInfo(full)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
            if suffix != ".txt":
                expected[full] = content
    found = find_shards(path.parent)
    assert found is not None
    chosen: dict[str, bytes] = {}
    for split in ("train", "validation"):
        try:
            own = TarShards(found, split)
        except DataError:
            continue
        chosen |= {own.name(n).partition("/")[2]: own.read(n) for n in range(len(own.labels))}
    assert chosen == expected or len(expected) == 0


def test_classes_named_in_json_and_by_folders(tmp_path: Path) -> None:
    shard(
        tmp_path / "json/train/0.tar",
        {"a.jpg": photo(0), "a.json": b'{"label": 3}', "b.json": b'{"cls": 1}', "b.jpg": photo(9)},
    )
    shard(tmp_path / "json/val/0.tar", {"c.jpg": photo(0), "c.cls": b" 2\n"})
    shard(tmp_path / "folders/0.tar", {"x/zebra/1.jpg": photo(0), "x/ant/2.jpg": photo(0)})
    train, validation = (
        open_images(tmp_path / "json", s, SHAPE, 4).batch(np.array([0])).labels.tolist()
        for s in ("train", "validation")
    )
    assert (train, validation) == ([3], [2])
    named = open_images(tmp_path / "folders", "train", SHAPE, 2)
    assert named.batch(np.array([0, 1])).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"a.jpg": b"", "b.cls": b"1"}, "has no images for train in its tar files"),
        ({"a.jpg": b""}, "Images in tar files need their class"),
        ({"a.txt": b""}, "need their class"),
        (
            {"a.jpg": b"", "a.cls": b"2147483647"},
            r"2147483647\b.*\b1048575\b",
        ),
    ],
)
def test_shards_without_classes(tmp_path: Path, members, words: str) -> None:
    shard(tmp_path / "0.tar", members)
    with pytest.raises(DataError, match=words):
        open_images(tmp_path, "train", SHAPE, 5)


def test_hostile_shards_are_counted_and_the_others_read(tmp_path: Path) -> None:
    root = shards(tmp_path, count=2)
    whole = (root / "00.tar").read_bytes()
    (root / "02.tar").write_bytes(whole[: 5 * 1024 + 700])  # within the third image
    (root / "03.tar").write_bytes(b"this is no tar file" * 100)
    broken = bytearray(whole)
    second = whole.index(b"0-001.jpg")
    broken[second : second + 512] = bytes(range(256)) * 2  # a header that is none
    (root / "04.tar").write_bytes(broken)
    with tarfile.open(root / "05.tar", "w") as archive:
        for name, kind in (("l.jpg", tarfile.SYMTYPE), ("d.jpg", tarfile.BLKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        huge = tarfile.TarInfo("../../escape.cls")
        huge.size = 2 << 20
        archive.addfile(huge, io.BytesIO(bytes(huge.size)))
    endless = tarfile.TarInfo("pax")
    endless.type, endless.size = tarfile.XHDTYPE, 1 << 40
    (root / "06.tar").write_bytes(endless.tobuf() + bytes(4096))
    opened = open_images(root, "train", SHAPE, 4)
    assert isinstance(opened, ImageSource)
    assert opened.encoded.ignored == {
        "the rest of a damaged tar file": 2,
        "not a tar file": 2,
        "links and devices in tar files": 2,
        "a class file that is too large": 1,
        "an image without a class": 1,
    }
    for batch in in_order(opened, 8, threads=2):
        assert (batch.labels >= 0).all()
    assert not (tmp_path.parent / "escape.cls").exists()


@pytest.mark.parametrize(("digits", "images"), [(40, 3), (5000, 2)])
def test_a_header_with_many_digits_in_a_row_ends_the_shard(
    tmp_path: Path, digits: int, images: int
) -> None:
    shard(tmp_path / "0.tar", {"k/a.jpg": photo(0), "k/b.jpg": photo(1)})
    with tarfile.open(tmp_path / "1.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("k/c.jpg")
        member.pax_headers = {"comment": "x" * 600 + "1" * digits}
        data = photo(2)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    opened = open_images(tmp_path, "train", SHAPE, 1)
    assert opened.samples == images
    assert opened.encoded.ignored.total() == 3 - images


def test_a_header_that_leads_backwards_ends_the_shard(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.jpg")
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 8 + (-512 & 0xFFFFFFFF).to_bytes(4, "big")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    shard(tmp_path / "0.tar", {"k/a.jpg": photo(0)})
    (tmp_path / "1.tar").write_bytes(bytes(header) + bytes(1024))
    opened = open_images(tmp_path, "train", SHAPE, 1)
    assert isinstance(opened, ImageSource)
    assert opened.samples == 1
    assert sum(opened.encoded.ignored.values()) == 1


def test_a_shard_that_is_gone_or_shortened_later(tmp_path: Path) -> None:
    opened = open_images(shards(tmp_path), "train", SHAPE, 4)
    assert isinstance(opened, ImageSource)
    (tmp_path / "00.tar").unlink()
    (tmp_path / "02.tar").write_bytes((tmp_path / "02.tar").read_bytes()[:3000])
    list(in_order(opened, 9))
    reasons = opened.tally(np.ones(opened.samples, bool)).skipped
    assert reasons == {"cannot be read": 9, "truncated": 8}


def test_few_shards_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_shards, "OPEN_SHARDS", 2)
    opened = open_images(shards(tmp_path, count=5), "train", SHAPE, 4)
    feed = Feed(opened, 9, 0, threads=3, epochs=2)
    assert sum(b.samples for b in feed) == 90
    feed.close()


def test_what_is_kept_decoded_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "DECODED_BYTES", 10 * 3 * 32 * 32)
    kept = open_images(folder(tmp_path), "train", SHAPE, 3, ImageOptions(cache_decoded=True))
    assert kept.samples == 10
    assert set(kept.batch(np.arange(10)).labels.tolist()) == {0, 1, 2}, "taken evenly"
