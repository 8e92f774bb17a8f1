"""Bandwidth and latency of collectives by operation, message size and number of devices.

Each operation is swept over sizes in separate ranks, as in nccl-tests, and every result is checked
element by element. Bus bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md): comparable
with the bandwidth of a link for any number of devices. If an operation is measured out of place and
in place, charts and findings have the faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import group_by, titled
from cubemesh.experiments.collectives.nccl_rings import nccl_findings, nccl_notes, nccl_tables
from cubemesh.experiments.collectives.report import charts, findings, group_key, tables
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.schema import Answer, Collective, Placement, RunRecord, RunSpec
from cubemesh.schema.collective import COLLECTIVES, CollectiveName

MAX_SIZES = 1000
DEFAULT_MAX_BYTES = {
    (True, Scale.QUICK): 64 << 20,
    (True, Scale.DEFAULT): 1 << 30,
    (False, Scale.QUICK): 1 << 20,
    (False, Scale.DEFAULT): 16 << 20,
}
"""(whether there is a GPU, scale) → the largest size; `--full` is as the default."""
ITERATIONS = 20
"""Operations per group, the default of nccl-tests."""
GROUPS = {Scale.QUICK: (6, 0.1), Scale.DEFAULT: (12, 0.5), Scale.FULL: (30, 2.0)}
"""Groups at each size, and the seconds after which a size ends early."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `collectives` besides the fields of its specs."""

    operations: tuple[CollectiveName, ...] | None = None
    """Collectives to measure. Default: all; with --quick all-reduce."""
    min_bytes: int = 1024
    """The smallest message size."""
    max_bytes: int | None = None
    """The largest message size. Default: 1 GiB between GPUs, 16 MiB between CPUs; less with
    --quick."""
    factor: int | None = None
    """Ratio between successive sizes. Default: 2; with --quick 4."""
    step_bytes: int | None = None
    """Difference between successive sizes, instead of a factor."""
    devices: tuple[int, ...] | None = None
    """Numbers of devices. Default: all GPUs, or two groups of cores; with --full powers of two up
    to all."""

    def __post_init__(self) -> None:
        if self.min_bytes < 1 or (self.max_bytes or self.min_bytes) < 1:
            raise UsageError("min_bytes and max_bytes must be 1 or more.")
        if self.max_bytes is not None and self.max_bytes < self.min_bytes:
            raise UsageError(
                f"max_bytes={self.max_bytes} (-e) is below min_bytes="
                f"{self.min_bytes} (-b). Give a larger one, or the same for a single size."
            )
        if self.factor is not None and self.step_bytes is not None:
            raise UsageError("factor and step_bytes are mutually exclusive: give one of them.")
        if self.factor is not None and self.factor < 2:
            raise UsageError(f"factor={self.factor}: it must be 2 or more.")
        if self.step_bytes is not None and self.step_bytes < 1:
            raise UsageError(f"step_bytes={self.step_bytes}: it must be 1 or more.")


def plan(settings: Settings, context: Context) -> Plan:
    """A run for each operation on each number of devices."""
    windows, seconds = GROUPS[context.scale]
    budget = replace(context.budget, steps=ITERATIONS, windows=windows, seconds=seconds, repeats=1)
    quick = context.scale is Scale.QUICK
    sizes = sizes_of(settings, context)
    yield [
        RunSpec(
            work=Collective(collective=operation, sizes_bytes=sizes),
            placement=Placement(devices=devices),
            budget=budget,
        )
        for devices in dict.fromkeys(settings.devices or _devices(context))
        for operation in dict.fromkeys(
            settings.operations or (COLLECTIVES[:1] if quick else COLLECTIVES)
        )
    ]


def sizes_of(settings: Settings, context: Context) -> tuple[int, ...]:
    """The sizes of a sweep, ascending; UsageError for more than `MAX_SIZES`."""
    scale = Scale.QUICK if context.scale is Scale.QUICK else Scale.DEFAULT
    last = settings.max_bytes
    if last is None:
        last = max(DEFAULT_MAX_BYTES[context.has_gpu, scale], settings.min_bytes)
    factor = settings.factor or (4 if scale is Scale.QUICK else 2)
    found, size = [], settings.min_bytes
    while size <= last:
        found.append(size)
        if len(found) > MAX_SIZES:
            raise UsageError(
                f"From {settings.min_bytes} to {last} bytes there are more than {MAX_SIZES:,} "
                "sizes. Use a larger step_bytes, or a factor."
            )
        size = size + settings.step_bytes if settings.step_bytes else size * factor
    return tuple(found)


def _devices(context: Context) -> tuple[int, ...]:
    machine = context.machine
    cores = int(machine.cpu.usable_cores)
    most = len(machine.gpus) if context.has_gpu else cores
    if context.scale is not Scale.FULL:
        return (max(2, most if context.has_gpu else 2),)
    powers = [2**i for i in range(1, 10) if 2**i < most]
    return (*powers, max(2, most))


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `collectives`."""
    groups = group_by(records, group_key)
    libraries = dict.fromkeys(r.library for r in records if r.library)
    return answer_of(
        EXPERIMENT,
        titled(
            f"Collectives{' of ' if libraries else ''}{', '.join(libraries)}",
            [r for r in records if r.ok],
        ),
        records,
        findings=(*findings(groups), *nccl_findings(records)),
        tables=(*tables(groups), *nccl_tables(records)),
        charts=charts(groups),
        notes=_notes(records),
    )


def _notes(records: Sequence[RunRecord]) -> Iterator[str]:
    yield (
        "Bus bandwidth is size over time, times 2 (n - 1) / n for all-reduce, (n - 1) / n if the "
        "array is divided among the n devices, and 1 for broadcast, reduce and send-receive "
        "(nccl-tests, doc/PERFORMANCE.md). Times are means over ranks."
    )
    if any(r.spec.placement.device != "cuda" and r.library == "gloo" for r in records):
        yield (
            "Between CPU processes of one host, gloo moves data through memory, by TCP: the "
            "bandwidth is not that of a link."
        )
    yield from nccl_notes(records)


EXPERIMENT = Experiment(
    name="collectives",
    question="How fast do devices communicate, by collective and message size?",
    settings=Settings,
    works=(Collective,),
    varies={"collective": "operations", "sizes_bytes": "min_bytes"},
    plan=plan,
    answer=answer,
    papers="[002] (collectives of its communication libraries), [004] (bandwidth by message size)",
)
