"""Does training on several devices compute what one device computes?

Document 004 section 5.1 trains on a DGX-1, on a KNL and sequentially, and finds the same error
rates after the same iterations. Here the first steps are looked into as well: `equivalence.py`
follows a training from its weights to its error rate and says where it parts from the one on one
device. The global minibatch is the same on any number of devices, and steps are deterministic:
dropout is drawn for the global minibatch, batch normalisation goes over all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale, import_records
from cubemesh.experiments.sequential_equivalence import report as shown
from cubemesh.experiments.sequential_equivalence.compare import (
    EquivalenceCheck,
    comparable,
    compare,
    is_finer,
)
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.schema import Answer, FirstSteps, Placement, ProgramSettings, RunRecord, RunSpec
from cubemesh.schema.spec import BatchNormOver, Precision
from cubemesh.store import Store
from cubemesh.units import format_list

ITERATIONS = {Scale.QUICK: 10, Scale.DEFAULT: 30, Scale.FULL: 300}
NETWORKS = {Scale.QUICK: ("little-cnn",)}
RANKS = {Scale.QUICK: (1, 2)}
PRECISIONS: dict[Scale, tuple[Precision, ...]] = {Scale.QUICK: ("fp64",)}

SAME_STEPS = tuple(name for name, s in STRATEGIES.items() if s.sequential_step)
"""Exchanges after whose first step there is a gradient to hold against one device's."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `sequential-equivalence` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to train; none given is little-cnn and resnet-18, with --quick the first alone."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; none given is 1, 2 and 4, with --quick 1 and 2."""
    strategies: tuple[str, ...] = ("all-reduce", "parameter-server")
    """Exchanges to hold against one device."""
    precisions: tuple[Precision, ...] = ()
    """Precisions to compute in; none given is fp64 and fp32, with --quick fp64."""
    global_batch: int = 16
    """Samples all devices together take in a step; every number of devices must divide it."""
    image_size: int = 32
    """Side of the images in pixels; a network that needs more takes its smallest."""
    data: str = "digits"
    """What is learned."""
    batch_norm: BatchNormOver = "global"
    """`device` leaves each device's batch normalisation its own statistics, as training usually
    does, to see what comes of it."""
    deterministic: bool = True
    """`false` lets every device draw its own dropout, as training usually does."""
    stores: tuple[str, ...] = ()
    """Stores of other machines (paths or addresses), whose error rates are held against these."""

    def __post_init__(self) -> None:
        for sync in self.strategies:
            if sync not in SAME_STEPS:
                raise UsageError(
                    f"strategies={sync} makes no step that one device makes too. Name some of "
                    f"{format_list(SAME_STEPS)}."
                )
        for devices in self.devices:
            if devices < 1 or self.global_batch % devices:
                raise UsageError(
                    f"devices={devices} does not divide global_batch={self.global_batch}. Set "
                    f"global_batch to a multiple of {max(devices, 1)}."
                )


def plan(settings: Settings, context: Context) -> Plan:
    """One device without an exchange, then every number of devices with every exchange, each once:
    where a spec comes again, another store's records begin."""
    scale = context.scale
    yield [
        spec
        for network in settings.networks or NETWORKS.get(scale, ("little-cnn", "resnet-18"))
        for precision in settings.precisions or PRECISIONS.get(scale, ("fp64", "fp32"))
        for spec in _specs(
            settings, context, network, precision, settings.devices or RANKS.get(scale, (1, 2, 4))
        )
    ]


def _specs(
    settings: Settings,
    context: Context,
    network: str,
    precision: Precision,
    ranks: Sequence[int],
) -> Iterator[RunSpec]:
    size = max(settings.image_size, networks.entry(network).smallest_image_size)
    pairs = ((devices, sync) for sync in settings.strategies for devices in ranks)
    for devices, sync in dict.fromkeys([(1, "none"), *pairs]):
        yield RunSpec(
            work=FirstSteps(
                network=network,
                batch_per_device=settings.global_batch // devices,
                image_size=size,
                classes=10,
                data=settings.data,
                iterations=ITERATIONS[context.scale],
            ),
            placement=Placement(devices=devices, oversubscribe=devices > 1),
            program=ProgramSettings(
                precision=precision,
                sync=sync,
                batch_norm=settings.batch_norm,
                deterministic=settings.deterministic,
            ),
            budget=context.budget,
        )


def gather(settings: Settings, store: Store) -> list[RunRecord]:
    """The records of first steps that the stores which are named hold."""
    return [
        r for r in import_records(store, settings.stores) if isinstance(r.spec.work, FirstSteps)
    ]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the records of one `sequential-equivalence`."""
    own, others = _own_and_others(records)
    compared = list(comparisons(own))
    failed = [r for r in own if r not in comparable(own)]
    machines = shown.across_machines(comparable(own), comparable(others))
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=f"Several devices against one at a global minibatch of {settings.global_batch}",
        findings=(
            *shown.findings(compared),
            *shown.failures(failed),
            *shown.machine_findings(machines),
        ),
        tables=shown.tables(compared, machines),
        charts=shown.charts(compared),
        warnings=tuple(w for r in own for w in r.warnings),
        run_ids=tuple(r.run_id for r in (*own, *(m.other for m in machines))),
        notes=shown.NOTES,
    )


def _own_and_others(
    records: Sequence[RunRecord],
) -> tuple[list[RunRecord], list[RunRecord]]:
    """What was measured for the question, and what other stores hold of the same: the records of
    the question come first, each spec and repeat once, all on one machine."""
    own: dict[tuple[str, int], RunRecord] = {}
    for record in records:
        key = (record.key.spec_id, record.key.repeat)
        if key in own or record.key.machine_id != records[0].key.machine_id:
            break
        own[key] = record
    asked = {task(r) for r in own.values()}
    others = [r for r in records[len(own) :] if task(r) in asked]
    return list(own.values()), others


def task(record: RunRecord) -> tuple[FirstSteps, ProgramSettings]:
    """What two records must share to be held against one another: everything but how many devices
    did it, and how they exchanged."""
    work, program = record.spec.work, record.spec.program
    assert isinstance(work, FirstSteps)
    whole = replace(work, batch_per_device=record.spec.global_batch or 1)
    return whole, replace(program, sync="none")


def comparisons(records: Sequence[RunRecord]) -> Iterator[EquivalenceCheck]:
    """Every training against that of the same task on one device without an exchange."""
    good = comparable(records)
    alone = {
        task(r): r for r in good if r.spec.placement.devices == 1 and r.spec.program.sync == "none"
    }
    for record in good:
        reference = alone.get(task(record))
        if reference is not None and reference is not record:
            finer = [
                r
                for r in alone.values()
                if is_finer(r, record) and _differs_by_precision(r, record)
            ]
            yield compare(record, reference, finer)


def _differs_by_precision(one: RunRecord, record: RunRecord) -> bool:
    """Whether two tasks differ by their precision alone."""
    (work, program), (own_work, own_program) = task(one), task(record)
    return work == own_work and replace(program, precision=own_program.precision) == own_program


EXPERIMENT = Experiment(
    name="sequential-equivalence",
    question="Does training on several devices compute what one device computes?",
    settings=Settings,
    works=(FirstSteps,),
    varies={
        "network": "networks",
        "sync": "strategies",
        "precision": "precisions",
        "batch_per_device": "global_batch",
        "classes": "networks",
    },
    plan=plan,
    answer=answer,
    gather=gather,
    documents="004 section 5.1",
)
