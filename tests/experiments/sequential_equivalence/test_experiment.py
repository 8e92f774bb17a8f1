"""Real ranks, connected by gloo, with and without injected faults, compared with one process.

The ranks run this file as a script. Faults are injected into the running code of a rank: a
strategy that sums, a feed that skips a batch, another seed; the comparison does not know them.
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from answers import codes, finding, in_order

pytest.importorskip("torch")

from cubemesh.data.feed import Feed
from cubemesh.experiments.registry import Context, Scale
from cubemesh.experiments.sequential_equivalence.compare import TOLERANCES, compare
from cubemesh.experiments.sequential_equivalence.experiment import (
    EXPERIMENT,
    Settings,
    _own_and_others,
)
from cubemesh.frameworks import pytorch
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.measure.telemetry.gpu_processes import GpuProcessWatch
from cubemesh.networks.graph import Network
from cubemesh.papers.claims import check_records
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.claims.several_devices import same_error_rates
from cubemesh.papers.published import claims
from cubemesh.parallel import strategies
from cubemesh.runs.assemble import assemble
from cubemesh.runs.exit_status import WorkerExit
from cubemesh.schema import (
    ClaimState,
    FirstSteps,
    Outcome,
    Placement,
    ProgramSettings,
    RunKey,
    RunSpec,
    Status,
)
from cubemesh.worker.report.events import EventLog, events_path, read_events
from cubemesh.worker.run.task import Task
from cubemesh.worker.run.work_kinds import TASKS

GLOBAL_BATCH = 16
ITERATIONS = {"little-cnn": 4, "resnet-18": 1}


def spec_of(network, ranks=1, sync="none", precision="fp64", **program):
    return RunSpec(
        work=FirstSteps(
            network=network,
            batch_per_device=GLOBAL_BATCH // ranks,
            image_size=8,
            classes=10,
            data="digits",
            iterations=ITERATIONS[network],
        ),
        placement=Placement(devices=ranks),
        program=ProgramSettings(
            sync=sync,
            precision=precision,
            **{"batch_norm": "global", "deterministic": True, **program},
        ),
    )


class Summed:
    """Multiplies the mean of a strategy by the number of ranks: a missing division."""

    def ready(self, bucket):
        super().ready(bucket)
        self._buckets = [*getattr(self, "_buckets", []), bucket]

    def finish(self):
        super().finish()
        for bucket in self._buckets:
            bucket.gradients.mul_(self._group.size)
        self._buckets = []


def inject_sum(spec, rank, patch):
    for name in ("all-reduce", "parameter-server"):
        summed = type("Summed", (Summed, strategies.STRATEGIES[name]), {})
        patch.setitem(strategies.STRATEGIES, name, summed)


def inject_skipped_batch(spec, rank, patch):
    fetch = Feed.__next__
    fetched = []

    def skipping(feed):
        fetched.append(1)
        if rank == 1 and len(fetched) == 2:
            fetch(feed)
        return fetch(feed)

    patch.setattr(Feed, "__next__", skipping)


def inject_other_seeds(spec, rank, patch):
    return dataclasses.replace(spec, work=dataclasses.replace(spec.work, seed=rank))


def inject_other_order(spec, rank, patch):
    plan = Feed.plan
    patch.setattr(Feed, "plan", lambda feed, number: plan(feed, number + rank))


def inject_other_weights(spec, rank, patch):
    draw = Network.draw
    patch.setattr(Network, "draw", lambda network, seed: draw(network, seed + rank))


LITTLE, RESNET = "little-cnn", "resnet-18"
PASSING = {
    f"{network} {precision} {ranks} {sync}": spec_of(network, ranks, sync, precision)
    for network in (LITTLE, RESNET)
    for precision in ("fp64", "fp32")
    for ranks in (1, 2, 4)
    for sync in ("all-reduce", "parameter-server")
}
QUICK = {
    *("little-cnn fp64 2 all-reduce", "little-cnn fp32 4 parameter-server"),
    *("sum, not mean", "a skipped batch", "different seeds"),
    *("per-device batch normalization", "dropout"),
}
"""Cases that always run; the others are marked `sweep`."""
SUM = spec_of(LITTLE, 2, "all-reduce")
SERVED = spec_of(LITTLE, 4, "parameter-server")
BY_SERVER = {
    "sum, not mean": (SERVED, inject_sum),
    "a skipped batch": (SERVED, inject_skipped_batch),
    "different seeds": (SERVED, inject_other_seeds),
    "per-device batch normalization": (
        spec_of(RESNET, 4, "parameter-server", batch_norm="device"),
        None,
    ),
}
FAULTS = {
    "sum, not mean": (SUM, inject_sum),
    "a skipped batch": (SUM, inject_skipped_batch),
    "different seeds": (SUM, inject_other_seeds),
    "data order": (SUM, inject_other_order),
    "different initial weights": (SUM, inject_other_weights),
    "per-device batch normalization": (spec_of(RESNET, 2, "all-reduce", batch_norm="device"), None),
    "dropout": (spec_of(LITTLE, 2, "all-reduce", deterministic=False), None),
    "a missing rank": (spec_of(LITTLE, 2, "none"), None),
    "rounding": (spec_of(LITTLE, 2, "all-reduce-16", precision="fp32"), None),
    **{f"{name}; four ranks by a server": case for name, case in BY_SERVER.items()},
}
CASES = {name: (spec, None) for name, spec in PASSING.items()} | FAULTS
GOOD, BAD = "little-cnn fp64 2 all-reduce", "per-device batch normalization"


def chosen(names):
    return [pytest.param(n, marks=() if n in QUICK else pytest.mark.sweep) for n in names]


def one_batch(source, size):
    """The first held-out samples only, which is enough here."""
    yield source.batch(np.arange(size))


def run_rank(folder, spec, group, inject=None):
    """What the worker does for one rank, with its events in `folder`."""
    folder.mkdir(exist_ok=True)
    log = EventLog(events_path(folder, group.rank), group.rank, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cubemesh.training.first_steps.in_order", one_batch)
        if inject is not None:
            spec = inject(spec, group.rank, patch) or spec
        log.started(host="here", device="cpu", threads=1)
        TASKS["first_steps"](
            Task(
                spec=spec,
                framework=pytorch,
                device="cpu",
                threads=1,
                usable_cores=1,
                gpu_processes=GpuProcessWatch(None),
                log=log,
                group=group,
            )
        )
    log.outcome(Outcome(status=Status.OK))
    log.close()


def rank(job):
    """Each process: the cases for its number of ranks, of those the job names."""
    folder, *names = job.split("\n")
    group = pytorch.join("cpu", 300.0)
    for name in names:
        spec, inject = CASES[name]
        if spec.placement.devices == group.size:
            run_rank(Path(folder, name), spec, group, inject)
    group.close()


def record(folder, spec):
    events = [
        {**event, "of_rank": n}
        for n in range(spec.placement.devices)
        for event in read_events(events_path(folder, n))
    ]
    key = RunKey(spec_id=spec.spec_id, machine_id="m", software_id="s", code_version="c")
    ending = WorkerExit(exit_code=0, elapsed_s=1.0)
    return assemble(spec, key, events, ending, started_utc="2026-01-01", attempt=1)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    """Where the cases that the chosen tests need have run."""
    folder = tmp_path_factory.mktemp("ranks")
    asked = [i.callspec.params.get("name") for i in request.session.items if hasattr(i, "callspec")]
    names = [name for name in CASES if name in {*asked, GOOD, BAD}]
    sizes = {str(CASES[name][0].placement.devices) for name in names} - {"1"}
    command = [sys.executable, __file__, "\n".join([str(folder), *names]), *sizes]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, env=environment)
    for name in names:
        spec, inject = CASES[name]
        if spec.placement.devices == 1:
            run_rank(folder / name, spec, SingleProcessGroup(), inject)
    return folder


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """(the spec of several devices) → the record of one device with the same global batch size."""
    folder, made = tmp_path_factory.mktemp("one_device"), {}

    def reference(spec):
        program = spec.program
        one = spec_of(
            spec.work.network,
            precision=program.precision,
            batch_norm=program.batch_norm,
            deterministic=program.deterministic,
        )
        if one.spec_id not in made:
            run_rank(folder / one.spec_id, one, SingleProcessGroup())
            made[one.spec_id] = record(folder / one.spec_id, one)
        return made[one.spec_id]

    return reference


@pytest.mark.parametrize("name", chosen(PASSING))
def test_several_ranks_compute_the_same_as_one(folder, one_device, name, record_property):
    spec, _ = CASES[name]
    run = record(folder / name, spec)
    comparison = compare(run, one_device(spec))
    for step in comparison.chain:
        record_property(step.name, f"{step.distance:.2g}")
    assert comparison.passes, (comparison.cause, comparison.chain)
    gradient = next(x for x in comparison.chain if x.name == "synchronized gradient")
    assert gradient.distance <= TOLERANCES[spec.program.precision]
    if spec.placement.devices > 1:  # ranks sum in another order, so it is never the very same
        assert gradient.distance > 0


@pytest.mark.parametrize("name", chosen(FAULTS))
def test_an_injected_fault_is_named_as_the_cause(folder, one_device, name, record_property):
    spec, _ = CASES[name]
    comparison = compare(record(folder / name, spec), one_device(spec))
    record_property("cause", f"{comparison.cause}")
    assert not comparison.passes
    assert comparison.cause.name == name.partition(";")[0], comparison
    assert comparison.cause.remedy


def test_the_answer_has_the_passes_and_the_causes_of_divergence(folder, one_device):
    records = [
        one_device(CASES[GOOD][0]),
        record(folder / GOOD, CASES[GOOD][0]),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    assert codes(answer) == ["trainings-passed"]
    assert answer.findings[0].value == 1
    records = [one_device(CASES[BAD][0]), record(folder / BAD, CASES[BAD][0])]
    answer = EXPERIMENT.answer(Settings(), records)
    text = finding(answer, "divergence").text
    assert "resnet-18, 16, fp64, 2 devices, all-reduce" in text
    assert in_order(text, "batch normalization", "bn1")
    assert "8 samples" in text


def right(record, share, precision=None):
    """The same with another accuracy; and precision."""
    figure = record.figures["accuracy"]
    figure = dataclasses.replace(figure, value=share, low=share - 0.03, high=share + 0.03)
    record = dataclasses.replace(record, figures={**record.figures, "accuracy": figure})
    program = dataclasses.replace(
        record.spec.program, precision=precision or record.spec.program.precision
    )
    spec = dataclasses.replace(record.spec, program=program)
    key = dataclasses.replace(record.key, spec_id=spec.spec_id)
    return dataclasses.replace(record, spec=spec, key=key, run_id=f"{spec.spec_id}-{share}")


@pytest.mark.parametrize(
    ("several", "passes"), [(0.10, True), (0.20, True), (0.30, True), (0.40, False), (0.02, False)]
)
def test_an_error_rate_may_be_anywhere_within_the_effect_of_rounding(
    folder, one_device, several, passes
):
    one, many = one_device(CASES[GOOD][0]), record(folder / GOOD, CASES[GOOD][0])
    fp32 = [right(one, 0.10, "fp32"), right(many, several, "fp32")]
    fp64 = [right(one, 0.30), right(many, 0.30)]
    answer = EXPERIMENT.answer(Settings(), [*fp64, *fp32])
    assert finding(answer, "trainings-passed").value == 1 + passes
    assert ("divergence" in codes(answer)) is not passes
    assert ("rounding-dominates" in codes(answer)) is (several in (0.2, 0.3))


def test_no_coarser_precision_excuses_an_error_rate(folder, one_device):
    one, many = one_device(CASES[GOOD][0]), record(folder / GOOD, CASES[GOOD][0])
    fp64, fp32 = [right(one, 0.10), right(many, 0.30)], [right(one, 0.30, "fp32")]
    answer = EXPERIMENT.answer(Settings(), [*fp64, *fp32])
    assert "later steps" in finding(answer, "divergence").text


def test_error_rates_of_two_machines_are_compared(folder, one_device):
    own = one_device(CASES["dropout"][0])
    key = dataclasses.replace(own.key, machine_id="other")
    ranks = (dataclasses.replace(own.ranks[0], host="there"),)
    other = dataclasses.replace(own, run_id="other", key=key, ranks=ranks)
    answer = EXPERIMENT.answer(Settings(), [own, other])
    assert finding(answer, "machines-agree").value == 1
    assert "other" in answer.run_ids
    wrong = dataclasses.replace(own.figures["accuracy"], value=0.99, low=0.98, high=1.0)
    worse = dataclasses.replace(other, figures={**own.figures, "accuracy": wrong})
    text = finding(EXPERIMENT.answer(Settings(), [own, worse]), "machines-differ").text
    assert in_order(text, "little-cnn", "16", "fp64", "1 device", "4")
    assert "cpu of there" in text


def test_the_claim_of_equal_error_rates_is_compared_with_the_runs(folder, one_device):
    claim = next(c for c in claims() if c.id == "004-14")
    records = (one_device(CASES[GOOD][0]), record(folder / GOOD, CASES[GOOD][0]))
    few = check_records(claim, Evidence(records=records))
    assert (few.state, few.code) == (ClaimState.CANNOT_BE_TESTED_HERE, "fewer-iterations")
    assert in_order(few.reason, "60,000 of cifarnet", "little-cnn after 4")
    as_many = {"little-cnn": 4}
    found = same_error_rates(claim, Evidence(records=records), as_many)
    assert found.state is ClaimState.HOLDS
    assert in_order(found.reason, "little-cnn", "4")
    wrong = dataclasses.replace(records[1].figures["accuracy"], value=0.99, low=0.98, high=1.0)
    other = dataclasses.replace(records[1], figures={"accuracy": wrong})
    worse = same_error_rates(claim, Evidence(records=(records[0], other)), as_many)
    assert worse.state is ClaimState.DOES_NOT_HOLD
    assert check_records(claim, Evidence(records=records[:1])).code == "not-measured"


def test_repeated_settings_are_run_once(machine, play, record_of):
    """A repeated spec would begin the records of another store."""
    context = Context(machine=machine, scale=Scale.QUICK)
    settings = Settings(strategies=("none", "all-reduce", "all-reduce"), devices=(1, 2, 2))
    asked, records = play(EXPERIMENT.plan(settings, context), record_of)
    assert [(s.placement.devices, s.program.sync) for s in asked] == [
        (1, "none"),
        (2, "none"),
        (1, "all-reduce"),
        (2, "all-reduce"),
    ]
    own, others = _own_and_others(records)
    assert (own, others) == (records, [])


def test_every_number_of_devices_has_the_same_global_batch_size(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.DEFAULT)
    asked, _ = play(EXPERIMENT.plan(Settings(), context), record_of)
    assert {s.global_batch for s in asked} == {16}
    assert len(asked) == 2 * 2 * (1 + 2 * 3)
    assert {s.work.network for s in asked} == {"little-cnn", "resnet-18"}
    assert all(s.program.batch_norm == "global" and s.program.deterministic for s in asked)


def test_global_batch_sizes_without_an_even_division_are_left_out(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.QUICK)
    settings = Settings(global_batch_sizes=(3, 4), strategies=("all-reduce",))
    asked, _ = play(EXPERIMENT.plan(settings, context), record_of)
    assert [(s.placement.devices, s.global_batch) for s in asked if s.program.sync != "none"] == [
        (1, 3),
        (1, 4),
        (2, 4),
    ]


@pytest.mark.parametrize("data", ["digits", "synthetic"])
def test_a_network_of_sequences_learns_sequences(data, machine, play, record_of):
    context = Context(machine=machine, scale=Scale.QUICK)
    settings = Settings(networks=("gpt2",), strategies=("tensor-parallel",), data=data)
    asked, _ = play(EXPERIMENT.plan(settings, context), record_of)
    assert {(s.work.image_size, s.work.classes, s.work.data) for s in asked} == {
        (None, None, "synthetic")
    }


if __name__ == "__main__":
    pytorch.preload()
    for ranks in sys.argv[2:]:
        failed = pytorch.launch(rank, sys.argv[1], int(ranks))
        if failed:
            sys.exit(f"ranks of {ranks} failed: {failed}")
