"""Where does the time of a training step go, and what is lost?

Each network is run at each minibatch with an attribution (docs/attribution.md): the measured step
as a sum of measured parts, its work by category, by layer and by runtime call. Document 004 counted
CUDA calls (figures 7, 9, 11, 13) and took the share of waiting for the GPU as a sign of its
computing; that share is told beside the parts, which say the same directly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments import reduction
from cubemesh.experiments.base import Context, Experiment, Plan, Scale
from cubemesh.experiments.conditions import titled
from cubemesh.experiments.groups import Group, doubts, group_by
from cubemesh.experiments.roofline import NOTE, rooflines
from cubemesh.experiments.use import ceilings
from cubemesh.measure.attribution import OTHER, PARTS
from cubemesh.measure.losses import biggest_loss
from cubemesh.model import (
    Answer,
    Axis,
    Breakdown,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    Point,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
    Warning,
    warn,
)

DOCUMENTED = (
    ("cifarnet", 192),
    ("alexnet", 256),
    ("googlenet", 256),
    ("resnet-50", 32),
    ("resnet-50", 64),
)
"""What figures 7, 9, 11 and 13 of document 004 (and its section 5.4) take apart."""
SMALL = (("little-cnn", 8),)
"""Where a step is short, and most is lost around it."""
LEAST = 8
"""The smallest minibatch that is chosen."""
MOST_LAYERS = 10
Key = tuple[str, int]
"""(network, minibatch)."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `time-breakdown` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to take apart; none given is document 004's four and LittleCNN, LittleCNN alone with
    --quick."""
    batches: tuple[int, ...] = ()
    """Minibatches of each; none given is the document's (8 of a network it has not), less on a
    CPU."""
    ceiling: bool = True
    """Whether to measure the fastest matrix product and copy too, to hold the layers against."""


def plan(settings: Settings, context: Context) -> Plan:
    """The ceilings that layers are held against, then a run with attribution for each network and
    minibatch."""
    effort = replace(context.effort, repeats=1)
    roof = ceilings(ProgramSettings(), effort) if settings.ceiling else []
    yield roof + [
        RunSpec(
            work=TrainSteps(
                network=network,
                batch_per_device=batch,
                image_size=reduction.image_size(network, context),
            ),
            effort=replace(context.effort, attribution=True),
        )
        for network, batch in _points(settings, context)
    ]


def _points(settings: Settings, context: Context) -> Sequence[Key]:
    """(network, minibatch), each once."""
    usual = SMALL if context.scale is Scale.QUICK else (*SMALL, *DOCUMENTED)
    networks = settings.networks or tuple(network for network, _ in usual)
    if settings.batches:
        return tuple(dict.fromkeys((n, b) for n in networks for b in settings.batches))
    known: dict[str, list[int]] = {}
    for network, batch in (*SMALL, *DOCUMENTED):
        known.setdefault(network, []).append(max(LEAST, reduction.batch(batch, context)))
    return tuple(dict.fromkeys((n, b) for n in networks for b in known.get(n, [LEAST])))


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `time-breakdown`."""
    steps = [r for r in records if isinstance(r.spec.work, TrainSteps)]
    groups = group_by(steps, _key)
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled("Where the time of a step goes", steps),
        findings=tuple(_findings(groups)),
        tables=(
            *_attributions(groups),
            *_by(groups, "category", "Work of a step by category"),
            *_layers(groups),
            *_by(groups, "runtime call", "Calls into the device's runtime in a step"),
        ),
        charts=(*_chart(groups), *rooflines(r for g in groups if (r := _told(g)))),
        warnings=(*_reductions(steps), *(w for r in records for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            NOTE,
            "Every part but other is measured by itself; other is the mean step less all parts, "
            "and says how far they can be believed. docs/attribution.md has what each part is.",
            "Categories, layers and runtime calls are of profiled steps. Their rows may overlap in "
            "time: they add up to the profiler's total, not to the step.",
        ),
    )


def _reductions(records: Sequence[RunRecord]) -> tuple[Warning, ...]:
    """The warning `reduced` where networks of the document were run at less than it ran them."""
    told = []
    for group in group_by(records, lambda r: _key(r)[0]):
        documented = [batch for network, batch in DOCUMENTED if network == group.key]
        largest = max(_key(r)[1] for r in group.records)
        if documented and largest < max(documented):
            told.append(f"{group.key} at minibatch {largest} for {max(documented)}")
    if not told:
        return ()
    cause = f"Less than the document: {', '.join(told)}. {reduction.RULE}"
    return (warn("reduced", cause, "Use --full, or name the settings."),)


def _key(record: RunRecord) -> Key:
    assert isinstance(record.spec.work, TrainSteps)
    return record.spec.work.network, record.spec.work.batch_per_device


def _told(group: Group[Key]) -> RunRecord | None:
    """The record that stands for a point: its first with an attribution."""
    return next((r for r in group.ok if r.parts), None)


def _name(key: Key) -> str:
    return f"{key[0]}, {key[1]}"


def _why(group: Group[Key]) -> str:
    return "run without attribution" if group.ok else group.why


def _findings(groups: Sequence[Group[Key]]) -> Iterator[Finding]:
    found = [
        (group, loss)
        for group in groups
        if (record := _told(group)) and (loss := biggest_loss(record.parts, record.spec))
    ]
    worst = max(found, key=lambda pair: pair[1].share, default=None)
    for group, loss in found:
        card = worst is not None and group is worst[0] and loss.name != ""
        yield Finding(
            text=f"{group.key[0]}: {loss.text}.",
            question="What does a step lose most time to?" if card else None,
            value=100 * loss.share if card else None,
            unit=f"% {loss.name.replace('_', ' ')}" if card else "",
            remedy=f"{loss.remedy[0].upper()}{loss.remedy[1:]}." if loss.remedy else "",
            doubts=doubts(group),
        )
    for group in groups:
        if _told(group) is None:
            yield Finding(text=f"{_name(group.key)}: {_why(group)}.")


def _attributions(groups: Sequence[Group[Key]]) -> Iterator[Table]:
    names = [n for n in PARTS if any(n in _shares(group) for group in groups)]
    columns = (
        Column(name="network"),
        Column(name="minibatch"),
        Column(name="step", unit="ms"),
        *(Column(name=name.replace("_", " "), unit="%") for name in names),
        Column(name="profiled step", unit="x"),
        *(Column(name=words, unit="%") for _, words in _own_figures(groups)),
    )
    rows = tuple(_attribution_row(group, names, groups) for group in groups)
    yield Table(title="The mean step as a sum", columns=columns, rows=rows)


_FIGURES = (("device_busy_percent", "device busy"), ("occupancy_percent", "occupancy"))


def _own_figures(groups: Sequence[Group[Key]]) -> tuple[tuple[str, str], ...]:
    """Those that some run has: a CPU has neither."""
    return tuple(
        pair for pair in _FIGURES if any(pair[0] in r.figures for g in groups for r in g.ok)
    )


def _attribution_row(
    group: Group[Key], names: Sequence[str], groups: Sequence[Group[Key]]
) -> tuple[Cell, ...]:
    head = (Cell(text=group.key[0]), Cell(text=str(group.key[1])))
    record, figures = _told(group), _own_figures(groups)
    if record is None:
        return (*head, *(Cell(reason=_why(group)) for _ in range(2 + len(names) + len(figures))))
    shares, step_s = _shares(group), _step_s(record)
    profiled = record.figure("profiled_step_s")
    return (
        *head,
        Cell(value=1e3 * step_s, run_id=record.run_id),
        *(_percent(shares.get(name), record) for name in names),
        Cell(value=profiled / step_s, run_id=record.run_id) if profiled else Cell(text="–"),
        *(_figure(record, name) for name, _ in figures),
    )


def _percent(share: float | None, record: RunRecord) -> Cell:
    return Cell(text="–") if share is None else Cell(value=100 * share, run_id=record.run_id)


def _figure(record: RunRecord, name: str) -> Cell:
    value = record.figure(name)
    return Cell(text="–") if value is None else Cell(value=value, run_id=record.run_id)


def _step_s(record: RunRecord) -> float:
    return math.fsum(part.seconds for part in record.parts)


def _shares(group: Group[Key]) -> dict[str, float]:
    record = _told(group)
    if record is None:
        return {}
    step_s = _step_s(record)
    return {part.name: part.seconds / step_s for part in record.parts}


def _chart(groups: Sequence[Group[Key]]) -> tuple[Chart, ...]:
    told = [group for group in groups if _told(group)]
    if not told:
        return ()
    names = [n for n in PARTS if any(n in _shares(group) for group in told)]
    lines = tuple(
        Line(
            name=name.replace("_", " "),
            points=tuple(
                Point(
                    x=_name(group.key),
                    y=max(0.0, 100 * _shares(group).get(name, 0.0)),
                    run_id=group.run_id,
                )
                for group in told
            ),
            role="reference" if name == OTHER else "measured",
        )
        for name in names
    )
    chart = Chart(
        name="time-breakdown",
        title="The mean step as a sum, by network and minibatch",
        kind="bar",
        x=Axis(name="network, minibatch", scale="category"),
        y=Axis(name="of the step", unit="%", from_zero=True),
        lines=lines,
        stacked=True,
    )
    return (chart,)


def _breakdown(group: Group[Key], name: str) -> Breakdown | None:
    record = _told(group)
    return next((b for b in record.breakdowns if b.name == name), None) if record else None


def _by(groups: Sequence[Group[Key]], name: str, title: str) -> Iterator[Table]:
    """Rows by the longest anywhere first, a column for each point."""
    found = [(group, b) for group in groups if (b := _breakdown(group, name)) is not None]
    if not found:
        return
    longest: dict[str, float] = {}
    for _, breakdown in found:
        total = math.fsum(row.seconds for row in breakdown.rows)
        for row in breakdown.rows:
            longest[row.name] = max(longest.get(row.name, 0.0), row.seconds / total if total else 0)
    columns = (Column(name=name), *(Column(name=_name(g.key), unit="ms") for g, _ in found))
    rows = tuple(
        (Cell(text=row), *(_seconds(breakdown, row, group) for group, breakdown in found))
        for row in sorted(longest, key=lambda row: -longest[row])
    )
    yield Table(title=title, columns=columns, rows=rows)


def _seconds(breakdown: Breakdown, name: str, group: Group[Key]) -> Cell:
    row = next((r for r in breakdown.rows if r.name == name), None)
    return Cell(text="–") if row is None else Cell(value=1e3 * row.seconds, run_id=group.run_id)


def _layers(groups: Sequence[Group[Key]]) -> Iterator[Table]:
    """The longest layers of each network, at its largest minibatch that was taken apart."""
    largest: dict[str, tuple[Group[Key], Breakdown]] = {}
    for group in sorted(groups, key=lambda g: g.key[1]):
        breakdown = _breakdown(group, "layer")
        if breakdown is not None:
            largest[group.key[0]] = group, breakdown
    for network, (group, breakdown) in largest.items():
        total = math.fsum(row.seconds for row in breakdown.rows)
        rows = tuple(
            (
                Cell(text=row.name),
                Cell(value=1e3 * row.seconds, run_id=group.run_id),
                Cell(value=100 * row.seconds / total if total else 0.0, run_id=group.run_id),
            )
            for row in breakdown.rows[:MOST_LAYERS]
        )
        columns = (
            Column(name="layer"),
            Column(name="a step", unit="ms"),
            Column(name="of all work", unit="%"),
        )
        title = f"{network} at minibatch {group.key[1]}: layers that take longest"
        if len(breakdown.rows) > MOST_LAYERS:
            title += f", {MOST_LAYERS} of {len(breakdown.rows)}"
        yield Table(title=title, columns=columns, rows=rows)


EXPERIMENT = Experiment(
    name="time-breakdown",
    question="Where does the time of a training step go, and what is lost?",
    settings=Settings,
    works=(TrainSteps,),
    varies={"network": "networks", "batch_per_device": "batches"},
    plan=plan,
    answer=answer,
    documents="004 figures 7, 9, 11 and 13",
)
