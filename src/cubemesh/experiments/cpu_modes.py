"""Which arrangement of threads, processors and memory trains fastest on this CPU?

Document 004 compares clustering and memory modes of a KNL (figure 5), which its firmware sets. What
any processor leaves to its user is compared here: how many threads compute; whether they are bound
to as many processors near one another, far apart, or not at all (worker/pinning.py); the order of
the image axes in memory; and, where there is more than one NUMA node, whether threads and memory
stay on one. Each arrangement is measured in fresh processes, because on a CPU these differ from one
another by more than the windows of one; the interval covers both. The *usual* arrangement is what
cubemesh takes where nothing is set: a thread for each usable core, unbound, nchw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.base import Context, Experiment, Plan, Scale
from cubemesh.experiments.groups import Group, doubts, group_by
from cubemesh.experiments.matrix import listed
from cubemesh.experiments.ratios import called, ratio, show_ratio
from cubemesh.model import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    Machine,
    NetworkWork,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
    Warning,
    warn,
)
from cubemesh.model.spec import Layout, Pinning
from cubemesh.units import format_interval

NETWORK, BATCH = "little-cnn", 64
REPEATS = {Scale.QUICK: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
"""Fresh processes of each arrangement."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `cpu-modes` besides the fields of its specs."""

    network: str = NETWORK
    """The network to train."""
    batch_per_device: int = BATCH
    """The minibatch."""
    threads: tuple[int, ...] = ()
    """Counts of threads; none given is one, half of the usable cores, all of them, and a thread for
    every logical processor where there are more. --quick takes the half and all."""
    pinnings: tuple[Pinning, ...] = ("none", "compact", "spread")
    """How threads are bound to processors. Where there are as many threads as processors, binding
    them to all leaves everything as it is, and is left out."""
    layouts: tuple[Layout, ...] = ("nchw", "nhwc")
    """Orders of the image axes in memory."""


@dataclass(frozen=True)
class Mode:
    """One arrangement."""

    threads: int
    pinning: Pinning
    node: int | None
    layout: Layout

    @property
    def words(self) -> str:
        """`2 threads, spread, nhwc`."""
        parts = [f"{self.threads} thread{'' if self.threads == 1 else 's'}"]
        if self.node is not None:
            parts.append(f"node {self.node}")
        if self.pinning != "none":
            parts.append(self.pinning)
        return ", ".join([*parts, self.layout])


def plan(settings: Settings, context: Context) -> Plan:
    """Every arrangement that differs from the others on this machine."""
    effort = replace(context.effort, repeats=REPEATS[context.scale])
    yield [
        RunSpec(
            work=TrainSteps(network=settings.network, batch_per_device=settings.batch_per_device),
            placement=Placement(
                device="cpu", threads=mode.threads, pinning=mode.pinning, numa_node=mode.node
            ),
            program=ProgramSettings(layout=mode.layout),
            effort=effort,
        )
        for mode in modes(settings, context.machine, context.scale)
    ]


def modes(settings: Settings, machine: Machine, scale: Scale) -> list[Mode]:
    """The arrangements to measure, the usual one first."""
    cpu = machine.cpu
    usable = cpu.usable_cores
    logical = cpu.affinity_cores or cpu.logical_cores or usable
    counts = settings.threads or _counts(usable, logical, scale)
    found = []
    for threads in counts:
        for node, room in [(None, logical), *_nodes(machine)]:
            if node is not None and threads > room:
                continue
            for pinning in settings.pinnings:
                bound = pinning != "none"
                # One thread is as far from the others as it is near.
                if bound and (threads >= room or (threads == 1 and pinning == "spread")):
                    continue
                found += [Mode(threads, pinning, node, layout) for layout in settings.layouts]
    usual = Mode(usable, "none", None, "nchw")
    return sorted(dict.fromkeys(found), key=lambda mode: mode != usual)  # keeps the others' order


def _counts(usable: int, logical: int, scale: Scale) -> list[int]:
    half = max(1, usable // 2)
    if scale is Scale.QUICK:
        return sorted({half, usable})
    return sorted({1, half, usable, logical})


def _nodes(machine: Machine) -> list[tuple[int, int]]:
    """The first NUMA node and how many processors it has; nothing where there is but one node."""
    nodes = [n for n in machine.cpu.numa_nodes if n.cpus]
    return [(nodes[0].node, len(nodes[0].cpus))] if len(nodes) > 1 else []


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and chart from the records of one `cpu-modes`."""
    groups = group_by(records, _mode)
    done = [g for g in groups if g.throughput is not None]
    ranked = sorted(done, key=lambda g: -_rate(g).value)
    steps = [r for r in records if isinstance(r.spec.work, NetworkWork)]
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=f"Arrangements of {settings.network}, minibatch {settings.batch_per_device}",
        findings=tuple(_findings(settings, groups, ranked)),
        tables=(_table(groups, ranked),) if groups else (),
        charts=tuple(_charts(settings, ranked)),
        warnings=(*_reduced(steps), *(w for r in records for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            "Bound threads may use as many processors as they are, near one another (compact) or "
            "far apart (spread). ± covers the windows and the processes of an arrangement; those "
            "whose ratio to the fastest holds 1, or lies within 3 % of it, count as level.",
            "Document 004 figure 5 compares clustering and memory modes of a KNL, which its "
            "firmware sets.",
        ),
    )


def _mode(record: RunRecord) -> Mode:
    place = record.spec.placement
    threads = place.threads or (record.ranks[0].threads if record.ranks else None) or 0
    return Mode(threads, place.pinning, place.numa_node, record.spec.program.layout)


def _rate(group: Group[Mode]) -> Figure:
    figure = group.throughput
    assert figure is not None, "only arrangements that were measured are ranked"
    return figure


def _table(groups: Sequence[Group[Mode]], ranked: Sequence[Group[Mode]]) -> Table:
    columns = (
        Column(name="threads"),
        Column(name="pinning"),
        Column(name="NUMA node"),
        Column(name="layout"),
        Column(name="samples/s"),
        Column(name="of the fastest"),
        Column(name="processes"),
    )
    rows = []
    for group in [*ranked, *(g for g in groups if g.throughput is None)]:
        mode = group.key
        node = "all" if mode.node is None else str(mode.node)
        figure = group.throughput
        share = ratio(figure, _rate(ranked[0])) if figure and ranked else None
        rows.append(
            (
                Cell(text=str(mode.threads), run_id=group.run_id),
                Cell(text=mode.pinning),
                Cell(text=node),
                Cell(text=mode.layout),
                group.cell(figure),
                group.cell(share) if group is not ranked[0] else Cell(text="fastest"),
                Cell(value=len(group.ok)) if group.ok else group.cell(None),
            )
            if figure
            else (
                Cell(text=str(mode.threads), run_id=group.run_id),
                Cell(text=mode.pinning),
                Cell(text=node),
                Cell(text=mode.layout),
                *[group.cell(None)] * 3,
            )
        )
    return Table(title="", columns=columns, rows=tuple(rows))


def _charts(settings: Settings, ranked: Sequence[Group[Mode]]) -> Iterator[Chart]:
    if ranked:
        yield Chart(
            name=f"cpu-modes-{settings.network}",
            title=f"{settings.network}: samples/s by arrangement",
            kind="bar",
            x=Axis(name="arrangement", scale="category"),
            y=Axis(name="throughput", unit="samples/s", from_zero=True),
            lines=(
                Line(
                    name=settings.network,
                    points=tuple(g.point(g.key.words, g.throughput) for g in ranked),
                ),
            ),
        )


def _findings(
    settings: Settings, groups: Sequence[Group[Mode]], ranked: Sequence[Group[Mode]]
) -> Iterator[Finding]:
    if not ranked:
        if groups:
            yield Finding(text=f"No arrangement was measured. {groups[0].why}.")
        return
    best, top = ranked[0], _rate(ranked[0])
    usual = usual_of(groups)
    level = [g for g in ranked[1:] if called(ratio(top, _rate(g))) <= 0]
    if usual is None:
        text = f"{best.key.words} trains {settings.network} fastest here, at {_show(top)} samples/s"
        yield Finding(
            question="Which arrangement?", text=f"{text}.", value=top.value, unit="samples/s"
        )
    else:
        yield _against_usual(settings, best, usual)
    if level:
        names = listed(g.key.words for g in level[:4])
        more = f" and {len(level) - 4} more" if len(level) > 4 else ""
        yield Finding(
            text=f"Level with the fastest ({best.key.words}), as far as the intervals can tell: "
            f"{names}{more}.",
            doubts=doubts(best, *level),
        )
    yield from _effects(ranked)
    for group in groups:
        if group.throughput is None:
            yield Finding(text=f"{group.key.words}: {group.why}.")


def usual_of(groups: Sequence[Group[Mode]]) -> Group[Mode] | None:
    """The arrangement that a plan asks for first, which is the usual one where that was among the
    settings; None where it was not measured, or something in it was named."""
    first = groups[0] if groups else None
    if first is None or first.throughput is None:
        return None
    mode = first.key
    return first if (mode.pinning, mode.node, mode.layout) == ("none", None, "nchw") else None


def gain(records: Sequence[RunRecord]) -> tuple[str, Figure] | None:
    """The fastest arrangement in words, and its throughput as a multiple of the usual one's; None
    where these were not measured."""
    groups = group_by(records, _mode)
    usual = usual_of(groups)
    if usual is None:
        return None
    best = max((g for g in groups if g.throughput is not None), key=lambda g: _rate(g).value)
    return best.key.words, ratio(_rate(best), _rate(usual))


def _against_usual(settings: Settings, best: Group[Mode], usual: Group[Mode]) -> Finding:
    found = ratio(_rate(best), _rate(usual))
    if called(found) > 0:
        remedy = _remedy(best.key)
        return Finding(
            question="Which arrangement?",
            text=f"{best.key.words} trains {settings.network} {show_ratio(found)} as fast as the "
            f"unbound {usual.key.words}.",
            value=found.value,
            unit="× the speed",
            low=found.low,
            high=found.high,
            remedy=remedy,
            doubts=doubts(best, usual),
        )
    return Finding(
        question="Which arrangement?",
        text=f"No arrangement trains {settings.network} faster than the unbound {usual.key.words}, "
        f"as far as the intervals can tell: the fastest, {best.key.words}, is at "
        f"{show_ratio(found)} of it.",
        value=found.value,
        unit="× the speed",
        low=found.low,
        high=found.high,
        doubts=doubts(best, usual),
    )


def _remedy(mode: Mode) -> str:
    told = [f"threads={mode.threads}"]
    if mode.pinning != "none":
        told.append(f"pinning={mode.pinning}")
    if mode.node is not None:
        told.append(f"numa_node={mode.node}")
    if mode.layout != "nchw":
        told.append(f"layout={mode.layout}")
    return f"Train with --set {' --set '.join(told)}."


def _effects(ranked: Sequence[Group[Mode]]) -> Iterator[Finding]:
    """What each choice alone does, beside the fastest arrangement that differs in nothing else."""
    best = ranked[0]
    names = {"layout": "The layout", "pinning": "Pinning", "threads": "The number of threads"}
    for name, words in names.items():
        others = [g for g in ranked[1:] if _only(name, g.key, best.key)]
        told = [
            f"{getattr(g.key, name)} {show_ratio(ratio(_rate(g), _rate(best)))}" for g in others
        ]
        if told:
            yield Finding(
                text=f"{words}: against {getattr(best.key, name)}, all else being the same, "
                f"{listed(told)} as fast.",
                doubts=doubts(best, *others),
            )


def _only(name: str, mode: Mode, best: Mode) -> bool:
    """Whether two arrangements differ in `name` and nothing else."""
    return mode != best and replace(mode, **{name: getattr(best, name)}) == best


def _reduced(records: Sequence[RunRecord]) -> tuple[Warning, ...]:
    repeats = {r.spec.effort.repeats for r in records}
    if not repeats or min(repeats) >= REPEATS[Scale.DEFAULT]:
        return ()
    return (
        warn(
            "reduced",
            f"Each arrangement ran in {min(repeats)} process{'' if min(repeats) == 1 else 'es'}, "
            "and processes differ: the intervals are too narrow to call small differences.",
            "Leave --quick out, or set repeats=3.",
        ),
    )


def _show(figure: Figure) -> str:
    return format_interval(figure.value, figure.low, figure.high)


EXPERIMENT = Experiment(
    name="cpu-modes",
    question="Which arrangement of threads, processors and memory trains fastest on this CPU?",
    settings=Settings,
    works=(TrainSteps,),
    varies={
        "pinning": "pinnings",
        "numa_node": "pinnings",
        "layout": "layouts",
        "device": "threads",
    },
    plan=plan,
    answer=answer,
    documents="004 figure 5",
)
