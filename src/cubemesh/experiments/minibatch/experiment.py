"""Throughput, time per sample and memory by batch size.

Training steps are timed at each batch size: analysis.py finds the knee of the throughput,
curvature.py its curvature and the causes, input_bound.py the cost of copying batches to the device,
max_batch.py the largest batch size that fits in memory. From the papers 000 (time per sample by
batch size) and 001, figure 1 (LittleCNN, 16 to 2048, constant from 1024).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cubemesh.data import entry
from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.analysis.published_rows import (
    above_peak,
    nearest_rows,
    nearest_table,
    published_note,
    published_sweep,
)
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.core.passes import PASSES, VARIES, WORKS, Pass, work_of
from cubemesh.experiments.minibatch import report
from cubemesh.experiments.minibatch.analysis import (
    BatchGroups,
    above_ceiling,
    minibatch_data,
)
from cubemesh.experiments.minibatch.curvature import (
    curvature_table,
    profile_findings,
    profile_specs,
    profiles_table,
    split_profiled,
)
from cubemesh.experiments.minibatch.input_bound import DataLocations, programs_by_location
from cubemesh.experiments.minibatch.max_batch import (
    estimated_run_s,
    max_batch_findings,
    may_double,
    search,
)
from cubemesh.schema import (
    Answer,
    Ceiling,
    Column,
    NetworkWork,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
    Warning,
    warn,
)
from cubemesh.units import format_seconds

PAPER_BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""The paper 001 measures up to 2048."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `minibatch` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """Networks to train; `cubemesh networks` lists them."""
    batch_sizes: tuple[int, ...] | Literal["auto"] = ()
    """Batch sizes to measure; `auto` searches for the largest that fits in memory. Default: doubles
    from min_batch_size to max_batch_size, as far as this machine can in reasonable time."""
    min_batch_size: int = PAPER_BATCH_SIZES[0]
    """The first batch size of the default sweep."""
    max_batch_size: int = PAPER_BATCH_SIZES[-1]
    """The last batch size of the default sweep."""
    min_largest_batch: int = 0
    """The default sweep includes this batch size, however long a run takes."""
    data: str = "synthetic"
    """Training data: synthetic, digits, cifar-10."""
    data_location: DataLocations = "host"
    """Location of the data: host (every batch is copied to the device), device, or both."""
    passes: tuple[Pass, ...] = ("training",)
    """Passes to time at each batch size, training among them: inference (forward in evaluation
    mode, without the loss), forward, forward-backward (without an update), training."""
    forward: bool | None = None
    """Whether to add the pass forward. Default: with --full only."""
    ceiling: bool = True
    """Whether to measure the device's fastest matrix product, for comparison."""
    profile: bool | None = None
    """Whether to profile the steps around every significant curvature. Default: not with
    --quick."""

    def __post_init__(self) -> None:
        if self.min_batch_size < 1:
            raise UsageError(f"min_batch_size={self.min_batch_size}: it must be 1 or more.")
        if "training" not in self.passes:
            raise UsageError(
                f"passes={','.join(self.passes)}: the sweep is by training steps. Name training "
                "too, or use run frameworks --set batch_sizes=… for other passes alone."
            )


def plan(settings: Settings, context: Context) -> Plan:
    """For each network the runs of its sweep, then the profiled ones. The ceiling is measured with
    the first batch size, so that wrong settings are found before anything is measured."""
    ceiling = [RunSpec(work=Ceiling(), budget=context.budget)] if settings.ceiling else []
    profile = context.scale is not Scale.QUICK if settings.profile is None else settings.profile
    location = "host" if settings.data_location == "both" else settings.data_location
    for network in dict.fromkeys(settings.networks):
        records = yield from _collect(_sweep(settings, network, ceiling, context))
        ceiling = []
        if profile and (specs := profile_specs(records, location)):
            yield specs


def _collect(
    plan: Plan,
) -> Generator[Sequence[RunSpec], Sequence[RunRecord], list[RunRecord]]:
    """Run through `plan` and return all its records."""
    found: list[RunRecord] = []
    specs = next(plan)
    while True:
        records = yield specs
        found += records
        try:
            specs = plan.send(records)
        except StopIteration:
            return found


def _sweep(settings: Settings, network: str, ceiling: Sequence[RunSpec], context: Context) -> Plan:
    """The runs at each batch size; the default sweep ends where a run takes too long or fails."""
    if settings.batch_sizes == "auto":
        yield from search(
            lambda batch: _specs(settings, network, batch, context),
            context.machine,
            most=entry(settings.data).train_samples,
            may_continue=lambda record: may_double(record, context.scale),
            also=ceiling,
        )
        return
    if settings.batch_sizes:
        named = sorted(set(settings.batch_sizes))
        yield [*ceiling, *(s for batch in named for s in _specs(settings, network, batch, context))]
        return
    first, *larger = default_batch_sizes(settings)
    records = yield [*ceiling, *_specs(settings, network, first, context)]
    for batch in larger:
        steps = [r for r in records if isinstance(r.spec.work, TrainSteps)]
        scale = Scale.FULL if batch <= settings.min_largest_batch else context.scale
        if not all(may_double(r, scale) for r in steps):
            return
        records = yield _specs(settings, network, batch, context)


def default_batch_sizes(settings: Settings) -> tuple[int, ...]:
    """Doublings from the smallest to the largest batch size, at most one epoch's samples; the
    smallest is always included."""
    samples = entry(settings.data).train_samples
    last = settings.max_batch_size if samples is None else min(settings.max_batch_size, samples)
    sizes = [settings.min_batch_size]
    while 2 * sizes[-1] <= last:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def _specs(settings: Settings, network: str, batch: int, context: Context) -> list[RunSpec]:
    """Training steps for each data location; every other pass is measured once."""
    programs = programs_by_location(settings.data_location)
    forward = context.scale is Scale.FULL if settings.forward is None else settings.forward
    requested = {*settings.passes, *(("forward",) if forward else ())}
    works: list[tuple[Pass, ProgramSettings]] = [
        *((name, programs[0]) for name in PASSES if name in requested and name != "training"),
        *(("training", program) for program in programs),
    ]
    return [
        RunSpec(
            work=work_of(name, network=network, batch_per_device=batch, data=settings.data),
            program=program,
            budget=context.budget,
        )
        for name, program in works
    ]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `minibatch`, by network."""
    return per_workload(records, _workload, lambda own: _answer(settings, own))


def _workload(record: RunRecord) -> tuple[str] | None:
    work = record.spec.work
    return (work.network,) if isinstance(work, NetworkWork) else None


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    (network,) = next(filter(None, map(_workload, records)), settings.networks[:1])
    timed, profiled = split_profiled(records)
    data = minibatch_data(network, timed, settings.data_location)
    nearest = nearest_rows(network, data.training)
    return answer_of(
        EXPERIMENT,
        titled(f"{network} by batch size", [r for r in records if _workload(r)]),
        records,
        findings=(
            *report.findings(data),
            *profile_findings(data.curvatures, profiled),
            *(max_batch_findings(timed) if settings.batch_sizes == "auto" else ()),
        ),
        tables=(
            report.table(data),
            *nearest_table(nearest, Column(name="throughput", unit=data.unit)),
            *curvature_table(data.curvatures),
            *profiles_table(data.curvatures, profiled),
        ),
        charts=report.charts(data),
        warnings=(
            *_reduced(settings, data.training),
            *above_ceiling(data),
            *above_peak(nearest),
        ),
        notes=(*report.notes(data), *published_note(published_sweep(network, data.training))),
    )


def _reduced(settings: Settings, groups: BatchGroups) -> Iterator[Warning]:
    """The warning `reduced` if the default sweep ended early."""
    if settings.batch_sizes or not groups or groups[-1].throughput is None:
        return
    last = groups[-1]
    if last.key == default_batch_sizes(replace(settings, data="synthetic"))[-1]:
        return
    ends = f"The batch sizes end at {last.key} instead of {settings.max_batch_size}."
    if last.key == default_batch_sizes(settings)[-1]:
        samples = entry(settings.data).train_samples
        why = f"{settings.data} has {samples:,} training samples."
        yield warn("reduced", f"{ends} {why}", "Use data=synthetic for larger batch sizes.")
        return
    step_s = last.median_of("step_s") or 0.0
    takes = format_seconds(estimated_run_s(2 * step_s, last.records[0].spec.budget))
    yield warn(
        "reduced",
        f"{ends} A run at {2 * last.key} would take about {takes} here.",
        f"Use --full, or name the batch sizes: --set batch_sizes={last.key},{2 * last.key}",
    )


EXPERIMENT = Experiment(
    name="minibatch",
    question="How do throughput, time per sample and memory change with the batch size?",
    settings=Settings,
    works=WORKS,
    varies={"batch_per_device": "batch_sizes", "network": "networks"} | VARIES,
    plan=plan,
    grows=True,
    answer=answer,
    papers="[000] (minibatch study), [001], figure 1",
)
