"""Checkpoints on a real disk: complete ones, damaged ones, a full disk."""

import errno
import json
import os
import re
import resource
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import in_memory_log
from cubemesh.errors import DataError
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Snapshot
from cubemesh.training import checkpoint as checkpoints
from cubemesh.training import checkpoint_writer
from cubemesh.training.checkpoint import Checkpoint, load, newest_whole, path_of, save, steps_in
from cubemesh.training.checkpoint_writer import CheckpointWriter
from cubemesh.training.history import History
from in_memory_log import InMemoryLog
from script_server import run_code


def made(step, size=8):
    snapshot = Snapshot(
        weights={"w": np.full(size, step, np.float32)},
        arrays={"optimizer.w.step": np.array(step, np.float32)},
        plain={"scaling": {"scale": 0.1 + step}},
    )
    return Checkpoint(step=step, snapshot=snapshot, history=History(done=step, losses={step: 0.5}))


def whole(folder):
    """The step of the newest, where none is damaged."""
    found, damaged = newest_whole(folder, SingleProcessGroup())
    assert damaged == []
    return found.step


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path):
    size = save(tmp_path, 0, 1, made(3))
    assert path_of(tmp_path, 3, 0, 1).stat().st_size == size
    found = load(tmp_path, 3, 0, 1)
    assert found.snapshot.weights["w"].tolist() == [3.0] * 8
    assert found.snapshot.arrays["optimizer.w.step"] == 3
    assert found.snapshot.plain == {"scaling": {"scale": 3.1}}
    assert found.history == History(done=3, losses={3: 0.5})
    assert [p.name for p in path_of(tmp_path, 3, 0, 1).parent.iterdir()] == [
        "rank-0-of-1.safetensors"
    ]


def test_a_checkpoint_is_complete_with_the_files_of_all_ranks(tmp_path):
    for step, ranks in ((10, (0, 1)), (20, (1,)), (30, (0,))):
        for rank in ranks:
            save(tmp_path, rank, 2, made(step))
    assert list(steps_in(tmp_path)) == [10]
    assert list(steps_in(tmp_path / "none")) == []


@pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_is_used(tmp_path, harm):
    for step in (10, 20):
        save(tmp_path, 0, 1, made(step))
    path = path_of(tmp_path, 20, 0, 1)
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[:-3], "empty": b"", "flip": whole[:-5] + bytes([whole[-5] ^ 4]) + whole[-4:]}[
            harm
        ]
    )
    found, (message,) = newest_whole(tmp_path, SingleProcessGroup())
    assert found.step == 10
    assert str(path) in message
    checkpoints.remove_after(tmp_path, found.step)
    assert list(steps_in(tmp_path)) == [10]


DEEP = "[" * 100_000 + "]" * 100_000
HISTORY = {"losses": [], "validation": [], "rates": []}
GOOD = {"version": checkpoints.VERSION, "step": 20, "training": "", "plain": {}, "history": HISTORY}


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "null",
        "[20]",
        "7",
        "9" * 5000,
        json.dumps({k: v for k, v in GOOD.items() if k != "step"}),
        json.dumps(GOOD | {"plain": 7}),
        json.dumps(GOOD | {"history": None}),
        json.dumps(GOOD | {"history": HISTORY | {"losses": [["a", 1]]}}),
        json.dumps(GOOD | {"history": HISTORY | {"losses": [[1, 10**400]]}}),
        json.dumps(GOOD | {"history": HISTORY | {"validation": [{"samples": 0}]}}),
        json.dumps(GOOD | {"history": HISTORY | {"validation": [{"samples": "x"}]}}),
    ],
    ids=range(12),
)
def test_metadata_of_another_shape_with_a_matching_checksum_is_damage(tmp_path, text):
    save(tmp_path, 0, 1, made(10))
    save(tmp_path, 0, 1, made(20))
    path = path_of(tmp_path, 20, 0, 1)
    arrays, _ = checkpoints.read_arrays(path)
    checkpoints.write_arrays(path, arrays, {"cubemesh": json.dumps(GOOD)})
    assert whole(tmp_path) == 20, "the right shape is read"
    checkpoints.write_arrays(path, arrays, {"cubemesh": text})
    found, (message,) = newest_whole(tmp_path, SingleProcessGroup())
    assert found.step == 10
    assert str(path) in message


def test_a_shape_larger_than_the_file_is_damage(tmp_path):
    save(tmp_path, 0, 1, made(10))
    for offset in (4, 4 << 40):
        header = {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, offset]}}
        text = json.dumps(header).encode()
        path = path_of(tmp_path, 20, 0, 1)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
        found, (message,) = newest_whole(tmp_path, SingleProcessGroup())
        assert found.step == 10
        assert str(path) in message


def test_a_file_or_a_link_called_like_a_checkpoint_is_left_alone(tmp_path):
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    save(folder, 0, 1, made(5))
    save(elsewhere, 0, 1, made(30))
    (folder / "step-00000010").write_text("mine")
    (folder / "step-00000030").symlink_to(elsewhere / "step-00000030")
    (folder / "step-00000040").symlink_to(tmp_path / "nothing")
    assert whole(folder) == 5
    writer = CheckpointWriter(folder, rank=0, ranks=1, keep=1)
    for step in (10, 30, 40, 50):
        writer.save(made(step))
    writer.wait()
    assert list(steps_in(folder)) == [50]
    checkpoints.remove_after(folder, 1)
    names = ["step-00000010", "step-00000030", "step-00000040"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert (folder / "step-00000010").read_text() == "mine"
    assert whole(elsewhere) == 30, "no link was followed"
    assert sorted(p.name for p in elsewhere.rglob("*")) == ["rank-0-of-1.safetensors", names[1]]
    log = InMemoryLog()
    writer.report(log)
    (warning,) = log.warnings
    assert "3 checkpoints of rank 0" in warning.cause


def test_a_file_that_cannot_be_read_is_neither_damaged_nor_removed(tmp_path, monkeypatch):
    """A link to itself is a file that the system refuses to open (ELOOP)."""
    for step in (10, 20):
        save(tmp_path, 0, 1, made(step))
    path, aside = path_of(tmp_path, 20, 0, 1), tmp_path / "aside"
    path.rename(aside)
    path.symlink_to(path)
    pauses = []
    monkeypatch.setattr(checkpoints.time, "sleep", pauses.append)
    with pytest.raises(DataError) as caught:
        newest_whole(tmp_path, SingleProcessGroup())
    assert str(path) in str(caught.value)
    assert os.strerror(errno.ELOOP) in str(caught.value)
    assert pauses == list(checkpoints.PAUSES_S)
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: aside.replace(path))
    assert whole(tmp_path) == 20, "it could be read again"


def test_a_fifo_is_no_checkpoint_and_a_link_no_mark(tmp_path):
    for step in (10, 20):
        save(tmp_path, 0, 1, made(step))
    path = path_of(tmp_path, 20, 0, 1)
    path.unlink()
    os.mkfifo(path)
    found, (wrong,) = newest_whole(tmp_path, SingleProcessGroup())
    assert found.step == 10
    assert "not a regular file" in wrong
    path.with_suffix(".failed").symlink_to(tmp_path / "made")
    checkpoints.mark_failed(tmp_path, 20, 0, 1)
    assert not (tmp_path / "made").exists()


def test_a_folder_that_cannot_be_listed_ends_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: None)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DataError, match=os.strerror(errno.ELOOP)):
        newest_whole(tmp_path / "loop", SingleProcessGroup())


def test_a_renamed_checkpoint_is_refused(tmp_path):
    save(tmp_path, 0, 1, made(10))
    path_of(tmp_path, 10, 0, 1).parent.rename(path_of(tmp_path, 11, 0, 1).parent)
    with pytest.raises(DataError, match="after step 10"):
        load(tmp_path, 11, 0, 1)


def test_old_checkpoints_are_removed_once_enough_newer_ones_are_complete(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, 0, 2, made(step))
    for step in (10, 20, 30):
        save(tmp_path, 1, 2, made(step))
    for keep in (2, 5):
        checkpoints.prune(tmp_path, ranks=2, keep=keep)
        left = sorted(checkpoints.step_folders(tmp_path))
        assert left == [20, 30, 40], "40 is still being written by rank 1"


def test_a_checkpoint_completed_during_pruning_is_not_removed(tmp_path, monkeypatch):
    """Ranks write during the pruning of rank 0, which may complete a checkpoint."""
    save(tmp_path, 0, 2, made(10))
    look = checkpoints.steps_in

    def then_written(folder):
        found = look(folder)
        save(folder, 1, 2, made(10))
        return found

    monkeypatch.setattr(checkpoints, "steps_in", then_written)
    checkpoints.prune(tmp_path, ranks=2, keep=2)
    assert look(tmp_path) == {10: 2}


def test_a_folder_that_a_failing_rank_removed_is_made_again(tmp_path, monkeypatch):
    """A rank whose write fails removes the step's folder before another has opened its file."""
    write, wanted = checkpoints.write_arrays, [0, 1]

    def fail_between(path, arrays, metadata):
        if wanted:
            path.parent.rmdir()  # as a rank that fails
            wanted.pop()
        write(path, arrays, metadata)

    monkeypatch.setattr(checkpoints, "write_arrays", fail_between)
    assert save(tmp_path, 2, 3, made(7)) > 0
    assert path_of(tmp_path, 7, 2, 3).exists()
    wanted += [0, 1, 2]
    with pytest.raises(FileNotFoundError):  # more often than there are other ranks
        save(tmp_path, 2, 3, made(8))


def test_later_steps_do_not_change_a_snapshot(tmp_path, monkeypatch):
    """Programs test that a snapshot is a copy."""
    may_write = threading.Event()
    real = checkpoint_writer.save

    def held_back(*given):
        assert may_write.wait(600)
        return real(*given)

    monkeypatch.setattr(checkpoint_writer, "save", held_back)
    writer = CheckpointWriter(tmp_path, rank=0, ranks=1, keep=2)
    weights = np.zeros(4, np.float32)
    snapshot = Snapshot(weights={"w": weights.copy()})
    writer.save(Checkpoint(step=1, snapshot=snapshot))
    weights += 1
    assert list(steps_in(tmp_path)) == [], "training continues meanwhile"
    may_write.set()
    writer.wait()
    assert load(tmp_path, 1, 0, 1).snapshot.weights["w"].tolist() == [0.0] * 4


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    writer = CheckpointWriter(tmp_path, rank=0, ranks=1, keep=2)
    writer.save(made(10))
    bad = Snapshot(weights={"conv1.weight": np.array([1, np.nan], np.float32)})
    writer.save(Checkpoint(step=20, snapshot=bad))
    log = InMemoryLog()
    writer.report(log)
    assert list(steps_in(tmp_path)) == [10]
    (warning,) = log.warnings
    assert warning.code == "checkpoint-failed"
    assert "step 20: conv1.weight " in warning.cause
    assert "newest: step 10" in warning.cause


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(2, np.complex128), "after step 20: .*complex128"),
        (np.broadcast_to(np.float32(1), (1 << 50,)), "after step 20: out of memory"),
    ],
    ids=["no name in the format", "memory"],
)
def test_every_reason_for_a_failed_write_is_reported(tmp_path, array, message):
    """The mask of finite values of 2^50 weights fits into no memory."""
    writer = CheckpointWriter(tmp_path, rank=0, ranks=1, keep=2)
    writer.save(made(10))
    snapshot = Snapshot(weights={"w": array})
    writer.save(Checkpoint(step=20, snapshot=snapshot))
    log = InMemoryLog()
    writer.report(log)
    (warning,) = log.warnings
    assert re.search(message, warning.cause), warning.cause
    assert "newest: step 10" in warning.cause
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000010"]


def test_incomplete_checkpoints_do_not_accumulate(tmp_path):
    savers = [CheckpointWriter(tmp_path, rank=rank, ranks=2, keep=2) for rank in range(2)]
    good, bad = made(0).snapshot, Snapshot(weights={"w": np.array([np.nan], np.float32)})
    for step in (10, 20, 30, 40):
        for writer in reversed(savers):
            snapshot = bad if step > 10 and writer is savers[1] else good
            writer.save(Checkpoint(step=step, snapshot=snapshot))
            writer.wait()
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000010"]
    savers[0].save(made(50))
    savers[0].wait()
    left = sorted(checkpoints.step_folders(tmp_path))
    assert left == [10, 50], "rank 1 may still write it"
    savers[1].save(made(50))
    savers[1].wait()
    checkpoints.mark_failed(tmp_path, 60, 1, 2)
    save(tmp_path, 1, 2, made(60))
    checkpoints.prune(tmp_path, 2, 2)
    assert list(steps_in(tmp_path)) == [10, 50]
    assert path_of(tmp_path, 60, 1, 2).is_file(), "it could be written after all"


FULL = """
import resource, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_checkpoint import made
from in_memory_log import InMemoryLog
from cubemesh.training.checkpoint_writer import CheckpointWriter
import json
writer = CheckpointWriter(Path({folder!r}), rank=0, ranks=1, keep=1)
writer.save(made(10))
writer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
writer.save(made(20, size=100_000))
log = InMemoryLog()
writer.report(log)
print(json.dumps([w.cause for w in log.warnings]))
"""


def test_a_failed_write_loses_no_earlier_checkpoint(tmp_path):
    """The kernel's limit on the size of files stops a write half-way, as a full disk does."""
    paths = [str(Path(__file__).parent), str(Path(in_memory_log.__file__).parent)]
    code = FULL.format(paths=paths, folder=str(tmp_path), limit=50_000)
    (cause,) = json.loads(run_code(code))
    assert f"step 20: {os.strerror(errno.EFBIG)}" in cause
    assert "newest: step 10" in cause
    assert whole(tmp_path) == 10
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000010"], "no part of it is left"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 300 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "cubemesh-test", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_after_a_full_disk_checkpoints_are_written_again(small_disk):
    writer = CheckpointWriter(small_disk, rank=0, ranks=1, keep=1)
    writer.save(made(10, size=20_000))
    writer.save(made(20, size=60_000))  # 240 kB in addition to 80 kB
    writer.save(made(30, size=20_000))
    log = InMemoryLog()
    writer.report(log)
    (warning,) = log.warnings
    assert "1 checkpoints of rank 0" in warning.cause
    assert f"step 20: {os.strerror(errno.ENOSPC)}" in warning.cause
    assert "newest: step 30" in warning.cause
    assert whole(small_disk) == 30
    assert [p.name for p in small_disk.iterdir()] == ["step-00000030"]
