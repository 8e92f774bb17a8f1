"""A slow rank of a measurement and of a training is named, on simulated clocks: each rank is the
null framework's program of a script, and waits in its collectives for the slowest."""

import itertools
import os
import statistics
from dataclasses import replace

import numpy as np
import pytest

from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.data.feed import Feed
from cubemesh.data.images.arrays import FloatImages
from cubemesh.frameworks.contract.gradient_sync import Bucket
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.null.program import NullProgram, ScriptedClock
from cubemesh.frameworks.null.script import read_script
from cubemesh.measure.timing.timer import Lockstep, measure
from cubemesh.parallel import strategies
from cubemesh.parallel.waits import WaitingGroup, Waits
from cubemesh.runs.assemble import assemble
from cubemesh.runs.exit_status import WorkerExit
from cubemesh.schema import Budget, Outcome, Placement, ProgramSettings, RunKey, RunSpec, Status
from cubemesh.schema.serialization import to_plain
from cubemesh.schema.work import Collective, Forward, Train, TrainSteps
from cubemesh.training.loop import Training
from cubemesh.worker.report.events import events_path, read_events
from cubemesh.worker.run.job_file import Job
from cubemesh.worker.run.task import waiting_group
from in_memory_log import InMemoryLog
from script_server import run_code

KEY = RunKey(spec_id="s", machine_id="m", software_id="w", code_version="1")
BATCH = 4
EXCHANGE_S = 0.0005
STEPS = TrainSteps(network="little-cnn", batch_per_device=BATCH)
TRAIN = Train(network="little-cnn", batch_per_device=BATCH, epochs=3)


class Together:
    """The steps of all ranks: when the slowest of them ends each."""

    def __init__(self, scripts):
        self.clocks = [ScriptedClock(read_script(s), seed) for seed, s in enumerate(scripts)]
        self.slowest = []

    def slowest_s(self, step):
        while len(self.slowest) < step:
            number = len(self.slowest) + 1
            before = [clock.spend(number, BATCH) for clock in self.clocks]
            after = [clock.read() for clock in self.clocks]
            self.slowest.append(max(b - a for a, b in zip(before, after, strict=True)))
        return self.slowest[step - 1]


class Simulated(SingleProcessGroup):
    """The group of one rank, whose transfers end when the slowest rank has begun them."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.left_s = 0.0
        """Time until this step's gradients are exchanged."""
        self.clock = None

    def all_reduce_mean(self, array, low_precision=False):
        return self

    def reduce_mean(self, array, root):
        return self

    def broadcast(self, arrays, root):
        return self

    def wait(self):
        self.clock._now += self.left_s
        self.left_s = 0.0


class Synchronized(NullProgram):
    """A scripted program that synchronizes its gradients, in two buckets."""

    def __init__(self, request, world, group):
        super().__init__(request)
        # Each rank has its own jitter: that of its clock in the world.
        self._clock = ScriptedClock(self._script, group.rank)
        self.world, self.simulated, self.sync = world, group, request.sync
        group.clock = self._clock

    def train_step(self, placed):
        before = self.clock()
        super().train_step(placed)
        slowest_s = self.world.slowest_s(self._steps)
        self.simulated.left_s = slowest_s - (self.clock() - before) + EXCHANGE_S
        for number in range(2):
            bucket = Bucket(index=number, parameters=("a",), size_bytes=4, gradients=np.zeros(1))
            self.sync.ready(bucket)
        self.sync.finish()
        self.sync.update(lambda: None, [np.zeros(1)])


def source(samples):
    labels = np.arange(samples) % 10
    return FloatImages("numbers", np.zeros((samples, 1, 28, 28), np.float32), labels, 10)


SLEEPER = """
import os, sys, time
from pathlib import Path
from cubemesh.frameworks.pytorch.program import PyTorchProgram
from cubemesh.worker.forkserver import work
step = PyTorchProgram.train_step
def slow_step(program, placed):
    time.sleep(0.5 if os.environ["RANK"] == "1" else 0)
    step(program, placed)
PyTorchProgram.train_step = slow_step
sys.exit(work(Path(sys.argv[1])))
"""


def measured(program, rank, decisions, waited, work, budget):
    """What a worker does in `minibatch` and in the scaling experiments."""
    placed = program.place(Batch(np.zeros((BATCH, 1, 28, 28), np.float32), labels=np.arange(BATCH)))
    log, follow = InMemoryLog(), iter(decisions if rank else ())

    def agree(value):
        if rank == 0:
            decisions.append(value)
        return value if rank == 0 else next(follow)

    measure(
        lambda: program.train_step(placed),
        program.synchronize,
        program.clock,
        samples_per_step=BATCH,
        budget=budget,
        log=log,
        pace=Lockstep(agree),
        waited=waited,
    )
    return log


def trained(program, rank, decisions, waited, work, budget):
    """What it does in `train`."""
    log = InMemoryLog()
    Training(
        program=program,
        feed=Feed(source(160), BATCH, work.seed, epochs=work.epochs),
        validation=source(8),
        work=work,
        log=log,
        waited=waited,
    ).run()
    return log


BUDGET = Budget(steps=120, seconds=0.0, windows=12, warmup_seconds=0.0)


def record_of(scripts, work=STEPS, sync="all-reduce", budget=BUDGET):
    """The record of a run of one rank for each script."""
    ranks = len(scripts)
    spec = RunSpec(
        work=work,
        placement=Placement(device="cpu", devices=ranks),
        program=ProgramSettings(framework="null", sync=sync),
        budget=budget,
    )
    run = trained if isinstance(work, Train) else measured
    world, decisions, events = Together(scripts), [], []
    for rank, script in enumerate(scripts):
        own = Simulated(rank, ranks)
        waits = Waits(
            blocking=strategies.strategy(sync).blocking, clock=lambda g=own: g.clock.read()
        )
        request = BuildRequest(
            network=networks.build_for(work),
            work=work,
            placement=spec.placement,
            program=replace(spec.program, script=script),
            sync=strategies.make(sync, WaitingGroup(own, waits)),
            device="cpu",
            threads=1,
        )
        log = run(Synchronized(request, world, own), rank, decisions, waits.take, work, budget)
        events += [event(rank, "window", replace(window, rank=rank)) for window in log.windows]
        events.append(event(rank, "outcome", Outcome(status=Status.OK)))
    ending = WorkerExit(exit_code=0, elapsed_s=9.0)
    return assemble(spec, KEY, events, ending, started_utc="2026-01-01T00:00:00Z", attempt=1)[0]


def event(rank, name, value):
    return {"event": name, "t": 1.0, "of_rank": rank, name: to_plain(value)}


def slow(record):
    return [w.cause for w in record.warnings if w.code == "slow-rank"]


CLEAN = "step=0.01,jitter=0.02"


@pytest.mark.parametrize("work", [STEPS, TRAIN], ids=lambda work: work.kind)
@pytest.mark.parametrize("percent", [10, 30])
@pytest.mark.parametrize("at", [0, 1])
def test_a_planted_slow_rank_is_named(work, percent, at):
    scripts = [CLEAN] * 3
    scripts[at] = f"step={0.01 * (1 + percent / 100)},jitter=0.02"
    (cause,) = slow(record_of(scripts, work))
    assert cause.startswith(f"Rank {at} took ")
    (by,) = (float(word) for word, unit in pairs(cause) if unit == "%" and "slower" in cause)
    assert by == pytest.approx(percent, abs=2)


def pairs(cause):
    """Words before `%` in the sentence that says by how much it is slower."""
    sentence = cause.split("It is ")[1].split(" slower")[0].split()
    return itertools.pairwise(sentence)


@pytest.mark.parametrize("work", [STEPS, TRAIN], ids=lambda work: work.kind)
@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_alike_are_not_named(work, jitter, ranks):
    assert slow(record_of([f"step=0.01,jitter={jitter}"] * ranks, work)) == []


@pytest.mark.parametrize("sync", ["all-reduce", "all-reduce-16", "parameter-server", "local-sgd"])
def test_every_strategy_that_waits_in_collectives_names_it(sync):
    (cause,) = slow(record_of([CLEAN, "step=0.013,jitter=0.02"], sync=sync))
    assert cause.startswith("Rank 1 took ")


def test_local_sgd_names_it_where_windows_are_shorter_than_its_interval():
    budget = Budget(steps=48, seconds=0.0, windows=12, warmup_seconds=0.0)
    (cause,) = slow(record_of([CLEAN, "step=0.013,jitter=0.02"], sync="local-sgd", budget=budget))
    assert cause.startswith("Rank 1 took ")


def test_windows_have_the_waits_of_their_own_steps():
    record = record_of(["step=0.01", "step=0.013"])
    for window in record.windows:
        waits_s = EXCHANGE_S + (0.003 if window.rank == 0 else 0.0)
        assert window.step_s == pytest.approx(0.0135)
        assert window.waited_s == pytest.approx(window.steps * waits_s)


def test_waits_are_measured_where_the_host_waits_in_collectives_alone():
    def group(work=STEPS, sync="all-reduce", ranks=2, device="cpu"):
        spec = RunSpec(
            work=work,
            placement=Placement(devices=ranks),
            program=ProgramSettings(framework="pytorch", sync=sync),
        )
        own = Simulated(0, ranks)
        found, waited = waiting_group(spec, own, device)
        assert (found is own) == (waited is None)
        return waited is not None

    assert group()
    assert group(TRAIN)
    assert group(Forward(network="little-cnn", batch_per_device=BATCH))
    assert group(sync="none", device="cuda:0"), "no rank waits for another"
    assert not group(ranks=1)
    assert not group(device="cuda:0"), "the device waits, not the host"
    assert not group(sync="asynchronous")
    assert not group(Collective(collective="all_reduce"))


def test_no_wait_where_one_was_expected_is_unknown():
    assert Waits().take() is None
    assert Waits(blocking=False).take() == 0.0
    waits = Waits()
    waits.add(0.5)
    waits.add(0.25)
    assert waits.take() == 0.75
    assert waits.take() == 0.0, "not every window has an exchange: local-sgd"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores")
def test_a_rank_that_sleeps_in_each_step_has_longer_steps_of_its_own(tmp_path):
    pytest.importorskip("torch")
    spec = RunSpec(
        work=STEPS,
        placement=Placement(device="cpu", devices=2, threads=1),
        program=ProgramSettings(framework="pytorch", sync="all-reduce"),
        budget=Budget(steps=8, seconds=0.0, windows=8, warmup_seconds=0.0),
    )
    job = Job(spec=spec, folder=str(tmp_path), usable_cores=2)
    run_code(SLEEPER, job.write())
    events = [
        {**event, "of_rank": rank}
        for rank in range(2)
        for event in read_events(events_path(tmp_path, rank))
    ]
    ending = WorkerExit(exit_code=0, elapsed_s=9.0)
    record, _ = assemble(spec, KEY, events, ending, started_utc="2026-01-01T00:00:00Z", attempt=1)
    assert record.ok, record.outcome
    own_s = [
        statistics.median(w.elapsed_s - w.waited_s for w in record.windows if w.rank == rank)
        for rank in range(2)
    ]
    assert own_s[1] > own_s[0]
