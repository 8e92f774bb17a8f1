"""Equivalence of training on several devices with training on one.

The paper 004 (section 5.1) trains on a DGX-1, on a KNL and sequentially, and finds the same error
rates after the same iterations. Here the first steps are compared too: compare.py follows a
training from its weights to its error rate and finds where it diverges from one device. The global
batch size is the same on any number of devices, and steps are deterministic: dropout masks are
drawn for the global batch, batch normalization uses its statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cubemesh import data as data_sources
from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale, import_records
from cubemesh.experiments.sequential_equivalence import report
from cubemesh.experiments.sequential_equivalence.compare import (
    EquivalenceCheck,
    comparable,
    compare,
    is_finer,
)
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.schema import Answer, FirstSteps, Placement, ProgramSettings, RunRecord, RunSpec
from cubemesh.schema.spec import BatchNormOver, Precision
from cubemesh.units import format_list

if TYPE_CHECKING:
    from cubemesh.store import Store

ITERATIONS = {Scale.QUICK: 10, Scale.DEFAULT: 30, Scale.FULL: 300}
PAPER_ITERATIONS = {"cifarnet": 60_000, "alexnet": 2_000, "googlenet": 1_600, "resnet-50": 2_000}
"""Of the paper 004, section 5.1; with --full on a GPU."""
NETWORKS = {Scale.QUICK: ("little-cnn",)}
MOST_ITERATIONS = 10_000_000
_MOST_DIGITS = 20
DEVICES = {Scale.QUICK: (1, 2)}
PRECISIONS: dict[Scale, tuple[Precision, ...]] = {Scale.QUICK: ("fp64",)}

SAME_STEPS = tuple(name for name, s in STRATEGIES.items() if s.sequential_step)
"""Strategies whose first step has a gradient that one device has too."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `sequential-equivalence` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to train. Default: little-cnn and resnet-18; with --quick little-cnn; with --full on
    a GPU the paper's: cifarnet, alexnet, googlenet and resnet-50."""
    devices: tuple[int, ...] = ()
    """Numbers of devices. Default: 1, 2 and 4; with --quick 1 and 2."""
    strategies: tuple[str, ...] = ("all-reduce", "parameter-server")
    """Gradient synchronization strategies to compare with one device."""
    precisions: tuple[Precision, ...] = ()
    """Precisions. Default: fp64 and fp32; with --quick fp64."""
    global_batch_sizes: tuple[int, ...] = (16,)
    """Global batch sizes; every number of devices must divide them."""
    iterations: tuple[str, ...] = ()
    """Steps of each training, one number or NETWORK=N for each: 500 or cifarnet=60000,alexnet=2000.
    Default: 30; with --quick 10; with --full the paper's of its networks on a GPU, else 300."""
    image_size: int = 32
    """Height and width of the images in pixels; at least the network's smallest."""
    data: str = "digits"
    """Training data; `synthetic` where a network of sequences does not take them."""
    batch_norm: BatchNormOver = "global"
    """Statistics of batch normalization: `global` for equivalence, `device` as in usual
    training."""
    deterministic: bool = True
    """`false` draws dropout masks on each device, as in usual training."""
    stores: tuple[str, ...] = ()
    """Stores of other machines (paths or URLs) to compare error rates with."""

    def __post_init__(self) -> None:
        iterations_by_network(self.iterations)
        for sync in self.strategies:
            if sync not in SAME_STEPS:
                raise UsageError(
                    f"strategies={sync} has no equivalent step on one device. Choose from "
                    f"{format_list(SAME_STEPS)}."
                )
        for batch in self.global_batch_sizes:
            for devices in self.devices:
                if devices < 1 or batch % devices:
                    raise UsageError(
                        f"devices={devices} does not divide global_batch_sizes={batch}. Set a "
                        f"multiple of {max(devices, 1)}."
                    )


def iterations_by_network(given: Sequence[str]) -> dict[str, int]:
    """`["500"]` or `["cifarnet=60000"]` by network, `""` being all others; UsageError for another
    form, an unknown network or a number given twice."""
    found: dict[str, int] = {}
    for text in given:
        name, _, number = text.strip().rpartition("=")
        network = networks.canonical_name(name.strip()) if name.strip() else ""
        valid = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
        valid = valid and 1 <= int(number) <= MOST_ITERATIONS
        if not valid or (not network and "=" in text):
            raise UsageError(
                f"iterations={text} is not a number of steps: write one number, or NETWORK=N for "
                f"each network, as in cifarnet=60000,alexnet=2000; N is 1 to {MOST_ITERATIONS:,}."
            )
        if network in found:
            raise UsageError(f"iterations has two numbers for {network or 'all networks'}.")
        found[network] = int(number)
    return found


def iterations_of(network: str, settings: Settings, context: Context) -> int:
    """The steps of a network's training: those that were set, else the default of the scale."""
    given = iterations_by_network(settings.iterations)
    usual = ITERATIONS[context.scale]
    if context.scale is Scale.FULL and context.has_gpu:
        usual = PAPER_ITERATIONS.get(networks.canonical_name(network), usual)
    return given.get(networks.canonical_name(network), given.get("", usual))


def default_networks(context: Context) -> tuple[str, ...]:
    """The networks where none is set: with --full on a GPU those of the paper."""
    if context.scale is Scale.FULL and context.has_gpu:
        return tuple(PAPER_ITERATIONS)
    return NETWORKS.get(context.scale, ("little-cnn", "resnet-18"))


def plan(settings: Settings, context: Context) -> Plan:
    """One device, then every number of devices with every strategy, each spec once: a repeated one
    would begin the records of another store."""
    scale = context.scale
    yield [
        spec
        for network in settings.networks or default_networks(context)
        for batch in dict.fromkeys(settings.global_batch_sizes)
        for precision in settings.precisions or PRECISIONS.get(scale, ("fp64", "fp32"))
        for spec in _specs(settings, context, network, batch, precision)
    ]


def _specs(
    settings: Settings, context: Context, network: str, batch: int, precision: Precision
) -> Iterator[RunSpec]:
    entry = networks.entry(network)
    images = entry.samples == "images"
    data = settings.data
    if not images and data_sources.entry(data).open_sequences is None:
        data = "synthetic"
    counts = settings.devices or DEVICES.get(context.scale, (1, 2, 4))
    pairs = (
        (devices, sync) for sync in settings.strategies for devices in counts if not batch % devices
    )
    for devices, sync in dict.fromkeys([(1, "none"), *pairs]):
        yield RunSpec(
            work=FirstSteps(
                network=network,
                batch_per_device=batch // devices,
                image_size=max(settings.image_size, entry.smallest_image_size) if images else None,
                classes=10 if images else None,
                data=data,
                iterations=iterations_of(network, settings, context),
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


def gather(settings: Settings, store: Store, records: Sequence[RunRecord] = ()) -> list[RunRecord]:
    """The records of first steps in the given stores."""
    return [
        r for r in import_records(store, settings.stores) if isinstance(r.spec.work, FirstSteps)
    ]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the records of one `sequential-equivalence`."""
    own, others = _own_and_others(records)
    compared = list(comparisons(own))
    failed = [r for r in own if r not in comparable(own)]
    machines = report.across_machines(comparable(own), comparable(others))
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title="Several devices compared with one, global batch size "
        + format_list(map(str, settings.global_batch_sizes)),
        findings=(
            *report.findings(compared),
            *report.failures(failed),
            *report.machine_findings(machines),
        ),
        tables=report.tables(compared, machines),
        charts=report.charts(compared),
        warnings=tuple(w for r in own for w in r.warnings),
        run_ids=tuple(r.run_id for r in (*own, *(m.other for m in machines))),
        notes=report.NOTES,
    )


def _own_and_others(
    records: Sequence[RunRecord],
) -> tuple[list[RunRecord], list[RunRecord]]:
    """The records of this run, and those of other stores for the same tasks. The former come
    first, each spec and repeat once, all of one machine."""
    own: dict[tuple[str, int], RunRecord] = {}
    for record in records:
        key = (record.key.spec_id, record.key.repeat)
        if key in own or record.key.machine_id != records[0].key.machine_id:
            break
        own[key] = record
    tasks = {task(r) for r in own.values()}
    others = [r for r in records[len(own) :] if task(r) in tasks]
    return list(own.values()), others


def task(record: RunRecord) -> tuple[FirstSteps, ProgramSettings]:
    """What two comparable records share: all but the number of devices and the strategy."""
    work, program = record.spec.work, record.spec.program
    assert isinstance(work, FirstSteps)
    whole = replace(work, batch_per_device=record.spec.global_batch or 1)
    return whole, replace(program, sync="none")


def comparisons(records: Sequence[RunRecord]) -> Iterator[EquivalenceCheck]:
    """Every training compared with the same task on one device."""
    good = comparable(records)
    single = {
        task(r): r for r in good if r.spec.placement.devices == 1 and r.spec.program.sync == "none"
    }
    for record in good:
        reference = single.get(task(record))
        if reference is not None and reference is not record:
            finer = [
                r
                for r in single.values()
                if is_finer(r, record) and _differs_by_precision(r, record)
            ]
            yield compare(record, reference, finer)


def _differs_by_precision(one: RunRecord, record: RunRecord) -> bool:
    """Whether two tasks differ only in their precision."""
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
        "batch_per_device": "global_batch_sizes",
        "classes": "networks",
    },
    plan=plan,
    answer=answer,
    gather=gather,
    papers="[004], section 5.1",
)
