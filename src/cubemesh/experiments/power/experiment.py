"""Power and performance of training: energy per sample and the Pareto front of settings.

Gawande et al. 2018 [004], figures 16 to 19: power against performance of CifarNet, AlexNet and
GoogLeNet at two batch sizes each and of ResNet-50, on one to eight P100 and on KNL. Here training
steps are timed at each batch size, precision and (on a CPU) number of threads, and the energy of
the same steps is measured (measure/energy); the paper ran each twice instead. A setting is on the
*Pareto front* of its network if no other setting is at least as fast for no more power.

With `devices` each setting runs on several numbers of devices, which is one curve of the figures:
weak (batch size per device constant) or strong (that of all devices together, as in figures 16 to
18). With `stores` the runs of other machines are in the same answer.

No power limit and no clock is set. Power of different coverage (the GPU's board, or packages and
DRAM) is never compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import group_by, titled
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale, import_records
from cubemesh.experiments.power import report
from cubemesh.experiments.power.pareto_front import PowerData, PowerSetting, device_name, key_of
from cubemesh.experiments.scaling.design import ScalingMode, batch_per_device, on_cpu
from cubemesh.experiments.scaling.design import placement as placement_of
from cubemesh.schema import (
    Answer,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
    Warning,
)
from cubemesh.schema.spec import Precision

if TYPE_CHECKING:
    from cubemesh.store import Store

BATCHES = {
    "cifarnet": (96, 192),
    "alexnet": (256, 512),
    "googlenet": (256, 512),
    "resnet-50": (32, 64),
}
"""Networks and batch sizes of Gawande et al. 2018 [004]."""
OTHERS = (32, 64)
"""Batch sizes of other networks."""
QUICK = ("cifarnet", "alexnet")
SECONDS = {Scale.QUICK: 2.0, Scale.DEFAULT: 5.0, Scale.FULL: 10.0}
"""Measuring time; power sensors are slow."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `power` besides the fields of its specs."""

    networks: tuple[str, ...] | None = None
    """Networks to train; default: the paper's four, two of them with --quick."""
    batch_sizes: tuple[int, ...] | None = None
    """Batch sizes; default: the paper's two for each network, on a CPU an eighth of them."""
    precisions: tuple[Precision, ...] = ("fp32",)
    """Precisions to train in."""
    threads: tuple[int, ...] | None = None
    """CPU threads; default: all usable cores, on a CPU also half of them. With several devices on a
    CPU: cores of each device; default: the usable cores divided by the largest number."""
    devices: tuple[int, ...] = ()
    """Numbers of devices, as in devices=1,2,4,8; default: one."""
    mode: Literal["weak", "strong"] = "weak"
    """What batch_sizes are on several devices: of each (weak), or of all together (strong)."""
    stores: tuple[str, ...] = ()
    """Stores of other machines (paths or URLs): their runs are copied into this one, and those of
    the same networks are in the answer."""

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.devices):
            given = ",".join(map(str, self.devices))
            raise UsageError(f"devices={given}: write numbers from 1, as in devices=1,2,4.")


def plan(settings: Settings, context: Context) -> Plan:
    """A run for each setting of each network."""
    networks = settings.networks or (QUICK if context.scale is Scale.QUICK else tuple(BATCHES))
    seconds = max(context.budget.seconds, SECONDS[context.scale])
    budget = replace(context.budget, seconds=seconds)
    mode = ScalingMode(settings.mode)
    yield [
        RunSpec(
            work=TrainSteps(
                network=network,
                batch_per_device=each,
                image_size=reduction.image_size(network, context),
            ),
            placement=placement,
            program=ProgramSettings(
                precision=precision, sync="all-reduce" if placement.devices > 1 else "none"
            ),
            budget=budget,
        )
        for network in dict.fromkeys(networks)
        for batch in _batches(settings, network, context)
        for precision in dict.fromkeys(settings.precisions)
        for placement in _placements(settings, context)
        if (each := batch_per_device(mode, batch, placement.devices)) is not None
    ]


def _placements(settings: Settings, context: Context) -> list[Placement]:
    """Where each setting runs. A device of a CPU has as many cores alone as among several."""
    counts = sorted(set(settings.devices)) or [1]
    if counts == [1]:
        return [Placement(threads=threads) for threads in _threads(settings, context)]
    threads: Sequence[int | None] = list(dict.fromkeys(settings.threads or ()))
    if on_cpu("auto", context):
        cores = max(1, context.machine.cpu.usable_cores // counts[-1])
        return [
            placement_of("auto", t or cores, n, context) for t in threads or [cores] for n in counts
        ]
    return [Placement(devices=n, threads=t) for t in threads or [None] for n in counts]


def _batches(settings: Settings, network: str, context: Context) -> Sequence[int]:
    if settings.batch_sizes:
        return list(dict.fromkeys(settings.batch_sizes))
    documented = BATCHES.get(network, OTHERS)
    return list(dict.fromkeys(reduction.batch(b, context) for b in documented))


def _threads(settings: Settings, context: Context) -> Sequence[int | None]:
    """Numbers of threads; None is every usable core."""
    if settings.threads:
        return list(dict.fromkeys(settings.threads))
    half = context.machine.cpu.usable_cores // 2
    return [None] if context.has_gpu or half < 1 else [half, None]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `power`."""
    mode = ScalingMode(settings.mode)
    machines = {r.key.machine_id for r in records}

    def key(record: RunRecord) -> PowerSetting:
        name = device_name(record) if len(machines) > 1 and record.ranks else ""
        return key_of(record, mode, name)

    groups = group_by(records, key)
    data = PowerData(groups=tuple(groups))
    return answer_of(
        EXPERIMENT,
        titled("Power and performance", records),
        records,
        findings=report.findings(data),
        tables=(report.table(data),),
        charts=report.charts(data),
        warnings=_reductions(settings, records),
        notes=report.notes(data),
    )


def gather(settings: Settings, store: Store, records: Sequence[RunRecord] = ()) -> list[RunRecord]:
    """The latest run of each setting of the measured networks in other machines' stores."""
    own = {r.run_id for r in records}
    names = {key_of(r).network for r in records} | set(settings.networks or ())
    found: dict[object, RunRecord] = {}
    for record in import_records(store, settings.stores):
        work, program = record.spec.work, record.spec.program
        if not isinstance(work, TrainSteps) or not record.ok or program.script is not None:
            continue
        if record.run_id not in own and work.network in names:
            where = (record.key.machine_id, record.spec.placement, program.framework)
            found[key_of(record), *where] = record
    return list(found.values())


def _reductions(settings: Settings, records: Sequence[RunRecord]) -> Iterator[Warning]:
    """What is less than in the paper, by network."""
    by_network = group_by(records, lambda r: key_of(r).network)
    missing = (
        [] if settings.networks else [n for n in BATCHES if n not in {g.key for g in by_network}]
    )
    for group in by_network:
        documented = () if settings.batch_sizes else BATCHES.get(group.key, ())
        yield from reduction.reductions(
            group.records, batch_per_device=min(documented, default=0), steps=0, missing=missing
        )
        missing = []


EXPERIMENT = Experiment(
    name="power",
    question="Which settings train fastest for their power?",
    settings=Settings,
    works=(TrainSteps,),
    varies={"network": "networks", "batch_per_device": "batch_sizes", "precision": "precisions"},
    plan=plan,
    answer=answer,
    gather=gather,
    papers="[004], figures 16 to 19",
)
