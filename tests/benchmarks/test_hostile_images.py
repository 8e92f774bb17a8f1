"""Every kind of hostile image, in a small set: the same counts as the benchmark's, to the one."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cubemesh.batches import EncodedBatch, EncodedImage
from cubemesh.data.feed import Feed
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.open_images import ImageOptions, open_images
from cubemesh.schema import ProgramSettings, RunSpec, Train
from cubemesh.worker.run.job_file import Job
from cubemesh.worker.run.run_job import run_job

pytest.importorskip("PIL.Image")


@pytest.fixture
def hostile(script, tmp_path: Path) -> tuple[Path, dict[str, Counter[str]]]:
    made = script("hostile_images")
    return tmp_path, made.make_set(tmp_path, good=40, broken=len(made.KINDS))


@pytest.mark.parametrize("threads", [0, 3])
def test_the_count_is_exact(hostile, threads: int) -> None:
    root, expected = hostile
    source = open_images(root, "train", (3, 32, 32), 10)
    assert isinstance(source, ImageSource)
    feed = Feed(source, 10, 0, threads=threads, epochs=1)
    for batch in feed:
        assert (batch.labels >= 0).all()
        assert np.isfinite(batch.images).all()
    feed.close()
    assert feed.tried.all()
    tally = source.tally(feed.tried)
    assert tally.tried == 60
    assert tally.skipped == expected["aside"]
    assert tally.conversions == expected["converted"]
    assert (tally.skipped_images, tally.converted) == (
        expected["any"]["aside"],
        expected["any"]["converted"],
    )


def test_the_count_is_the_same_where_the_device_decodes(hostile) -> None:
    """The device is stood in for by the host's decoder, which refuses what it cannot decode."""
    root, expected = hostile
    source = open_images(root, "train", (3, 32, 32), 10, ImageOptions(stays_encoded=True))
    feed = Feed(source, 10, 0, threads=3, epochs=1)
    labels = []
    for batch in feed:
        assert isinstance(batch, EncodedBatch)
        for n, row in enumerate(batch.rows):
            if isinstance(row, EncodedImage) and row.whole() is None:
                _, batch.labels[n] = row.by_host()
        labels += batch.labels.tolist()
    feed.close()
    assert min(labels) >= 0
    tally = source.tally(feed.tried)
    assert tally.skipped == expected["aside"]
    assert tally.conversions == expected["converted"]
    assert set(tally.by_host) == {"no plain JPEG"}


def test_only_what_had_its_turn_is_counted(hostile) -> None:
    root, _ = hostile
    counts = []
    for threads in (0, 3):
        source = open_images(root, "train", (3, 32, 32), 10)
        assert isinstance(source, ImageSource)
        feed = Feed(source, 10, 0, threads=threads)
        for _ in range(3):
            next(feed)
        counts.append(source.tally(feed.tried))
        feed.close()
    assert counts[0] == counts[1]
    assert counts[0].tried == 30


def test_the_record_tells_reasons_and_names(hostile, tmp_path: Path) -> None:
    root, expected = hostile
    work = Train(
        network="little-cnn",
        image_size=32,
        batch_per_device=20,
        data="images",
        data_path=str(root),
    )
    spec = RunSpec(work=work, program=ProgramSettings(framework="null", input_threads=2))
    folder = tmp_path / "run"
    folder.mkdir()
    outcome = run_job(Job(spec=spec, folder=str(folder)))
    assert outcome.ok, outcome.message
    events = [json.loads(line) for line in (folder / "events-0.jsonl").read_text().splitlines()]
    figures = {e["name"]: e["figure"] for e in events if e["event"] == "figure"}
    assert figures["images_skipped"]["value"] == expected["any"]["aside"]
    assert figures["images_skipped"]["n"] == 60 + 20
    assert figures["images_converted"]["value"] == expected["any"]["converted"]
    (warning,) = (
        e["warning"]
        for e in events
        if e["event"] == "warning" and e["warning"]["code"] == "images-skipped"
    )
    assert "1 truncated (class-0/00040.jpg)" in warning["cause"]
    assert "2 too many pixels (" in warning["cause"]


def test_memory_stays_bounded_under_a_limit_of_the_kernel(hostile) -> None:
    root, expected = hostile
    program = f"""
import resource
from pathlib import Path
import numpy as np
from cubemesh.data.feed import Feed
from cubemesh.data.images.open_images import open_images
source = open_images(Path({str(root)!r}), "train", (3, 32, 32), 10)
resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
feed = Feed(source, 10, 0, threads=4, epochs=1)
assert sum(batch.samples for batch in feed) == 60
feed.close()
print(source.tally(feed.tried).skipped_images)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == expected["any"]["aside"]
