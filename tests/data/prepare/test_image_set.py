"""Prepared sets: what is in them, resumption after a kill, checks, and errors of the request."""

import fcntl
import hashlib
import io
import json
import os
import signal
import tarfile
from pathlib import Path

import numpy as np
import pytest

from cubemesh import check_image_set, list_image_set, prepare_images
from cubemesh.data.feed import in_order
from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.open_images import open_encoded, open_images
from cubemesh.data.images.prepared_set import MANIFEST, UNFINISHED, PreparedShards, read_manifest
from cubemesh.data.images.tar_shards import TarShards, find_shards
from cubemesh.data.prepare import image_set
from cubemesh.data.prepare.conversion import Converter
from cubemesh.data.prepare.processes import shared
from cubemesh.data.prepare.shard_plan import plan_shards
from cubemesh.errors import BusyError, DataError, UsageError

Image = pytest.importorskip("PIL.Image")
SHARD = 1 << 16
"""The least size of a shard."""


def photo(value: int, width: int = 40, height: int = 30, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (value,) * 3).save(file, kind)
    return file.getvalue()


def noise(number: int) -> bytes:
    """An image of about 9 kB."""
    pixels = np.random.default_rng(number).integers(0, 255, (64, 96, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of ten images, without a split."""
    root = tmp_path_factory.mktemp("originals")
    for label in range(3):
        place = root / f"class-{label}"
        place.mkdir()
        for number in range(10):
            (place / f"{number}.jpg").write_bytes(noise(10 * label + number))
    return root


def prepared(source: Path, target: Path, **more):
    return prepare_images(source, target, **{"shard_size": SHARD, "processes": 1, **more})


def files_of(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


def contents(images) -> list[tuple[int, bytes]]:
    return sorted((int(label), images.read(n)) for n, label in enumerate(images.labels))


def test_a_set_has_every_image_once_with_its_class(originals: Path, tmp_path: Path) -> None:
    made = prepared(originals, tmp_path / "set", validation=0.2)
    assert made.counts == {"train": (8, 8, 8), "validation": (2, 2, 2)}
    assert made.classes == ("class-0", "class-1", "class-2")
    assert len(made.manifest.of("train")) > 2
    splits = [open_encoded(tmp_path / "set", split) for split in ("train", "validation")]
    assert all(isinstance(images, PreparedShards) for images in splits)
    found = sorted([*contents(splits[0]), *contents(splits[1])])
    assert found == sorted((n // 10, noise(n)) for n in range(30))
    assert splits[0].identity() != splits[1].identity()
    assert not (tmp_path / "set" / UNFINISHED).exists()


def test_it_is_trained_on_in_an_order_that_is_not_that_of_classes(originals, tmp_path) -> None:
    prepared(originals, tmp_path / "set")
    source = open_images(tmp_path / "set", "train", (3, 32, 32), 3)
    labels = next(iter(in_order(source, source.samples))).labels.tolist()
    assert labels != sorted(labels)
    assert sorted(labels) == [0] * 9 + [1] * 9 + [2] * 9


def test_other_readers_of_tar_shards_find_the_same(originals: Path, tmp_path: Path) -> None:
    prepared(originals, tmp_path / "set")
    shards = find_shards(tmp_path / "set")
    assert shards is not None
    for split in ("train", "validation"):
        by_headers, by_index = TarShards(shards, split), open_encoded(tmp_path / "set", split)
        assert contents(by_headers) == contents(by_index)
        assert by_headers.name(2).split("/")[1] == by_index.name(2).split("/")[2]
    with tarfile.open(shards["train"][0]) as archive:
        names = archive.getnames()
    assert names[:2] == ["000000.jpg", "000000.cls"]


def test_processes_and_repetition_give_the_same_bytes(originals: Path, tmp_path: Path) -> None:
    prepared(originals, tmp_path / "a")
    prepared(originals, tmp_path / "b", processes=3)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    prepared(originals, tmp_path / "c", seed=1)
    assert files_of(tmp_path / "a") != files_of(tmp_path / "c")
    again = prepared(originals, tmp_path / "a")
    assert again.made == 0
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


@pytest.mark.parametrize("converted", [0, 1, 9, 29])
def test_it_resumes_after_a_kill_at_any_moment(originals, tmp_path, converted: int) -> None:
    prepared(originals, tmp_path / "whole")
    child = os.fork()
    if child == 0:
        original, done = Converter.convert, iter(range(1000))

        def deadly(self, data):
            if next(done) == converted:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, data)

        Converter.convert = deadly
        prepared(originals, tmp_path / "set")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    with pytest.raises(DataError, match="not prepared completely"):
        open_encoded(tmp_path / "set", "train")
    finished = {p.stem for p in (tmp_path / "set" / UNFINISHED).glob("*-*.json")}
    made = prepared(originals, tmp_path / "set")
    assert made.made == len(made.manifest.shards) - len(finished)
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole")


def test_a_shard_without_an_entry_is_not_of_the_set(originals: Path, tmp_path: Path) -> None:
    """The process was killed before it wrote the entry, and the next one has other settings."""
    place = tmp_path / "set" / "train"
    (tmp_path / "set" / UNFINISHED).mkdir(parents=True)
    place.mkdir()
    for name in ("000077.tar", "000077.npy", ".000078.tar.part", "other.txt"):
        (place / name).write_bytes(b"x")
    prepared(originals, tmp_path / "set")
    assert check_image_set(tmp_path / "set", processes=1).ok
    assert [path.name for path in place.iterdir() if "7" in path.name] == []
    assert (place / "other.txt").exists()


def test_a_process_that_is_killed_is_an_error_and_the_others_end() -> None:
    def work(piece: int) -> int:
        if piece == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    with pytest.raises(DataError, match="SIGKILL"):
        list(shared(work, [1, 2], 2))
    assert sorted(shared(lambda piece: piece * 2, list(range(9)), 3)) == list(range(0, 18, 2))
    with pytest.raises(DataError, match="No space left"):
        list(shared(lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"x"), [1, 2], 2))


def test_images_are_shrunk_to_a_shorter_side_and_others_stay(tmp_path: Path) -> None:
    place = tmp_path / "in" / "a"
    place.mkdir(parents=True)
    files = {
        "large.jpg": photo(9, 200, 100),
        "png.png": photo(99, 80, 120, "PNG"),
        "small.png": photo(200, 30, 20, "PNG"),
        "exact.jpg": photo(100, 64, 50),
    }
    for name, content in files.items():
        (place / name).write_bytes(content)
    prepared(tmp_path / "in", tmp_path / "set", resize=50, quality=80, validation=0)
    images = open_encoded(tmp_path / "set", "train")
    found = [images.read(n) for n in range(len(images.labels))]
    sizes = {Image.open(io.BytesIO(data)).size for data in found}
    assert sizes == {(100, 50), (50, 75), (30, 20), (64, 50)}
    assert {files["small.png"], files["exact.jpg"]} < set(found)
    assert sorted(Path(images.name(n)).suffix for n in range(4)) == [".jpg"] * 3 + [".png"]


def test_images_that_cannot_be_used_are_counted_and_listed(originals, tmp_path, cubemesh) -> None:
    place = tmp_path / "in" / "a"
    place.mkdir(parents=True)
    for number in range(4):
        (place / f"{number}.jpg").write_bytes(noise(number))
    (place / "cut.jpg").write_bytes(noise(5)[:900])
    (place / "empty.jpg").write_bytes(b"")
    (place / "text.jpg").write_bytes(b"no image")
    done = cubemesh("prepare", str(tmp_path / "in"), str(tmp_path / "set"), "--processes", "1")
    assert done.returncode == 0, done.stderr
    assert "shards, 4 images" in done.stderr
    assert "cannot be used" in done.stdout
    lines = (tmp_path / "set" / "skipped.tsv").read_text().splitlines()
    found = {line.split("\t")[2]: line.split("\t")[1] for line in lines}
    assert found == {
        "a/cut.jpg": "truncated",
        "a/empty.jpg": "empty file",
        "a/text.jpg": "not an image that is read",
    }
    assert sum(list_image_set(tmp_path / "set").skipped.values()) == 3
    for file in place.iterdir():
        file.write_bytes(b"")
    with pytest.raises(DataError, match="7 empty file"):
        prepared(tmp_path / "in", tmp_path / "none", validation=0)


def test_a_check_finds_what_is_damaged_and_the_same_command_mends_it(
    originals: Path, tmp_path: Path, cubemesh
) -> None:
    root = tmp_path / "set"
    prepared(originals, root)
    before = files_of(root)
    assert check_image_set(root, processes=1).ok
    first, second, third = (root / "train" / f"{n:06}.tar" for n in range(3))
    content = bytearray(first.read_bytes())
    content[600] ^= 1
    first.write_bytes(content)
    second.write_bytes(second.read_bytes()[:-1])
    third.with_suffix(".npy").write_bytes(b"")
    (root / "train" / "000099.tar").write_bytes(b"")
    done = cubemesh("prepare", str(root), "--check", "--json", "--processes", "2")
    assert done.returncode == 1
    problems = "\n".join(json.loads(done.stdout)["problems"])
    for words in (
        "train/000000.tar: another SHA-256 than in the manifest; 1 of",
        "train/000001.tar: ",
        "train/000002.npy does not have the SHA-256",
        "train/000099.tar: not in the manifest",
    ):
        assert words in problems
    with pytest.raises(DataError, match=r"000001\.tar has"):
        open_encoded(root, "train")
    for damaged in (first, second, third):
        damaged.unlink()
    (root / "train" / "000099.tar").unlink()
    assert prepared(originals, root).made == 3
    assert files_of(root) == before


def test_classes_and_counts_are_listed(originals: Path, tmp_path: Path, cubemesh) -> None:
    prepared(originals, tmp_path / "set")
    shown = cubemesh("prepare", str(tmp_path / "set"), "--list").stdout
    assert "class-1" in shown
    assert "27 for train, 3 for validation" in shown
    plain = cubemesh("prepare", str(originals), "--list", "--json")
    assert json.loads(plain.stdout)["counts"] == {"images": [10, 10, 10]}


def tar_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """The archives of two classes, and four images for validation."""
    root = tmp_path / "imagenet"
    root.mkdir()
    classes = {
        f"n0{label}.tar": tar_of({f"n0{label}_{n}.JPEG": photo(20 * n) for n in range(3)})
        for label in range(2)
    }
    (root / "ILSVRC2012_img_train.tar").write_bytes(tar_of(classes))
    images = {f"ILSVRC2012_val_{n:08}.JPEG": photo(200 + n) for n in (2, 1, 4, 3)}
    (root / "ILSVRC2012_img_val.tar").write_bytes(tar_of(images))
    return root


CLASSES = ((1, 1), (2, 0), (3, 0), (4, 1))
"""(image, class) of ImageNet's images for validation."""


@pytest.mark.parametrize(
    "text",
    [
        "n01\nn00\nn00\nn01\n",
        "".join(f"ILSVRC2012_val_{n:08}.JPEG n0{c}\n" for n, c in CLASSES),
        "ImageId,PredictionString\n"
        + "".join(f"ILSVRC2012_val_{n:08},n0{c} 1 2 3 4\n" for n, c in reversed(CLASSES)),
    ],
)
def test_the_archives_of_imagenet(imagenet: Path, tmp_path: Path, text: str) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text(text)
    made = prepared(imagenet, tmp_path / "set", validation_labels=labels)
    assert made.classes == ("n00", "n01")
    assert made.counts == {"train": (3, 3), "validation": (2, 2)}
    found = contents(open_encoded(tmp_path / "set", "validation"))
    assert found == sorted((c, photo(200 + n)) for n, c in CLASSES)


def test_labels_that_do_not_fit_the_archives(imagenet: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    for text, words in (("n01\n", "has 1 classes"), ("n01\nn02\nn00\nn00\n", "class 'n02'")):
        labels.write_text(text)
        with pytest.raises(DataError, match=words):
            prepared(imagenet, tmp_path / "set", validation_labels=labels)
    with pytest.raises(UsageError, match="--validation-labels FILE"):
        prepared(imagenet, tmp_path / "set")
    train = imagenet / "ILSVRC2012_img_train.tar"
    assert sum(prepared(train, tmp_path / "only").counts["train"]) == 6
    train.write_bytes(train.read_bytes()[:3000])
    with pytest.raises(DataError, match="not a whole tar file"):
        prepared(train, tmp_path / "cut")


def test_a_set_of_made_images_has_the_size_that_was_asked_for(tmp_path: Path) -> None:
    made = prepare_images(
        "made-images", tmp_path / "set", size="2300kB", shard_size="1MB", processes=1
    )
    assert made.manifest is not None
    assert 2.1e6 < made.manifest.bytes < 2.6e6
    assert len(made.manifest.of("train")) == 3
    again = prepare_images(tmp_path / "set", tmp_path / "again", resize=64, processes=1)
    assert again.counts == made.counts


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"resize": 2}, "--resize 2"),
        ({"quality": 100}, "--quality 100"),
        ({"shard_size": "1k"}, "--shard-size 1k"),
        ({"shard_size": "big"}, "--shard-size: 'big'"),
        ({"validation": 1.5}, "--validation 1.5"),
        ({"processes": 0}, "--processes 0"),
        ({"size": "1GB"}, "--size is that of made-images"),
        ({"validation_labels": "x"}, "--validation-labels is for"),
        ({"source": "made-images"}, "needs a size"),
        ({"source": "s3://bucket/set"}, "is a URL"),
        ({"seed": -1}, "--seed -1"),
    ],
)
def test_what_cannot_be_meant_is_refused(originals, tmp_path, more, words: str) -> None:
    given = {"source": originals, "target": tmp_path / "set", **more}
    with pytest.raises(UsageError, match=words):
        prepared(**given)
    assert not (tmp_path / "set").exists()


def test_a_target_that_has_something_else_is_refused(originals: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the source"):
        prepared(originals, originals / "set")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="not a folder"):
        prepared(originals, tmp_path / "file")
    with pytest.raises(UsageError, match="other files, such as file"):
        prepared(originals, tmp_path)
    prepared(originals, tmp_path / "set")
    with pytest.raises(UsageError, match="seed is 0 there and 1 now"):
        prepared(originals, tmp_path / "set", seed=1)


def test_one_process_prepares_a_set_at_a_time(originals: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set" / UNFINISHED
    folder.mkdir(parents=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="Another process prepares"):
            prepared(originals, tmp_path / "set")
    assert prepared(originals, tmp_path / "set").ok


def test_a_disk_without_room_is_found_before_anything_is_written(
    originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = image_set.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(image_set.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DataError, match="1,000 B free"):
        prepared(originals, tmp_path / "set")
    assert not list((tmp_path / "set").rglob("*.tar"))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"format": "x"},
        {"classes": []},
        {"counts": {"train": [1]}},
        {"counts": None},
        {"shards": [{"file": "../../etc/passwd"}]},
        {"shards": "train/000000.tar"},
    ],
)
def test_a_manifest_that_is_none_is_an_error_with_its_reason(originals, tmp_path, change) -> None:
    prepared(originals, tmp_path / "set")
    found = json.loads((tmp_path / "set" / MANIFEST).read_text())
    if isinstance(change.get("shards"), list):
        change = {"shards": [{**found["shards"][0], **change["shards"][0]}]}
    with pytest.raises(DataError, match="is not the manifest"):
        read_manifest(json.dumps({**found, **change}).encode(), "set")


def test_each_class_has_images_for_training_and_its_share_for_validation() -> None:
    labels = np.array([0] * 10 + [1] * 3 + [2])
    planned = plan_shards(labels, None, share=0.5, seed=0, image_bytes=8208, shard_bytes=20_000)
    validation = np.concatenate([p.images for p in planned if p.split == "validation"])
    assert np.bincount(labels[validation], minlength=3).tolist() == [5, 2, 0]
    every = np.concatenate([p.images for p in planned])
    assert sorted(every.tolist()) == list(range(14))
    assert max(len(p.images) for p in planned) == 2


def test_a_reader_may_skip_an_image_of_the_source(originals, tmp_path, monkeypatch) -> None:
    from cubemesh.data.images import image_folder

    def read(path: str) -> bytes:
        if path.endswith("class-1/3.jpg"):
            raise Skipped("no permission to read")
        return Path(path).read_bytes()

    monkeypatch.setattr(image_folder, "read_whole", read)
    made = prepared(originals, tmp_path / "set")
    assert made.skipped == {"no permission to read": 1}
    assert sum(sum(each) for each in made.counts.values()) == 29


def test_files_without_an_end_are_not_read(originals: Path, tmp_path: Path) -> None:
    """Links to devices and FIFOs, as an archive of others can have them."""
    whole = tmp_path / "set"
    prepared(originals, whole)
    index, shard = next(whole.glob("train/*.npy")), next(whole.glob("val/*.tar"))
    index.unlink()
    index.symlink_to("/dev/zero")
    shard.unlink()
    os.mkfifo(shard)
    problems = check_image_set(whole, processes=1).problems
    assert [p.split(": ")[1] for p in problems] == ["not a regular file"] * 2
    with pytest.raises(DataError, match="not a regular file"):
        open_encoded(whole, "train")
    (whole / MANIFEST).unlink()
    (whole / MANIFEST).symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"no manifest\.json"):
        check_image_set(whole)


def test_a_size_beyond_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in all"):
        prepare_images("made-images", tmp_path / "new" / "set", size=1 << 62)
