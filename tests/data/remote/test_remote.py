"""Sets at a URL: a real HTTP server on loopback, with the faults that servers have; fsspec."""

import importlib.util
import io
import itertools
import json
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cubemesh import data, list_image_set, prepare_images
from cubemesh.data.data_digest import data_digest
from cubemesh.data.feed import Feed
from cubemesh.data.images import local_cache
from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.open_images import ImageOptions, open_encoded, open_images
from cubemesh.data.images.remote_shards import RemoteShards
from cubemesh.data.remote import folder as remote
from cubemesh.data.remote.folder import ReadDeadline, check_url, is_url
from cubemesh.data.remote.protocols import open_folder
from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.program import NotInstalled
from range_server import RangeServer, RawServer

Image = pytest.importorskip("PIL.Image")
COUNT = 40


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 36 images for training and four for validation."""
    root = tmp_path_factory.mktemp("remote")
    generator = np.random.default_rng(0)
    for label in range(2):
        (root / "in" / f"c{label}").mkdir(parents=True)
        for number in range(COUNT // 2):
            pixels = generator.integers(0, 255, (48, 64, 3), np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=90)
            (root / "in" / f"c{label}" / f"{number:02}.jpg").write_bytes(file.getvalue())
    prepare_images(root / "in", root / "set", shard_size=1 << 16, processes=1)
    return root / "set"


@pytest.fixture
def server(prepared: Path):
    with RangeServer(prepared) as serving:
        yield serving


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between attempts; room on any disk."""
    monkeypatch.setattr(remote, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(local_cache, "FREE_FRACTION", 0.0)


def all_of(images) -> list[tuple[int, str, bytes]]:
    return [(int(v), images.name(n), images.read(n)) for n, v in enumerate(images.labels)]


def test_a_set_at_a_url_has_the_images_of_its_folder(server: RangeServer, prepared: Path) -> None:
    for split in ("train", "validation"):
        there, here = open_encoded(server.url, split), open_encoded(prepared, split)
        assert isinstance(there, RemoteShards)
        assert all_of(there) == all_of(here)
        assert there.identity() == here.identity()
    assert {path for path, wanted in server.requests if wanted is None} == {
        "/manifest.json",
        *(f"/{path.relative_to(prepared)}" for path in prepared.rglob("*.npy")),
    }


def test_epochs_from_a_url_are_those_from_the_folder(server: RangeServer, prepared: Path) -> None:
    def epochs(path: Path | str, threads: int) -> list[bytes]:
        feed = Feed(open_images(path, "train", (3, 32, 32), 2), 6, 0, threads=threads, epochs=2)
        made = [batch.images.tobytes() for batch in feed]
        feed.close()
        return made

    assert epochs(server.url, 0) == epochs(f"{server.url}/", 3) == epochs(prepared, 0)


def test_an_image_that_breaks_off_is_resumed_at_its_byte(server: RangeServer, prepared) -> None:
    there, here = open_encoded(server.url, "train"), open_encoded(prepared, "train")
    server.requests.clear()
    server.cuts += [700, 0, 900]
    assert there.read(5) == here.read(5)
    starts = [int(re.findall(r"\d+", wanted or "")[0]) for _, wanted in server.requests]
    first = starts[0]
    assert starts == [first, first + 700, first + 700, first + 1600]


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(server: RangeServer, prepared, code: int) -> None:
    there = open_encoded(server.url, "train")
    server.statuses += [code] * (remote.ATTEMPTS - 1)
    assert there.read(0) == open_encoded(prepared, "train").read(0)
    server.statuses += [code] * remote.ATTEMPTS
    with pytest.raises(DataError, match=f"in 4 attempts: the server answers {code}"):
        there.read(0)


@pytest.mark.parametrize("code", [403, 404, 410])
def test_a_refusal_is_final(server: RangeServer, code: int) -> None:
    there = open_encoded(server.url, "train")
    server.requests.clear()
    server.statuses.append(code)
    with pytest.raises(DataError, match=f"cannot be read: the server answers {code}"):
        there.read(0)
    assert len(server.requests) == 1


def test_a_server_that_dies_ends_the_feed_with_its_reason(server: RangeServer) -> None:
    server.dies_after = 10
    feed = Feed(open_images(server.url, "train", (3, 32, 32), 2), 4, 0, threads=2, epochs=3)
    with pytest.raises(DataError, match="could not be read in 4 attempts"):
        for _ in feed:
            pass
    feed.close()


def test_a_server_that_is_away_is_an_error(server: RangeServer) -> None:
    there = open_encoded(server.url, "train")
    server.stop()
    with pytest.raises(DataError, match="Connection refused"):
        there.read(0)
    with pytest.raises(DataError, match="Connection refused"):
        open_encoded(server.url, "train")
    assert data_digest(server.url) == ""


def test_a_connection_that_the_server_has_closed_is_replaced(server: RangeServer, prepared) -> None:
    there, here = open_encoded(server.url, "train"), open_encoded(prepared, "train")
    there.read(0)
    server.cuts.append(1 << 20)  # a whole body, and then the end of the connection
    assert [there.read(1), there.read(2)] == [here.read(1), here.read(2)]


def test_a_server_without_ranges_is_refused(server: RangeServer) -> None:
    there = open_encoded(server.url, "train")
    server.ignores_ranges = True
    with pytest.raises(DataError, match="ignores requests for a range"):
        there.read(0)


def test_redirections_are_followed(server: RangeServer, prepared: Path) -> None:
    server.redirects = True
    assert all_of(open_encoded(server.url, "validation")) == all_of(
        open_encoded(prepared, "validation")
    )


def test_checksums_are_compared(tmp_path: Path, prepared: Path) -> None:
    root = tmp_path / "copy"
    for path in prepared.rglob("*"):
        if path.is_file():
            (root / path.relative_to(prepared)).parent.mkdir(parents=True, exist_ok=True)
            (root / path.relative_to(prepared)).write_bytes(path.read_bytes())
    shard = root / "train" / "000000.tar"
    with RangeServer(root) as server:
        there = open_encoded(server.url, "train")
        content = bytearray(shard.read_bytes())
        content[700] ^= 1
        shard.write_bytes(content)
        with pytest.raises(Skipped, match="wrong checksum"):
            there.read(0)
        index = root / "train" / "000000.npy"
        index.write_bytes(index.read_bytes()[:-1] + b"x")
        with pytest.raises(DataError, match="does not have the SHA-256"):
            open_encoded(server.url, "train")
        (root / "manifest.json").write_bytes(b"{}")
        with pytest.raises(DataError, match="is not the manifest"):
            open_encoded(server.url, "train")


def test_what_was_staged_is_not_requested_again(server: RangeServer, tmp_path: Path) -> None:
    options = ImageOptions(stage_folder=tmp_path / "local")

    def train(epochs: int) -> int:
        """Requests for images."""
        before = server.tars
        source = open_images(server.url, "train", (3, 32, 32), 2, options)
        assert isinstance(source, ImageSource)
        feed = Feed(source, 4, 0, threads=2, epochs=epochs)
        for _ in feed:
            pass
        feed.close()
        source.encoded.close()
        return server.tars - before

    assert train(1) == 36
    assert train(2) == 0


def test_a_set_at_a_url_is_listed(server: RangeServer) -> None:
    found = list_image_set(server.url)
    assert found.counts == {"train": (18, 18), "validation": (2, 2)}


def test_the_digest_of_a_url_is_that_of_its_manifest(server: RangeServer, prepared) -> None:
    before = data_digest(server.url)
    assert len(before) == 16
    assert data_digest(f"{server.url}/") == before


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://user:secret@host/set", "every record would store it"),
        ("s3://key:secret@bucket/set", "every record would store it"),
        ("https:///set", "names no host"),
        ("https://host:port/set", "is not a URL"),
        ("https://host/set?token=1", "has a query"),
    ],
)
def test_a_url_that_is_refused_is_never_requested(url: str, words: str) -> None:
    assert is_url(url)
    with pytest.raises(UsageError, match=words):
        check_url(url)
    with pytest.raises(UsageError, match=words):
        data.check("images", url)


def test_a_check_of_a_url_makes_no_request(server: RangeServer) -> None:
    """A page of `cubemesh serve` checks a job; only trainings read from URLs."""
    data.check("images", server.url)
    assert server.requests == []
    with pytest.raises(UsageError, match="data=images reads from URLs"):
        data.check("cifar-10", server.url)
    assert not is_url("/data/set")
    assert not is_url("C:/data")


def test_fsspec_reads_other_protocols(prepared: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in prepared.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/set/{path.relative_to(prepared)}", path.read_bytes())
    there = open_encoded("memory://set", "train")
    assert all_of(there) == all_of(open_encoded(prepared, "train"))
    done = threading.Barrier(3)

    def read() -> None:
        done.wait()
        assert there.read(3) == there.read(3)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shard = "/set/train/000000.tar"
    memory.pipe_file(shard, memory.cat_file(shard)[:600])
    with pytest.raises(DataError, match=r"could not be read|cannot be read"):
        there.read(0)
    memory.rm("/set", recursive=True)
    with pytest.raises(DataError, match="cannot be read"):
        open_encoded("memory://set", "train")
    with pytest.raises(UsageError, match="cannot be opened"):
        open_folder("nothing://set")


def test_without_fsspec_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "fsspec", raising=False)
    with pytest.raises(NotInstalled, match=r"pip install 'cubemesh\[remote\]'"):
        open_folder("s3://bucket/set")
    with pytest.raises(UsageError, match=r"pip install 'cubemesh\[remote\]'"):
        list_image_set("s3://bucket/set")
    assert data_digest("s3://bucket/set") == ""


TRAIN = (
    *("train", "little-cnn", "--data", "images", "--batch-per-device", "4", "--json"),
    *("--set", "framework=null", "--set", "input_threads=1"),
)


def test_a_training_from_a_url_with_a_local_copy(
    server: RangeServer, tmp_path: Path, cubemesh
) -> None:
    stage = ("--set", f"stage_folder={tmp_path / 'local'}", "--epochs", "3")
    done = cubemesh(*TRAIN, "--data-path", server.url, *stage)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)["record"]
    assert record["figures"]["staged_bytes"]["value"] > 0
    assert server.tars < 3 * 36
    shown = cubemesh("results", record["run_id"])
    assert shown.returncode == 0
    answer = cubemesh("train", *TRAIN[1:6], *TRAIN[7:], "--data-path", server.url, *stage)
    assert "the local copy" in answer.stdout


def test_a_training_whose_server_dies_is_a_recorded_outcome(server: RangeServer, cubemesh) -> None:
    server.dies_after = 20
    done = cubemesh(*TRAIN, "--data-path", server.url, "--epochs", "2")
    assert done.returncode == 1, done.stderr
    record = json.loads(done.stdout)["record"]
    assert record["outcome"] == "crashed"
    assert "could not be read in 4 attempts" in record["outcome_detail"]["message"]


HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://[zz]/\r\n\r\n", "which is not HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "which is not HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://a..b/\r\n\r\n", "cannot be requested"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\xe9\r\n\r\n", "cannot be requested"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc", "another range"),
        (HEAD.replace(b"0-9", b"9" * 5000 + b"-9") + b"\r\n", "another range"),
    ],
    ids=["host", "file", "label", "path", "chunk", "digits"],
)
def test_an_answer_that_is_not_http_is_an_error_of_the_data(answer: bytes, why: str) -> None:
    with RawServer(answer) as server, pytest.raises(DataError, match=why):
        open_folder(server.url).read("train/000000.tar", 0, 10)


def test_a_chunk_of_negative_size_fills_no_memory() -> None:
    endless = HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n"
    with RawServer(endless, bytes(1 << 16)) as server:
        assert open_folder(server.url).read("train/000000.tar", 0, 10) == bytes(10)
        with pytest.raises(DataError, match="more than 100000 bytes"):
            open_folder(server.url).read_file("manifest.json", 100_000)


def test_a_length_of_thousands_of_digits_is_no_number() -> None:
    with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}") as server:
        assert open_folder(server.url).read_file("manifest.json", 100) == b"{}"


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch):
    """A clock on which every look is three hours after the last."""
    times = itertools.count(0.0, 10_000.0)
    monkeypatch.setattr(remote, "monotonic_s", lambda: next(times))


@pytest.mark.parametrize(
    ("head", "byte"),
    [
        (HEAD + b"Content-Length: 10\r\n\r\n", b""),
        (b"HTTP/1.1 206 Partial Content\r\nX-Slow: ", b"a"),
        (HEAD.replace(b"0-9/10", b"0-999999/1000000") + b"Content-Length: 1000000\r\n\r\n", b"x"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["no body", "head", "body", "chunks"],
)
def test_a_server_that_trickles_is_given_up(head: bytes, byte: bytes, slow_clock) -> None:
    """Each look at the clock is hours later, as if single bytes came so far apart."""
    with RawServer(head, byte) as server, pytest.raises(DataError, match="is too slow: ") as slow:
        open_folder(server.url).read("train/000000.tar", 0, 1_000_000)
    assert "at least 1,024 bytes/s are needed" in str(slow.value)


def test_a_server_that_ends_after_each_byte_is_given_up(server, monkeypatch) -> None:
    """Each attempt gets a byte, so that none is a failure without progress."""
    there = open_encoded(server.url, "train")
    times = itertools.count(0.0, 1.0)
    monkeypatch.setattr(remote, "monotonic_s", lambda: next(times))
    server.requests.clear()
    server.cuts += [1] * 1000
    with pytest.raises(DataError, match="is too slow: "):
        there.read(0)
    assert 5 < len(server.requests) < 120


def test_the_limit_of_a_read_grows_with_its_bytes(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(remote, "monotonic_s", lambda: now[0])
    deadline = ReadDeadline("http://a/b")
    now[0] = remote.GRACE_S - 1
    deadline.check()
    deadline.count(2 * remote.SLOWEST_BYTES_PER_S)
    assert deadline.check() == 3
    now[0] += 3
    with pytest.raises(DataError, match="2,048 bytes came in 122 s"):
        deadline.check()


def test_ranges_of_fsspec_count_as_bytes_that_came(monkeypatch) -> None:
    """Each call returns a half, and each look at the clock is 100 s after the last."""
    pytest.importorskip("fsspec")
    folder = open_folder("memory://set")
    size = 400 * remote.SLOWEST_BYTES_PER_S
    monkeypatch.setattr(
        folder._system, "cat_file", lambda name, start, end: bytes((end - start + 1) // 2)
    )
    times = itertools.count(0.0, 100.0)
    monkeypatch.setattr(remote, "monotonic_s", lambda: next(times))
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    with pytest.raises(DataError, match=r"is too slow: 403,200 bytes came in 600 s"):
        folder.read("train/000000.tar", 0, size)
