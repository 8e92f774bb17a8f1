"""Calls of each strategy to its group, in order: a group that records them."""

from dataclasses import replace

import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.tune.search_space import usual_strategies
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.fabric import fabric
from cubemesh.forecast.gradient_sync import COSTS, sync_time
from cubemesh.forecast.passes import Gradient, Passes
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.gradient_sync import (
    BUCKET_BYTES,
    AllocatesBuckets,
    Bucket,
    FinishesInOrder,
)
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.parallel import strategies
from cubemesh.parallel.all_reduce import AllReduce
from cubemesh.parallel.asynchronous import Asynchronous
from cubemesh.parallel.local_sgd import AVERAGE_EVERY, LocalSgd
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.parallel.strategy import SyncCost
from cubemesh.worker.validation import supported_strategies


class Written:
    """A group of `size` ranks in which every transfer ends when it is waited for."""

    def __init__(self, rank=0, size=2):
        self.rank, self.size = rank, size
        self.calls = []

    def _pending(self, *words):
        self.calls.append(words)
        group = self

        class Waited:
            def wait(self):
                group.calls.append(("waited", *words))

        return Waited()

    def all_reduce_mean(self, array, low_precision=False):
        return self._pending("all-reduce", array, *(["low_precision"] if low_precision else []))

    def reduce_mean(self, array, root):
        return self._pending("reduce", array, root)

    def broadcast(self, arrays, root):
        return self._pending("broadcast", tuple(arrays), root)

    def broadcast_object(self, value):
        return value

    def close(self):
        self.calls.append(("closed",))


def bucket(index):
    name = f"gradients {index}"
    return Bucket(index=index, parameters=("a",), size_bytes=4, gradients=name)


def one_step(sync, group):
    """What a program does in a step of two buckets."""
    sync.ready(bucket(0))
    group.calls.append(("backward continues",))
    sync.ready(bucket(1))
    sync.finish()
    sync.update(lambda: group.calls.append(("update",)), ["weights"])
    return group.calls


@pytest.mark.parametrize(
    ("name", "rounded"), [("all-reduce", ()), ("all-reduce-16", ("low_precision",))]
)
def test_buckets_are_sent_during_the_backward_pass(name, rounded):
    group = Written()
    sync = strategies.make(name, group)
    assert sync.name == name
    first, second = (
        ("all-reduce", "gradients 0", *rounded),
        ("all-reduce", "gradients 1", *rounded),
    )
    step = [
        first,
        ("backward continues",),
        second,
        ("waited", *first),
        ("waited", *second),
        ("update",),
    ]
    assert one_step(sync, group) == step
    assert one_step(sync, group) == step * 2, "nothing of a step is left for the next"


class Copying(Written):
    """One whose devices fetch from each other."""

    def peer_memory(self):
        group = self

        class PeerMemory:
            def allocate(self, numbers, like):
                return f"room for {numbers} {like}"

            def all_reduce_mean(self, array):
                return group._pending("fetch", array)

        return PeerMemory()


def test_buckets_are_copied_during_the_backward_pass():
    group = Copying()
    sync = strategies.make("all-reduce-copied", group)
    assert isinstance(sync, AllocatesBuckets)
    assert sync.allocate(5, "floats") == "room for 5 floats"
    step = [
        ("fetch", "gradients 0"),
        ("backward continues",),
        ("fetch", "gradients 1"),
        ("waited", "fetch", "gradients 0"),
        ("waited", "fetch", "gradients 1"),
        ("update",),
    ]
    assert one_step(sync, group) == step
    assert one_step(sync, group) == step * 2, "nothing of a step is left for the next"


@pytest.mark.parametrize("name", ["all-reduce", "all-reduce-16", "all-reduce-copied"])
def test_all_but_the_last_bucket_can_be_waited_for(name):
    group = Copying()
    sync = strategies.make(name, group)
    assert isinstance(sync, FinishesInOrder)
    for index in range(3):
        sync.ready(bucket(index))
    group.calls.clear()
    sync.finish_but_last()
    assert [words[2] for words in group.calls] == ["gradients 0", "gradients 1"]
    sync.finish()
    assert [words[2] for words in group.calls] == ["gradients 0", "gradients 1", "gradients 2"]
    sync.finish_but_last()
    sync.finish()
    assert len(group.calls) == 3


ALL_REDUCE = {"all-reduce", "all-reduce-16", "all-reduce-copied", "all-reduce-copied-16"}
ASYNCHRONOUS = {"asynchronous", "asynchronous-aware"}
SERVERS = {"parameter-server", "parameter-server-cpu"}
SHARDED = {"fully-sharded", "sharded-gradients", "sharded-optimizer"}
DIVIDED = {"tensor-parallel", "hybrid-by-layer", "context-parallel"}


@pytest.mark.parametrize(
    ("trait", "names"),
    [
        ("same_weights", {*ALL_REDUCE, *SERVERS, *SHARDED, *DIVIDED}),
        ("replicated", {*ALL_REDUCE, "fully-sharded", "sharded-gradients", *DIVIDED}),
        ("collective_passes", {"fully-sharded", "sharded-gradients", "hybrid-by-layer"}),
        ("zero_stage", SHARDED),
        ("checkpoints", set(STRATEGIES) - ASYNCHRONOUS - {"parameter-server-cpu"}),
        ("low_precision", {"all-reduce-16", "all-reduce-copied-16"}),
        ("free_running", ASYNCHRONOUS),
        ("blocking", set(STRATEGIES) - ASYNCHRONOUS - {"none"}),
        (
            "same_samples",
            {"model-parallel", "pipeline", "hybrid", "tensor-parallel", "context-parallel"},
        ),
        (
            "profiled",
            {
                *("none", "all-reduce", "all-reduce-16", "parameter-server", "local-sgd"),
                *DIVIDED,
                *SHARDED,
            },
        ),
        (
            "sequential_step",
            set(STRATEGIES) - ASYNCHRONOUS - {"model-parallel", "parameter-server-cpu"},
        ),
        ("needs_peer_access", {"all-reduce-copied", "all-reduce-copied-16"}),
        ("tuned", ALL_REDUCE),
        ("capturable", {*ALL_REDUCE, "none"}),
        (
            "cost",
            {*ASYNCHRONOUS, *ALL_REDUCE, *SERVERS, "local-sgd", *SHARDED},
        ),
    ],
)
def test_traits(trait, names):
    assert {name for name, s in STRATEGIES.items() if getattr(s, trait)} == names


def test_every_strategy_is_registered_under_its_name_with_a_summary():
    assert all(s.name == name and s.summary for name, s in STRATEGIES.items())
    assert {n for n, s in STRATEGIES.items() if issubclass(s, Asynchronous)} == ASYNCHRONOUS


def test_strategies_of_the_same_precision_make_the_same_steps():
    assert strategies.same_steps("all-reduce", "parameter-server")
    assert strategies.same_steps("all-reduce-16", "all-reduce-copied-16")
    assert not strategies.same_steps("all-reduce", "all-reduce-16")
    assert not strategies.same_steps("all-reduce", "local-sgd")
    assert strategies.same_steps("none", "none")


def test_a_single_process_needs_no_peer_memory():
    sync = strategies.make("all-reduce-copied", SingleProcessGroup())
    updates = []
    sync.ready(bucket(0))
    sync.finish()
    sync.update(lambda: updates.append(1), ["weights"])
    assert updates == [1]
    assert sync.allocate(5, "floats") is None


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_server_updates_and_all_get_its_weights(rank):
    group = Written(rank)
    calls = one_step(strategies.make("parameter-server", group), group)
    reduced = [words for words in calls if words[0] == "reduce"]
    assert reduced == [("reduce", "gradients 0", 0), ("reduce", "gradients 1", 0)]
    assert (("update",) in calls) == (rank == 0)
    assert calls[-2:] == [("broadcast", ("weights",), 0), ("waited", "broadcast", ("weights",), 0)]
    if rank == 0:
        waits = [n for n, words in enumerate(calls) if words[:2] == ("waited", "reduce")]
        assert max(waits) < calls.index(("update",))


def test_local_sgd_averages_the_weights_every_few_updates():
    group = Written()
    sync = LocalSgd(group, every=3)
    for step in range(1, 7):
        group.calls.clear()
        calls = one_step(sync, group)
        averaged = [("all-reduce", "weights"), ("waited", "all-reduce", "weights")]
        expected = averaged if step % 3 == 0 else []
        assert calls == [("backward continues",), ("update",), *expected]
    assert strategies.make("local-sgd", group)._every == AVERAGE_EVERY


def test_local_sgd_averages_before_an_evaluation_if_steps_were_made():
    group = Written()
    sync = LocalSgd(group, every=3)
    averaged = [("all-reduce", "weights"), ("waited", "all-reduce", "weights")]
    sync.average(["weights"])
    assert group.calls == [], "all ranks begin alike"
    one_step(sync, group)
    group.calls.clear()
    sync.average(["weights"])
    sync.average(["weights"])
    assert group.calls == averaged, "once"
    one_step(sync, group)
    group.calls.clear()
    assert one_step(sync, group)[-2:] == averaged, "the third step averages as ever"
    group.calls.clear()
    sync.average(["weights"])
    assert group.calls == []


def test_none_sends_nothing():
    group = Written()
    assert one_step(strategies.make("none", group), group) == [("backward continues",), ("update",)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_single_process_updates_once_a_step_under_every_strategy(name):
    sync = strategies.make(name)
    updates = []
    for _ in range(2 * AVERAGE_EVERY):
        sync.ready(bucket(0))
        sync.finish()
        sync.update(lambda: updates.append(1), ["weights"])
    assert len(updates) == 2 * AVERAGE_EVERY
    moves_none = ("none", "local-sgd", "parameter-server-cpu")
    divides = ("model-parallel", "pipeline", "hybrid", "tensor-parallel")
    divides += ("fully-sharded", "sharded-gradients")
    assert sync.bucket_bytes == (None if name in (*moves_none, *divides) else BUCKET_BYTES)
    assert SingleProcessGroup().broadcast_object("an object") == "an object"


def test_an_unknown_strategy_names_the_nearest():
    with pytest.raises(UsageError, match="all-reduce"):
        strategies.make("allreduce")


class Toy(AllReduce):
    """A strategy that is added by a class and a line."""

    name = "toy"
    summary = "the gradients twice"
    cost = SyncCost(gradients="all-reduce", bytes_factor=2.0)


def test_a_new_strategy_is_a_class_and_a_line(monkeypatch):
    """Everything else reads its traits."""
    monkeypatch.setitem(STRATEGIES, Toy.name, Toy)
    monkeypatch.setitem(COSTS, Toy.name, Toy.cost)  # a comprehension over the table
    assert isinstance(strategies.make("toy"), Toy)
    assert strategies.same_steps("toy", "parameter-server")
    able = entry("null").load().capabilities()
    assert "toy" not in supported_strategies(able)
    assert "toy" in supported_strategies(replace(able, sync_features=frozenset({"all-reduce"})))
    assert "toy" in usual_strategies(on_gpu=False)
    on, known = fabric(load_system("dgx1-p100"), 8), defaults()
    own = Passes(
        forward=(0.01,),
        backward=(Gradient(seconds=0.02, gradient_bytes=1 << 20),),
        update_s=0.001,
        memory_bound=False,
    )
    assert sync_time("toy", on, own, known, "nccl").bytes == 2 * (1 << 20)
