"""How do throughput, time per sample and memory change with the minibatch?

Documents 000 (time per sample against minibatch, its bends, doublings that cost more than double)
and 001 figure 1 (LittleCNN, 16 to 2048: throughput levels off at 1024). Training steps are timed at
each minibatch. What is found of them, and by which rule, is in `minibatch_findings.py`; bends and
dear doublings are in `bends.py`, what runs on both sides of a bend in `bend_profiles.py`, what
feeding the device costs in `feeding.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cubemesh.data import entry
from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.groups import group_by, titled
from cubemesh.experiments.analysis.published_rows import (
    above_peak,
    nearest_rows,
    nearest_table,
    published_note,
    published_sweep,
)
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.minibatch import curvature_profiles as bend_profiles
from cubemesh.experiments.minibatch import findings as minibatch_findings
from cubemesh.experiments.minibatch import report as minibatch_shown
from cubemesh.experiments.minibatch.batch_sweep import estimated_run_s, may_double
from cubemesh.experiments.minibatch.curvature import curvature_table, curvatures
from cubemesh.experiments.minibatch.input_starvation import (
    DataLocations,
    data_location,
    programs_by_location,
)
from cubemesh.experiments.minibatch.max_batch import max_batch, search
from cubemesh.experiments.minibatch.report import Groups, MinibatchData
from cubemesh.schema import (
    Answer,
    Ceiling,
    Forward,
    NetworkWork,
    RunRecord,
    RunSpec,
    TrainSteps,
    Warning,
    warn,
)
from cubemesh.units import format_seconds

DOCUMENT_BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Document 001 goes up to 2048."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `minibatch` besides the fields of its specs."""

    network: str = "little-cnn"
    """The network to train; `cubemesh networks` lists them."""
    batch_sizes: tuple[int, ...] | Literal["auto"] = ()
    """Minibatches to measure; `auto` looks for the largest that fits into memory; none given
    doubles from the smallest to the largest, as far as this machine can in reasonable time."""
    min_batch_size: int = DOCUMENT_BATCHES[0]
    """Where that list begins; document 000 looks at 4 too."""
    max_batch_size: int = DOCUMENT_BATCHES[-1]
    """Where it ends at the latest."""
    min_largest_batch: int = 0
    """The list goes up to this minibatch, however long a run takes."""
    data: str = "synthetic"
    """What the network is fed: synthetic, digits, cifar-10."""
    data_location: DataLocations = "host"
    """Where the data lie: on the host (every batch is copied, as document 001 did), on the device,
    or both, side by side."""
    forward: bool | None = None
    """Whether to measure the forward pass alone too; not said is yes with --full only."""
    ceiling: bool = True
    """Whether to measure this device's fastest matrix product too, to hold the steps against."""
    profile: bool | None = None
    """Whether to take steps apart on both sides of every bend; not said is yes but with --quick."""

    def __post_init__(self) -> None:
        if self.min_batch_size < 1:
            raise UsageError(
                f"min_batch_size={self.min_batch_size} is too small: a minibatch has 1 or more."
            )


def plan(settings: Settings, context: Context) -> Plan:
    """The runs of each minibatch, and then those that take the sides of its bends apart."""
    records = yield from bend_profiles.gathered(_curve(settings, context))
    profile = context.scale is not Scale.QUICK if settings.profile is None else settings.profile
    fed = "host" if settings.data_location == "both" else settings.data_location
    if profile and (apart := bend_profiles.specs(records, fed)):
        yield apart


def _curve(settings: Settings, context: Context) -> Plan:
    """The runs of each minibatch; the default list ends where one would take too long or not fit.

    The ceiling is asked for together with a minibatch, so that a slip in the settings is found
    before anything is measured.
    """
    batches = default_batches(settings)
    ceiling = [RunSpec(work=Ceiling(), budget=context.budget)] if settings.ceiling else []
    if settings.batch_sizes == "auto":
        yield from search(
            lambda batch: _specs(settings, batch, context),
            context.machine,
            most=entry(settings.data).train_samples,
            goes_on=lambda record: may_double(record, context.scale),
            also=ceiling,
        )
        return
    if settings.batch_sizes:
        named = sorted(set(settings.batch_sizes))
        yield [*ceiling, *(s for batch in named for s in _specs(settings, batch, context))]
        return
    records = yield [*ceiling, *_specs(settings, batches[0], context)]
    for batch in batches[1:]:
        steps = [r for r in records if isinstance(r.spec.work, TrainSteps)]
        scale = Scale.FULL if batch <= settings.min_largest_batch else context.scale
        if not all(may_double(r, scale) for r in steps):
            return
        records = yield _specs(settings, batch, context)


def default_batches(settings: Settings) -> tuple[int, ...]:
    """Doublings from the smallest minibatch to the largest, as far as one pass over the training
    data holds them; the smallest is always there."""
    samples = entry(settings.data).train_samples
    end = settings.max_batch_size if samples is None else min(settings.max_batch_size, samples)
    batches = [settings.min_batch_size]
    while 2 * batches[-1] <= end:
        batches.append(2 * batches[-1])
    return tuple(batches)


def _specs(settings: Settings, batch: int, context: Context) -> list[RunSpec]:
    """The forward pass alone is measured once, fed from the host where both are asked for."""
    fed = programs_by_location(settings.data_location)
    forward = context.scale is Scale.FULL if settings.forward is None else settings.forward
    works: list[tuple[type[TrainSteps | Forward], int]] = [(TrainSteps, len(fed))]
    if forward:
        works.insert(0, (Forward, 1))
    return [
        RunSpec(
            work=kind(network=settings.network, batch_per_device=batch, data=settings.data),
            program=program,
            budget=context.budget,
        )
        for kind, many in works
        for program in fed[:many]
    ]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `minibatch`."""
    timed, apart = bend_profiles.parted(records)
    shown = _shown(settings, timed)
    steps = [r for r in timed if isinstance(r.spec.work, NetworkWork)]
    groups = shown.training
    found_bends = curvatures(groups)
    found = max_batch(steps) if settings.batch_sizes == "auto" else []
    beside = nearest_rows(settings.network, groups)
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled(f"{settings.network} against minibatch", steps),
        findings=(
            *minibatch_findings.findings(shown),
            *bend_profiles.profile_findings(found_bends, apart),
            *(f.finding() for f in found),
        ),
        tables=(
            minibatch_shown.table(shown),
            *nearest_table(beside),
            *curvature_table(found_bends),
            *bend_profiles.profiles_table(found_bends, apart),
        ),
        charts=tuple(minibatch_shown.charts(shown)),
        warnings=(
            *_reduced(settings, groups),
            *minibatch_shown.above_ceiling(shown),
            *above_peak(beside),
            *(w for r in records for w in r.warnings),
        ),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            *minibatch_shown.notes(shown),
            *published_note(published_sweep(settings.network, groups)),
        ),
    )


def _shown(settings: Settings, records: Sequence[RunRecord]) -> MinibatchData:
    def by_batch(kind: type[NetworkWork], fed: tuple[str, ...]) -> Groups:
        own = (r for r in records if isinstance(r.spec.work, kind) and data_location(r) in fed)
        groups = group_by(own, lambda r: r.spec.batch_per_device or 0)
        return sorted(groups, key=lambda group: group.key)

    both = settings.data_location == "both"
    ceiling = group_by((r for r in records if isinstance(r.spec.work, Ceiling)), lambda r: "")
    rate = ceiling[0].median_of("rate_flops_per_s") if ceiling else None
    devices = max((r.spec.placement.devices for r in records), default=1)
    return MinibatchData(
        network=settings.network,
        training=by_batch(TrainSteps, ("host",) if both else ("host", "device")),
        device=by_batch(TrainSteps, ("device",)) if both else (),
        forward=by_batch(Forward, ("host", "device")),
        rate=None if rate is None else rate * devices,
        devices=devices,
    )


def _reduced(settings: Settings, groups: Groups) -> Iterator[Warning]:
    if settings.batch_sizes or not groups or groups[-1].throughput is None:
        return
    last = groups[-1]
    asked = Settings(min_batch_size=settings.min_batch_size, max_batch_size=settings.max_batch_size)
    if last.key == default_batches(asked)[-1]:
        return
    ends = f"The minibatches end at {last.key} and were to go on to {settings.max_batch_size}."
    if last.key == default_batches(settings)[-1]:
        samples = entry(settings.data).train_samples
        why = f"{settings.data} has {samples:,} samples to train with."
        yield warn("reduced", f"{ends} {why}", "Use data=synthetic for larger minibatches.")
        return
    step_s = last.median_of("step_s") or 0.0
    takes = format_seconds(estimated_run_s(2 * step_s, last.records[0].spec.budget))
    yield warn(
        "reduced",
        f"{ends} A run at {2 * last.key} would take some {takes} here.",
        f"Use --full, or name the minibatches: --set batch_sizes={last.key},{2 * last.key}",
    )


EXPERIMENT = Experiment(
    name="minibatch",
    question="How do throughput, time per sample and memory change with the minibatch?",
    settings=Settings,
    works=(TrainSteps, Forward),
    varies={"batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    documents="000 (minibatch study), 001 figure 1",
)
