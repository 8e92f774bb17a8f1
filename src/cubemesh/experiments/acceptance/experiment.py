"""Acceptance test of a machine: is it as fast as it should be, evenly, steadily and correctly?

    ceilings     matrix products, copies in device memory and between host and device, disk read
    links        all-reduce, and every pair of devices, each result checked element by element
    neighbours   the same training on every device at the same time, without synchronization
    input        reading and decoding image files
    results      a deterministic training, twice
    training     each network on one device
    burn-in      training on all devices for minutes

Each figure is judged (checks.py) by the datasheet, by earlier runs of the same model of machine in
the store and in `stores`, by the other devices of the machine, and by its own start. Runs are
always measured anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from cubemesh.data.images.generated_jpegs import NAME as JPEG_FILES
from cubemesh.errors import UsageError
from cubemesh.experiments.acceptance.checks import fleet_key, judge, left_out
from cubemesh.experiments.acceptance.parts import (
    BURN_IN_WINDOWS,
    PARTS,
    Part,
    figure_name,
    part_of,
)
from cubemesh.experiments.acceptance.report import findings, notes, tables, title_of
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale, import_records
from cubemesh.schema import (
    Answer,
    Budget,
    Ceiling,
    Collective,
    Input,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
)
from cubemesh.schema.spec import Precision
from cubemesh.user_folders import cache_folder

if TYPE_CHECKING:
    from cubemesh.store import Store

BURN_IN_MINUTES = {Scale.QUICK: 1.0, Scale.DEFAULT: 10.0, Scale.FULL: 60.0}
MOST_MINUTES = 7 * 24 * 60.0
CEILING_S = {Scale.QUICK: 2.0, Scale.DEFAULT: 5.0, Scale.FULL: 10.0}
MESSAGES = {
    (True, Scale.QUICK): (1 << 20, 64 << 20),
    (True, Scale.DEFAULT): (1 << 20, 256 << 20),
    (False, Scale.QUICK): (64 << 10, 1 << 20),
    (False, Scale.DEFAULT): (64 << 10, 4 << 20),
}
"""(whether there is a GPU, scale) → message sizes of collectives; `--full` is as the default."""
ITERATIONS = 20
"""Operations of a collective in each group."""
LOSSES = 20
"""Losses that a deterministic training records."""
PER_MACHINE = 3
"""Newest earlier runs of each machine that are compared with."""
MOST_MACHINES = 50
"""Machines of the fleet that are compared with, the ones measured last."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `acceptance` besides the fields of its specs."""

    parts: tuple[Part, ...] = ()
    """Parts to measure; default: all that the machine has."""
    burn_in_minutes: float | None = None
    """Length of the burn-in; 0: none. Default: 10; with --quick 1, with --full 60."""
    networks: tuple[str, ...] = ()
    """Networks to train, the first also in the burn-in; default: resnet-50 on a GPU, little-cnn on
    a CPU."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: 64."""
    precisions: tuple[Precision, ...] = ()
    """Precisions of the matrix products, the first also of the trainings; default: bf16, fp16, tf32
    and fp32 on a GPU, fp32 on a CPU."""
    devices: int | None = None
    """Devices that are compared with one another; default: all GPUs, or the NUMA nodes of a CPU."""
    folder: str | None = None
    """Folder on the disk to read from; default: $XDG_CACHE_HOME/cubemesh."""
    disk_gb_per_s: float | None = None
    """Stated sequential read rate of that disk in GB/s; default: it is compared with the fleet
    alone."""
    stores: tuple[str, ...] = ()
    """Stores of other machines (paths or URLs): their runs are copied into this one first."""
    min_of_datasheet: float = 0.6
    """Threshold: sustained rate over the datasheet's."""
    min_of_fleet: float = 0.9
    """Threshold: over the mean of earlier runs of the same model of machine."""
    min_of_neighbours: float = 0.95
    """Threshold: a device over the median of the others."""
    min_of_start: float = 0.95
    """Threshold: last third of the burn-in over the first."""

    def __post_init__(self) -> None:
        minutes = self.burn_in_minutes
        if minutes is not None and not 0 <= minutes <= MOST_MINUTES:
            raise UsageError(
                f"burn_in_minutes={minutes:g} is not valid: give 0 to {MOST_MINUTES:,.0f} minutes."
            )
        for name in ("min_of_datasheet", "min_of_fleet", "min_of_neighbours", "min_of_start"):
            if not 0 < getattr(self, name) <= 1:
                raise UsageError(
                    f"{name}={getattr(self, name):g} is not valid: a threshold is above 0 and at "
                    "most 1, as in 0.9."
                )
        if self.devices is not None and self.devices < 1:
            raise UsageError(f"devices={self.devices} is not valid: give 1 or more.")
        rate = self.disk_gb_per_s
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise UsageError(f"disk_gb_per_s={rate:g} is not valid: give a rate above 0.")

    @property
    def disk_bytes_per_s(self) -> float | None:
        """Stated rate of the disk."""
        return None if self.disk_gb_per_s is None else 1e9 * self.disk_gb_per_s

    @property
    def wanted(self) -> tuple[Part, ...]:
        """The requested parts, in the order of the plan."""
        return tuple(part for part in PARTS if not self.parts or part in self.parts)

    def minutes(self, scale: Scale) -> float:
        """Length of the burn-in."""
        return BURN_IN_MINUTES[scale] if self.burn_in_minutes is None else self.burn_in_minutes


def plan(settings: Settings, context: Context) -> Plan:
    """The parts in order. Those that a machine may lack come first, so that the last ones tell
    whether the test is complete."""
    yield [spec for part in settings.wanted for spec in _specs(part, settings, context)]


def _specs(part: Part, settings: Settings, context: Context) -> Iterator[RunSpec]:
    """The runs of a part; none where the machine lacks it."""
    budget = replace(context.budget, repeats=1)
    longer = replace(budget, seconds=CEILING_S[context.scale])
    precisions = settings.precisions or (
        ("bf16", "fp16", "tf32", "fp32") if context.has_gpu else ("fp32",)
    )
    program = ProgramSettings(precision=precisions[0], data_location="device")
    devices = _devices(settings, context)
    together = Placement(devices=devices)
    works = _trainings(settings, context)
    if part == "matrix-product":
        for precision in dict.fromkeys(precisions):
            yield RunSpec(
                work=Ceiling(), program=ProgramSettings(precision=precision), budget=longer
            )
    elif part == "memory-copy":
        yield RunSpec(work=Ceiling(operation="copy"), budget=longer)
    elif part == "host-copies" and context.has_gpu:
        yield RunSpec(work=Ceiling(operation="host_to_device"), budget=longer)
        yield RunSpec(work=Ceiling(operation="device_to_host"), budget=longer)
    elif part == "links" and devices > 1:
        yield from _links(together, context)
    elif part == "neighbours" and devices > 1:
        yield RunSpec(work=works[0], placement=together, program=program, budget=budget)
    elif part == "disk":
        yield _disk(settings.folder or str(cache_folder()), longer)
    elif part == "input":
        yield from _input(works[0], budget)
    elif part == "results":
        yield RunSpec(
            work=replace(works[0], losses=LOSSES),
            program=replace(program, deterministic=True),
            budget=Budget(steps=3, seconds=0.5, windows=6, warmup_seconds=2.0, repeats=2),
        )
    elif part == "training":
        for work in works:
            yield RunSpec(work=work, program=program, budget=budget)
    elif part == "burn-in" and (minutes := settings.minutes(context.scale)):
        yield RunSpec(
            work=works[0],
            placement=together,
            program=program,
            budget=replace(
                budget,
                seconds=60 * minutes,
                windows=BURN_IN_WINDOWS,
                time_limit_s=budget.time_limit_s + 2 * 60 * minutes,
            ),
        )


def _devices(settings: Settings, context: Context) -> int:
    if settings.devices is not None:
        return settings.devices
    machine = context.machine
    return max(1, len(machine.gpus) if context.has_gpu else len(machine.cpu.numa_nodes))


def _trainings(settings: Settings, context: Context) -> list[TrainSteps]:
    networks = settings.networks or ("resnet-50" if context.has_gpu else "little-cnn",)
    return [
        TrainSteps(network=network, batch_per_device=batch)
        for network, batch in product(dict.fromkeys(networks), settings.batch_sizes or (64,))
    ]


def _links(placement: Placement, context: Context) -> Iterator[RunSpec]:
    scale = Scale.QUICK if context.scale is Scale.QUICK else Scale.DEFAULT
    windows = 6 if scale is Scale.QUICK else 12
    budget = replace(context.budget, steps=ITERATIONS, windows=windows, seconds=5.0, repeats=1)
    sizes = MESSAGES[context.has_gpu, scale]
    for name in ("all-reduce", "send-receive"):
        work = Collective(collective=name, sizes_bytes=sizes)
        yield RunSpec(work=work, placement=placement, budget=budget)


def _disk(folder: str, budget: Budget) -> RunSpec:
    return RunSpec(
        work=Ceiling(operation="disk_read", folder=folder),
        placement=Placement(device="cpu"),
        program=ProgramSettings(framework="null"),
        budget=budget,
    )


def _input(training: TrainSteps, budget: Budget) -> Iterator[RunSpec]:
    """Reading from the disk, then decoding in memory."""
    for stage in ("read", "decode"):
        yield RunSpec(
            work=Input(
                network=training.network,
                batch_per_device=training.batch_per_device,
                data=JPEG_FILES,
                stage=stage,
            ),
            program=ProgramSettings(drop_page_cache=stage == "read"),
            budget=budget,
        )


def announce(settings: Settings, context: Context) -> str:
    """The plan in a sentence."""
    minutes = settings.minutes(context.scale) if "burn-in" in settings.wanted else 0.0
    burn_in = f", with a burn-in of {minutes:g} min" if minutes else ", without a burn-in"
    return f"Acceptance test of {len(settings.wanted)} parts{burn_in}; everything is measured anew."


def gather(settings: Settings, store: Store, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Earlier runs of the same works on the same model of machine, oldest first: the newest few of
    each machine, and of this one only those of the same specs (`own_records`)."""
    from cubemesh.store.run_list import MAX_LIMIT, RunFilter

    import_records(store, settings.stores)
    keys = {fleet_key(r) for r in records if r.ok and part_of(r) != "results"}
    if not keys:
        return []
    here = records[0].key.machine_id
    own_specs = {r.spec.spec_id for r in records}
    filters = [
        RunFilter(workload=tuple(dict.fromkeys(r.spec.workload_id for r in records))),
        RunFilter(work="ceiling", framework="null"),  # disks, whatever their folder
    ]
    candidates: dict[str, None] = {}
    for one in filters:
        page = store.list_runs(replace(one, outcome="ok"), limit=MAX_LIMIT)
        for row in page.rows:
            if row.started_utc < records[0].started_utc:
                candidates[row.run_id] = None
    count: Counter[object] = Counter()
    found, machines = [], dict[str, None]()
    for record in reversed(store.records(list(candidates)) if candidates else []):
        key, machine = fleet_key(record), record.key.machine_id
        judged = key in keys and figure_name(record.spec) in record.figures
        if not judged or (machine == here and record.spec.spec_id not in own_specs):
            continue
        if machine not in machines and len(machines) >= MOST_MACHINES:
            continue
        if count[machine, key] < PER_MACHINE:
            machines[machine] = None
            count[machine, key] += 1
            found.append(record)
    return found[::-1]


def own_records(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of this test among `records`, in whatever order: of the machine that was measured
    last, the newest run of each spec and repeat. The others are earlier (`gather`)."""
    newest: dict[tuple[str, int], RunRecord] = {}
    last = max(records, key=lambda r: r.started_utc, default=None)
    for record in sorted(records, key=lambda r: r.started_utc):
        if last is not None and record.key.machine_id == last.key.machine_id:
            newest[record.spec.spec_id, record.key.repeat] = record
    return list(newest.values())


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """The verdict, its checks, and what was left out, from the records of one `acceptance`."""
    own = own_records(records)
    mine = {r.run_id for r in own}
    fleet = [r for r in records if r.run_id not in mine]
    checks = judge(own, fleet, settings)
    measured = {part_of(r) for r in own}
    missing = tuple(part for part in settings.wanted if part not in measured)
    out = left_out(own)
    answered = answer_of(
        EXPERIMENT,
        title_of(own),
        own,
        findings=findings(checks, out, missing, settings.burn_in_minutes == 0),
        tables=tables(checks, out, missing),
        notes=notes(settings),
    )
    return replace(answered, run_ids=tuple(r.run_id for r in records))


EXPERIMENT = Experiment(
    name="acceptance",
    question="Is this machine as fast as it should be, and are its results correct?",
    settings=Settings,
    works=(Ceiling, Collective, TrainSteps, Input),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "precision": "precisions",
        **dict.fromkeys(("operation", "size", "shape", "pinned"), "parts"),
        **dict.fromkeys(("sizes_bytes", "drop_page_cache", "sync"), "parts"),
        "collective": "parts",
        "stage": "parts",
        "data": "parts",
        "losses": "parts",
        "deterministic": "parts",
        "data_location": "parts",
        "seconds": "burn_in_minutes",
        "windows": "burn_in_minutes",
        "repeats": "parts",
    },
    plan=plan,
    answer=answer,
    gather=gather,
    measured_anew=True,
    alternates=False,
    tunes=False,
    announce=announce,
)
