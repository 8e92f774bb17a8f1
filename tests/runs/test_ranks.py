"""A run on two devices, each a core: what is recorded of it, and what becomes of it when a rank
is killed or refused memory."""

import os
import signal
from dataclasses import replace

import pytest

from cubemesh.runs import Executor, Silent
from cubemesh.schema import Placement, ProgramSettings, Status
from cubemesh.store import Store

pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores"
)


def on_devices(spec, devices=2, sync="all-reduce", threads=None):
    return type(spec)(
        work=spec.work,
        placement=Placement(device="cpu", devices=devices, threads=threads),
        program=ProgramSettings(framework=spec.program.framework, sync=sync),
        budget=spec.budget,
    )


class Killer(Silent):
    """Kills the rank on the last core with SIGKILL as soon as rank 0 has measured."""

    def __init__(self, workers):
        self.workers, self.killed = workers, []
        self.waits = False

    def start(self, spec):
        self.waits = spec.budget.seconds > 0

    def progress(self, progress):
        measured = progress.phase == "measure" and progress.steps > 0
        if not (self.waits and measured) or self.killed:
            return
        last = {max(os.sched_getaffinity(0))}
        self.killed = [pid for pid in self.workers() if os.sched_getaffinity(pid) == last]
        for pid in self.killed:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def measured(tmp_path_factory, small_machine, null_spec, processes_of, no_processes_left):
    """The records of all runs below, of one executor: PyTorch is imported once."""
    folder = tmp_path_factory.mktemp("devices")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # no other runner's lock is in the way
        return _measured(folder, small_machine, null_spec, processes_of, no_processes_left)


def _measured(folder, small_machine, null_spec, processes_of, no_processes_left):
    runs = folder / "runs"
    quick = {"framework": "pytorch", "steps": 4, "windows": 2}
    step = null_spec(**quick)
    long = null_spec(**(quick | {"windows": 200}), seconds=60.0)
    large = null_spec(**quick, batch_per_device=1024, memory_limit_bytes=300 << 20)
    attributed = replace(step, budget=replace(step.budget, attribution=True))
    cores = len(os.sched_getaffinity(0))

    def workers():
        return [pid for pid, name in processes_of(runs) if name == "cubemesh-worker"]

    killer = Killer(workers)
    specs = {
        "two": on_devices(step, threads=1),
        "attributed": on_devices(attributed, threads=1),
        "asynchronous": on_devices(step, sync="asynchronous", threads=1),
        "many": on_devices(step, devices=cores + 1),
        "wide": on_devices(step, threads=cores),
        "oom": on_devices(large, sync="none"),
        "killed": on_devices(long, threads=1),
    }
    with (
        Store.open(str(folder / "results.db")) as store,
        Executor(store, machine=small_machine, runs_folder=runs, observer=killer) as executor,
    ):
        found = dict(zip(specs, executor.run(list(specs.values())), strict=True))
        found["left"] = workers()
    assert len(killer.killed) == 1
    assert no_processes_left(runs)
    return found


def test_two_ranks_are_recorded_with_their_cores_and_windows(measured):
    record = measured["two"]
    assert record.ok, record.outcome
    cores = sorted(os.sched_getaffinity(0))
    assert [(r.rank, r.device, r.threads, r.processors) for r in record.ranks] == [
        (0, "cpu", 1, (cores[0],)),
        (1, "cpu", 1, (cores[1],)),
    ]
    assert all(rank.outcome.ok for rank in record.ranks)
    assert {rank.transport for rank in record.ranks} == {"gloo TCP"}
    assert all(rank.interface for rank in record.ranks)
    first, second = ([w for w in record.measured if w.rank == n] for n in range(2))
    assert [w.steps for w in first] == [w.steps for w in second] != []
    samples = sum(w.samples for w in (*first, *second))
    assert samples == 2 * 8 * sum(w.steps for w in first)
    ends = [w.start_s + w.elapsed_s for w in record.measured]
    elapsed_s = max(ends) - min(w.start_s for w in record.measured)
    rates = [sum(w.samples for w in own) / sum(w.elapsed_s for w in own) for own in (first, second)]
    throughput = record.figure("throughput_per_s")
    assert 0.9 * samples / elapsed_s <= throughput <= 1.0001 * sum(rates)


def test_each_rank_has_its_own_attribution(measured):
    record = measured["attributed"]
    assert record.ok, record.outcome
    assert len(record.rank_parts) == 2
    assert record.rank_parts[0] == record.parts
    for rank, parts in enumerate(record.rank_parts):
        own = [w for w in record.measured if w.rank == rank]
        seconds = {part.name: part.seconds for part in parts}
        assert min(seconds["exposed_communication"], seconds["straggler_wait"]) >= 0
        assert seconds["compute"] > 0
        step_s = sum(w.step_s for w in own) / len(own)
        assert sum(seconds.values()) == pytest.approx(step_s, rel=1e-6)


def test_asynchronous_ranks_are_recorded_with_their_staleness_and_the_order_of_updates(measured):
    record = measured["asynchronous"]
    assert record.ok, record.outcome
    first, second = ([w for w in record.measured if w.rank == n] for n in range(2))
    assert sum(w.steps for w in first) >= 4
    assert sum(w.steps for w in second) >= 1, "what they did together: tests/measure"
    updates = sum(w.steps for w in record.windows)
    assert record.figures["staleness"].n == updates
    assert 0 < record.figure("staleness") <= 1, "an update makes one other gradient staler"
    assert {"staleness_rank_0", "staleness_rank_1", "updates_taking_turns"} <= {*record.figures}
    (counted,) = [c for c in record.curves if c.name == "updates_by_staleness"]
    assert sum(counted.y) == updates
    assert {"update_rank", "update_staleness"} <= {*record.series}


def test_more_devices_or_cores_than_available_are_unsupported(measured):
    cores = len(os.sched_getaffinity(0))
    many, wide = measured["many"].outcome, measured["wide"].outcome
    assert many.status is wide.status is Status.UNSUPPORTED
    assert f"devices={cores}" in many.message
    assert f"threads={cores}" in wide.message


def test_memory_refused_to_a_rank_is_the_runs_outcome(measured):
    outcome = measured["oom"].outcome
    assert (outcome.status, outcome.origin) == (Status.OOM, "worker"), outcome
    assert outcome.message.startswith("rank ")


def test_a_killed_rank_ends_the_run_at_once_and_is_named(measured):
    record = measured["killed"]
    assert record.outcome.status is Status.KILLED
    assert record.outcome.message.startswith("rank 1 of 2: ")
    assert "SIGKILL" in record.outcome.message
    assert record.outcome.facts["rank"] == 1
    assert [rank.outcome.facts.get("ended_with") for rank in record.ranks] == [[1], None]
    assert record.measured, "windows measured before are stored"
    assert measured["left"] == []
