"""How do throughput, time per sample and memory change with the minibatch?

Documents 000 (time per sample against minibatch, its bends, doublings that cost more than double)
and 001 figure 1 (LittleCNN, 16 to 2048: throughput levels off at 1024). Training steps are timed at
each minibatch. Throughput *stops growing* at the smallest minibatch that comes within 3 % of the
best. *Matrix use* is the network's matrix FLOPs per second (a multiply-add is two) over the fastest
matrix product measured on the same device in the same precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cubemesh.data import entry
from cubemesh.experiments.base import Context, Experiment, Plan, Scale
from cubemesh.experiments.beside import (
    nearest_table,
    published_line,
    published_note,
    published_sweep,
)
from cubemesh.experiments.conditions import titled
from cubemesh.experiments.groups import Group, doubts, group_by
from cubemesh.model import (
    Answer,
    Axis,
    Ceiling,
    Cell,
    Chart,
    Column,
    Effort,
    Figure,
    Finding,
    Line,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
    Warning,
    warn,
)
from cubemesh.networks import build_for
from cubemesh.predict.compute import utilisation
from cubemesh.units import format_interval, format_quantity, format_seconds

DOCUMENT_BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Document 000 looks from 8 on, document 001 up to 2048."""
RUN_BUDGET_S = {Scale.QUICK: 8.0, Scale.DEFAULT: 40.0, Scale.FULL: float("inf")}
"""The default list ends before a minibatch whose run would take longer than this."""
LEVEL = 0.97


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `minibatch` besides the fields of its specs."""

    network: str = "little-cnn"
    """The network to train; `cubemesh networks` lists them."""
    batches: tuple[int, ...] = ()
    """Minibatches to measure; none given goes from 8 to 2048, as far as this machine can in
    reasonable time."""
    data: str = "synthetic"
    """What the network is fed: synthetic, digits, cifar-10."""
    ceiling: bool = True
    """Whether to measure this device's fastest matrix product too, to hold the steps against."""


def plan(settings: Settings, context: Context) -> Plan:
    """One run a minibatch; the default list ends where a run would take too long or not fit.

    The ceiling is asked for together with a minibatch, so that a slip in the settings is found
    before anything is measured.
    """
    batches = default_batches(settings.data)
    ceiling = [RunSpec(work=Ceiling(), effort=context.effort)] if settings.ceiling else []
    if settings.batches:
        named = sorted(set(settings.batches))
        yield [*ceiling, *(_spec(settings, batch, context.effort) for batch in named)]
        return
    records = yield [*ceiling, _spec(settings, batches[0], context.effort)]
    for batch in batches[1:]:
        if not _may_double(records[-1], RUN_BUDGET_S[context.scale]):
            return
        records = yield [_spec(settings, batch, context.effort)]


def default_batches(data: str) -> tuple[int, ...]:
    """The documents' minibatches, as far as one pass over the training data holds them."""
    samples = entry(data).train_samples
    return tuple(b for b in DOCUMENT_BATCHES if samples is None or b <= samples)


def _may_double(record: RunRecord, budget_s: float) -> bool:
    step_s = record.figure("step_s")
    return step_s is not None and _run_s(2 * step_s, record.spec.effort) <= budget_s


def _spec(settings: Settings, batch: int, effort: Effort) -> RunSpec:
    work = TrainSteps(network=settings.network, batch_per_device=batch, data=settings.data)
    return RunSpec(work=work, effort=effort)


def _run_s(step_s: float, effort: Effort) -> float:
    """What a run at this step time takes, roughly: its steps, and half as many to warm up."""
    return max(effort.seconds, step_s * max(effort.steps, effort.windows)) * 1.5


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `minibatch`."""
    steps = [r for r in records if isinstance(r.spec.work, TrainSteps)]
    groups = group_by(steps, lambda r: r.spec.batch_per_device or 0)
    ceiling = group_by((r for r in records if isinstance(r.spec.work, Ceiling)), lambda r: "")
    rate = ceiling[0].median_of("rate_flops_per_s") if ceiling else None
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled(f"{settings.network} against minibatch", steps),
        findings=tuple(_findings(settings.network, groups, rate)),
        tables=(_table(groups, settings.network, rate), *nearest_table(settings.network, groups)),
        charts=tuple(_charts(settings.network, groups)),
        warnings=(
            *_reduced(settings, groups),
            *_above_ceiling(settings.network, groups, rate),
            *(w for r in records for w in r.warnings),
        ),
        run_ids=tuple(r.run_id for r in records),
        notes=(*_notes(rate), *published_note(published_sweep(settings.network, groups))),
    )


def _findings(network: str, groups: list[Group[int]], rate: float | None) -> Iterator[Finding]:
    done = [(g, g.throughput) for g in groups if g.throughput is not None]
    if not done:
        if groups:
            yield Finding(text=f"{network} ran at no minibatch. {groups[0].key}: {groups[0].why}.")
        return
    best, top = max(done, key=lambda p: p[1].value)
    yield Finding(
        question="How fast?",
        text=f"This machine trains {network} at {_show(top)} samples/s, at minibatch {best.key}.",
        value=top.value,
        unit="samples/s",
        low=top.low,
        high=top.high,
        doubts=best.doubts,
    )
    if len(done) > 1:
        yield from _growth(done, top)
        yield from _dear_doublings(groups)
    if rate:
        yield _matrix_use(network, best, top, rate)
    for group in groups:
        if group.throughput is None:
            yield Finding(text=f"Minibatch {group.key}: {group.why}.")


def _growth(done: list[tuple[Group[int], Figure]], top: Figure) -> Iterator[Finding]:
    first, slow = done[0]
    level, figure = next(p for p in done if p[1].value >= LEVEL * top.value)
    if level.key == first.key:
        yield Finding(text=f"Throughput does not grow with the minibatch from {first.key} on.")
        return
    gain = figure.value / slow.value
    grown = f"{_show(figure)} samples/s, {gain:.2g}× minibatch {first.key}"
    if level.key == done[-1][0].key:
        text = f"Throughput still grows at minibatch {level.key}, the largest measured: {grown}."
        remedy = "Try larger minibatches with --set batches=…."
    else:
        text, remedy = f"Throughput stops growing at minibatch {level.key}: {grown}.", ""
    yield Finding(text=text, remedy=remedy, doubts=doubts(*(g for g, _ in done)))
    yield Finding(
        question="What does it lose the time to?",
        text=f"At minibatch {first.key} a sample takes {gain:.2g}× as long as at {level.key}.",
        doubts=doubts(first, level),
        value=gain,
        unit="× the time",
        remedy=f"Train at minibatch {level.key} where accuracy allows it.",
    )


def _dear_doublings(groups: list[Group[int]]) -> Iterator[Finding]:
    """Document 000 saw by eye that VGG at 128 takes more than twice the time of 64."""
    for small, large in pairwise(groups):
        a, b = small.throughput, large.throughput
        if a is None or b is None or large.key != 2 * small.key:
            continue
        if small.doubts or large.doubts:
            continue  # a machine disturbed during one of the two looks just like this
        surely = a.low is not None and b.high is not None and b.high < a.low
        if surely and b.value < LEVEL * a.value:
            yield Finding(
                text=f"Doubling the minibatch from {small.key} to {large.key} costs "
                f"{2 * a.value / b.value:.2f}× the time of a step: more than double."
            )


def _matrix_use(network: str, best: Group[int], top: Figure, rate: float) -> Finding:
    share = _share(network, best, top, rate)
    return Finding(
        question="How much of its matrix rate?",
        text=f"At minibatch {best.key} {network} gets {100 * share:.0f} % of the "
        f"{format_quantity(rate, 'FLOP/s')} that this device's fastest matrix product reaches.",
        value=100 * share,
        unit="%",
        doubts=best.doubts,
    )


def _share(network: str, group: Group[int], figure: Figure, rate: float) -> float:
    work = group.records[0].spec.work
    assert isinstance(work, TrainSteps)
    net = build_for(work)
    return utilisation(net, group.key, group.key / figure.value, rate)


def _table(groups: list[Group[int]], network: str, rate: float | None) -> Table:
    columns = [
        Column(name="minibatch"),
        Column(name="samples/s"),
        Column(name="step", unit="ms"),
        Column(name="a sample", unit="ms"),
        Column(name="memory", unit="MiB"),
    ]
    if rate:
        columns.append(Column(name="matrix use", unit="%", digits=2))
    return Table(
        title="",
        columns=tuple(columns),
        rows=tuple(_row(group, network, rate) for group in groups),
    )


def _row(group: Group[int], network: str, rate: float | None) -> tuple[Cell, ...]:
    figure = group.throughput
    name = Cell(text=str(group.key), run_id=group.run_id)
    if figure is None:
        return (name, *[group.cell(None)] * (5 if rate else 4))
    step_s, memory = group.median_of("step_s"), group.median_of("peak_memory_bytes")
    cells = [
        name,
        group.cell(figure),
        Cell(value=None if step_s is None else 1e3 * step_s),
        Cell(value=1e3 / figure.value),
        Cell(
            value=None if memory is None else memory / 2**20, reason="" if memory else "not known"
        ),
    ]
    if rate:
        cells.append(Cell(value=100 * _share(network, group, figure, rate)))
    return tuple(cells)


def _charts(network: str, groups: list[Group[int]]) -> Iterator[Chart]:
    minibatch = Axis(name="minibatch", scale="log2")
    points = tuple(g.point(g.key, g.throughput) for g in groups)
    if not points:
        return
    yield Chart(
        name=f"minibatch-{network}",
        title=f"{network}: samples/s by minibatch",
        kind="line",
        x=minibatch,
        y=Axis(name="throughput", unit="samples/s", from_zero=True),
        lines=(
            Line(name=network, points=points),
            *published_line(published_sweep(network, groups)),
        ),
    )


def _reduced(settings: Settings, groups: list[Group[int]]) -> Iterator[Warning]:
    if settings.batches or not groups or groups[-1].throughput is None:
        return
    last = groups[-1]
    if last.key == DOCUMENT_BATCHES[-1]:
        return
    ends = f"The minibatches end at {last.key}; the documents go on to {DOCUMENT_BATCHES[-1]}."
    if last.key == default_batches(settings.data)[-1]:
        samples = entry(settings.data).train_samples
        why = f"{settings.data} has {samples:,} samples to train with."
        yield warn("reduced", f"{ends} {why}", "Use data=synthetic for larger minibatches.")
        return
    step_s = last.median_of("step_s") or 0.0
    run_s = format_seconds(_run_s(2 * step_s, last.records[0].spec.effort))
    yield warn(
        "reduced",
        f"{ends} A run at {2 * last.key} would take some {run_s} here.",
        "Use --full, or name the minibatches with --set batches=….",
    )


def _above_ceiling(network: str, groups: list[Group[int]], rate: float | None) -> Iterator[Warning]:
    """More than all of a ceiling is an error of one of the two figures, or a fast algorithm."""
    done = [(g, f) for g in groups if (f := g.throughput) is not None]
    if not rate or not done:
        return
    share, worst = max((_share(network, g, f, rate), g.key) for g, f in done)
    if share > 1:
        yield warn(
            "above-ceiling",
            f"At minibatch {worst} training reaches {100 * share:.0f} % of the fastest matrix "
            "product: convolutions of 3×3 and more can run by Winograd's or an FFT algorithm, "
            "which need fewer operations than are counted.",
            "Compare rows by it, and read nothing into the absolute value.",
        )


def _notes(rate: float | None) -> tuple[str, ...]:
    notes = [
        "Forward, backward and update; samples over elapsed time. ± is the 95 % interval over the "
        "windows of one process; a fresh process can differ by more (repeats=3 shows it)."
    ]
    if rate:
        notes.append(
            "Matrix use is the network's matrix FLOPs per second over the fastest matrix product "
            f"measured on this device, {format_quantity(rate, 'FLOP/s')}."
        )
    return tuple(notes)


def _show(figure: Figure) -> str:
    return format_interval(figure.value, figure.low, figure.high)


EXPERIMENT = Experiment(
    name="minibatch",
    question="How do throughput, time per sample and memory change with the minibatch?",
    settings=Settings,
    works=(TrainSteps,),
    varies={"batch_per_device": "batches"},
    plan=plan,
    answer=answer,
    documents="000 (minibatch study), 001 figure 1",
)
