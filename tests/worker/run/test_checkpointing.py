"""Where a training of several ranks begins: between threads that play ranks."""

import json
import threading
import time
from dataclasses import replace

import numpy as np

from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Snapshot
from cubemesh.schema import CheckpointSettings, Placement, RunSpec, Train
from cubemesh.training import checkpoint as checkpoints
from cubemesh.training.checkpoint import Checkpoint
from cubemesh.training.history import History
from cubemesh.worker.run import checkpointing as checkpointing
from in_memory_log import InMemoryLog

PATIENCE_S = 10


WORD_S = 0.3
"""How long a rank waits for another's word."""


class Ranks(SingleProcessGroup):
    """A group whose ranks are threads of the test, that wait long to meet and not for a word."""

    def __init__(self, rank, said, met):
        self.rank, self.size, self._said, self._met = rank, 2, said, met

    def broadcast_object(self, value):
        return self.all_gather_object(value)[0]

    def all_gather_object(self, value):
        self._met.wait(WORD_S)
        self._said[self.rank] = json.dumps(value)
        self._met.wait(WORD_S)
        return [json.loads(self._said[rank]) for rank in range(self.size)]

    def barrier(self):
        self._met.wait(PATIENCE_S)


def begin(*folders, resume=False):
    """What each rank meets that keeps its checkpoints in the folder of its own."""
    said, met, found = {}, threading.Barrier(2), {}

    def one(rank):
        spec = RunSpec(
            work=Train(network="little-cnn", batch_per_device=4),
            placement=Placement(devices=2),
            checkpointing=CheckpointSettings(checkpoints=str(folders[rank]), resume=resume),
        )
        spec = replace(spec, program=replace(spec.program, sync="all-reduce"))
        try:
            found[rank] = checkpointing.beginning(spec, Ranks(rank, said, met), InMemoryLog())
        except (UsageError, DataError, threading.BrokenBarrierError) as error:
            found[rank] = repr(error) if not str(error) else str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [found[rank] for rank in range(2)]


def test_ranks_that_share_a_folder_begin(tmp_path):
    kept = tmp_path / "kept"
    assert [b.history.done for b in begin(kept, kept)] == [0, 0]
    assert list(kept.iterdir()) == [], "what was tried out is gone"


def test_ranks_on_disks_of_their_own_are_told_so(tmp_path):
    told = begin(tmp_path / "a", tmp_path / "b")
    for folder, message in zip("ab", told, strict=True):
        assert f"checkpoints={tmp_path / folder}" in message
    assert list((tmp_path / "a").iterdir()) == []


def kept(folder, step):
    """A checkpoint of both ranks after `step` steps, of one another's training."""
    for rank in range(2):
        snapshot = Snapshot(weights={"w": np.full(4, rank, np.float32)})
        progress = {"history": History(done=step).plain(), "trains": {"seed": 0}}
        checkpoints.save(folder, rank, Checkpoint(step=step, snapshot=snapshot, progress=progress))


def test_each_rank_reads_its_own_file_however_long_another_takes(tmp_path, monkeypatch):
    for step in (10, 20):
        kept(tmp_path, step)
    path = checkpoints.path_of(tmp_path, 20, 1)
    path.write_bytes(path.read_bytes()[:-3])
    read, load = [], checkpoints.load

    def slowly(folder, step, rank):
        time.sleep(0 if rank else 2 * WORD_S)
        read.append((rank, step))
        return load(folder, step, rank)

    monkeypatch.setattr(checkpoints, "load", slowly)
    begins = begin(tmp_path, tmp_path, resume=True)
    assert [b.history.done for b in begins] == [10, 10], begins
    assert [b.checkpoint.snapshot.weights["w"][0] for b in begins] == [0, 1]
    assert sorted(read) == [(0, 10), (0, 20), (1, 10), (1, 20)]
    assert checkpoints.steps_in(tmp_path, 1) == [10]
    checkpoints.path_of(tmp_path, 10, 0).write_bytes(b"")
    told = begin(tmp_path, tmp_path, resume=True)
    assert all(str(tmp_path) in text for text in told), told
