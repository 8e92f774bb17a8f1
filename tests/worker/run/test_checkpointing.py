"""The checkpoint from which a training of several ranks resumes; threads act as ranks."""

import json
import threading
from dataclasses import replace

import numpy as np

from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Snapshot
from cubemesh.schema import CheckpointSettings, Placement, RunSpec, Train
from cubemesh.training import checkpoint as checkpoints
from cubemesh.training.checkpoint import Checkpoint
from cubemesh.training.history import History
from cubemesh.worker.run import checkpointing
from in_memory_log import InMemoryLog
from patience import PATIENCE_S


class Ranks(SingleProcessGroup):
    """A group whose ranks are threads of the test."""

    in_barrier = threading.Event()
    """Set when rank 1 calls `barrier`, whose time limit is longer than that of a gather."""

    def __init__(self, rank, values, meeting):
        self.rank, self.size, self._values, self._meeting = rank, 2, values, meeting

    def broadcast_object(self, value):
        return self.all_gather_object(value)[0]

    def all_gather_object(self, value):
        self._meeting.wait(PATIENCE_S)
        self._values[self.rank] = json.dumps(value)
        self._meeting.wait(PATIENCE_S)
        return [json.loads(self._values[rank]) for rank in range(self.size)]

    def barrier(self):
        if self.rank == 1:
            self.in_barrier.set()
        self._meeting.wait(PATIENCE_S)


def begin(*folders, resume=False):
    """The beginning, or the error, of each rank with its checkpoints in its folder."""
    values, meeting, found = {}, threading.Barrier(2), {}

    def one(rank):
        spec = RunSpec(
            work=Train(network="little-cnn", batch_per_device=4),
            placement=Placement(devices=2),
            checkpointing=CheckpointSettings(checkpoints=str(folders[rank]), resume=resume),
        )
        spec = replace(spec, program=replace(spec.program, sync="all-reduce"))
        try:
            found[rank] = checkpointing.beginning(spec, Ranks(rank, values, meeting), InMemoryLog())
        except (UsageError, DataError, threading.BrokenBarrierError) as error:
            found[rank] = repr(error) if not str(error) else str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [found[rank] for rank in range(2)]


def test_ranks_that_share_an_empty_folder_start_anew(tmp_path):
    folder = tmp_path / "checkpoints"
    assert [b.history.done for b in begin(folder, folder)] == [0, 0]
    assert list(folder.iterdir()) == [], "the test file is removed"


def test_ranks_that_share_no_folder_are_refused(tmp_path):
    messages = begin(tmp_path / "a", tmp_path / "b")
    for folder, message in zip("ab", messages, strict=True):
        assert f"checkpoints={tmp_path / folder}" in message
    assert list((tmp_path / "a").iterdir()) == []


def save(folder, step):
    """Save a checkpoint of both ranks after `step` steps."""
    for rank in range(2):
        snapshot = Snapshot(weights={"w": np.full(4, rank, np.float32)})
        progress = {"history": History(done=step).plain(), "trains": {"seed": 0}}
        checkpoints.save(folder, rank, Checkpoint(step=step, snapshot=snapshot, progress=progress))


def test_a_rank_waits_in_a_barrier_while_another_reads_its_file(tmp_path, monkeypatch):
    for step in (10, 20):
        save(tmp_path, step)
    path = checkpoints.path_of(tmp_path, 20, 1)
    path.write_bytes(path.read_bytes()[:-3])
    read, load, start = [], checkpoints.load, threading.Barrier(2)

    def slowly(folder, step, rank):
        if rank == 1:
            Ranks.in_barrier.clear()
        start.wait(PATIENCE_S)
        if rank == 0:
            assert Ranks.in_barrier.wait(PATIENCE_S)
        read.append((rank, step))
        return load(folder, step, rank)

    monkeypatch.setattr(checkpoints, "load", slowly)
    begins = begin(tmp_path, tmp_path, resume=True)
    assert [b.history.done for b in begins] == [10, 10], begins
    assert [b.checkpoint.snapshot.weights["w"][0] for b in begins] == [0, 1]
    assert sorted(read) == [(0, 10), (0, 20), (1, 10), (1, 20)]
    assert checkpoints.steps_in(tmp_path, 1) == [10]
    checkpoints.path_of(tmp_path, 10, 0).write_bytes(b"")
    messages = begin(tmp_path, tmp_path, resume=True)
    assert all(str(tmp_path) in message for message in messages), messages
