"""The checkpoint from which a training of several ranks resumes; threads act as ranks."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from cubemesh.errors import CubemeshError, UsageError
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Snapshot, Unsupported
from cubemesh.schema import CheckpointSettings, Placement, ProgramSettings, RunSpec, Train
from cubemesh.training import checkpoint as checkpoints
from cubemesh.training.checkpoint import Checkpoint
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


def begin(*folders, resume=False, reshard=False):
    """The beginning, or the error, of each rank with its checkpoints in its folder."""
    values, meeting, found = {}, threading.Barrier(2), {}

    def one(rank):
        spec = RunSpec(
            work=Train(network="little-cnn", batch_per_device=4),
            placement=Placement(devices=2),
            program=ProgramSettings(sync="all-reduce", deterministic=True),
            checkpointing=CheckpointSettings(
                checkpoints=str(folders[rank]), resume=resume, reshard=reshard
            ),
        )
        try:
            found[rank] = checkpointing.beginning(spec, Ranks(rank, values, meeting), InMemoryLog())
        except (CubemeshError, Unsupported, threading.BrokenBarrierError) as error:
            found[rank] = repr(error) if not str(error) else str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for ended in found.values():
        if getattr(ended, "claim", None) is not None:
            ended.claim.close()
    return [found[rank] for rank in range(2)]


def test_ranks_that_share_an_empty_folder_start_anew(tmp_path):
    folder = tmp_path / "checkpoints"
    assert [b.history.done for b in begin(folder, folder)] == [0, 0]
    left = {path.name for path in folder.iterdir()}
    assert left == {"training.json", "training.lock"}, "the test file is removed"


def test_ranks_that_share_no_folder_are_refused(tmp_path):
    messages = begin(tmp_path / "a", tmp_path / "b")
    for folder, message in zip("ab", messages, strict=True):
        assert f"checkpoints={tmp_path / folder}" in message
    assert list((tmp_path / "a").iterdir()) == []


def save(folder, step, training):
    """Save a checkpoint of both ranks after `step` steps."""
    for rank in range(2):
        snapshot = Snapshot(weights={"w": np.full(4, rank, np.float32)})
        held = Checkpoint(step=step, snapshot=snapshot, training=training)
        checkpoints.save(folder, rank, 2, held)


def test_a_rank_waits_in_a_barrier_while_another_reads_its_file(tmp_path, monkeypatch):
    first, _ = begin(tmp_path, tmp_path)
    for step in (10, 20):
        save(tmp_path, step, first.training)
    path = checkpoints.path_of(tmp_path, 20, 1, 2)
    path.write_bytes(path.read_bytes()[:-3])
    read, load, start = [], checkpoints.load, threading.Barrier(2)

    def slowly(folder, step, rank, ranks):
        if rank == 1:
            Ranks.in_barrier.clear()
        start.wait(PATIENCE_S)
        if rank == 0:
            assert Ranks.in_barrier.wait(PATIENCE_S)
        read.append((rank, step))
        return load(folder, step, rank, ranks)

    monkeypatch.setattr(checkpoints, "load", slowly)
    begins = begin(tmp_path, tmp_path, resume=True)
    assert [b.history.done for b in begins] == [10, 10], begins
    assert [b.checkpoint.snapshot.weights["w"][0] for b in begins] == [0, 1]
    assert sorted(read) == [(0, 10), (0, 20), (1, 10), (1, 20)]
    assert checkpoints.steps_in(tmp_path) == {10: 2}
    checkpoints.path_of(tmp_path, 10, 0, 2).write_bytes(b"")
    messages = begin(tmp_path, tmp_path, resume=True)
    assert all(str(tmp_path) in message for message in messages), messages


ONE = RunSpec(
    work=Train(network="little-cnn", batch_per_device=8),
    program=ProgramSettings(deterministic=True),
)


def alone(folder, **settings):
    """The beginning of a training on one device."""
    checkpointed = CheckpointSettings(checkpoints=str(folder), **settings)
    spec = replace(ONE, checkpointing=checkpointed)
    started = checkpointing.beginning(spec, SingleProcessGroup(), InMemoryLog())
    started.claim.close()
    return started


@pytest.mark.parametrize(
    ("sync", "devices", "planned"),
    [("none", 1, True), ("all-reduce", 2, True), ("local-sgd", 2, False)],
)
def test_checkpoints_that_average_the_weights_follow_epochs(tmp_path, sync, devices, planned):
    spec = replace(
        ONE,
        placement=Placement(devices=devices),
        program=ProgramSettings(sync=sync),
        checkpointing=CheckpointSettings(checkpoints=str(tmp_path), fault_every_s=60.0),
    )
    begin = checkpointing.Beginning()
    writer = checkpointing.training_writer(spec, SingleProcessGroup(), begin)
    assert (writer.rule is not None) == planned
    assert writer.due(3, ends_epoch=True)
    assert writer.due(3, ends_epoch=False) == planned


def state_of(rank=0):
    """State of a program, with an array in which ranks may differ and random numbers, in which they
    do."""
    numbers = np.random.default_rng(3)
    arrays = {
        "optimizer.w.exp_avg": numbers.random(5, np.float32),
        "random.cpu": np.full(3, rank, np.uint8),
    }
    return Snapshot(weights={"w": numbers.random(5, np.float32)}, arrays=arrays, plain={"s": 0.1})


def write(folder, step, training, ranks, change=lambda rank, snapshot: None):
    for rank in range(ranks):
        snapshot = state_of(rank)
        change(rank, snapshot)
        held = Checkpoint(step=step, snapshot=snapshot, training=training)
        checkpoints.save(folder, rank, ranks, held)


def assert_same(snapshot, other):
    for one, its in ((snapshot.weights, other.weights), (snapshot.arrays, other.arrays)):
        assert {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in its.items()}
    assert snapshot.plain == other.plain


def test_resharding_gives_every_rank_the_same_bits_to_two_devices_and_back(tmp_path):
    training = alone(tmp_path).training
    write(tmp_path, 10, training, 1)
    for message in begin(tmp_path, tmp_path, resume=True):
        assert "--reshard" in message
    for _ in range(2):  # the second is restarted before it has written a checkpoint
        for begun in begin(tmp_path, tmp_path, resume=True, reshard=True):
            assert begun.history.done == 10
            assert_same(begun.checkpoint.snapshot, state_of())
    write(tmp_path, 20, training, 2)
    assert checkpoints.steps_in(tmp_path) == {10: 1, 20: 2}
    back = alone(tmp_path, resume=True, reshard=True)
    assert (back.history.done, back.training) == (20, training)
    assert_same(back.checkpoint.snapshot, state_of())


def flip(rank, snapshot):
    if rank == 1:
        snapshot.arrays["optimizer.w.exp_avg"].view(np.int32)[2] ^= 1


def lack(rank, snapshot):
    if rank == 1:
        del snapshot.arrays["optimizer.w.exp_avg"]


def scale(rank, snapshot):
    snapshot.plain["s"] = rank


@pytest.mark.parametrize(
    ("change", "word"),
    [(flip, "optimizer.w.exp_avg"), (lack, "optimizer.w.exp_avg"), (scale, "loss scale")],
)
def test_ranks_with_state_of_their_own_are_not_resharded(tmp_path, change, word):
    first, _ = begin(tmp_path, tmp_path)
    write(tmp_path, 10, first.training, 2, change)
    manifest = (tmp_path / "training.json").read_bytes()
    with pytest.raises(Unsupported, match=word):
        alone(tmp_path, resume=True, reshard=True)
    assert checkpoints.steps_in(tmp_path) == {10: 2}
    assert (tmp_path / "training.json").read_bytes() == manifest
    assert [b.history.done for b in begin(tmp_path, tmp_path, resume=True)] == [10, 10]


def test_a_checkpoint_of_another_training_is_refused_and_kept(tmp_path):
    alone(tmp_path)
    write(tmp_path, 10, "another", 1)
    with pytest.raises(UsageError, match="another"):
        alone(tmp_path, resume=True)
    assert checkpoints.steps_in(tmp_path) == {10: 1}
