"""The table, the chart and the findings of `cpu-modes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.groups import Group, caveats, group_by
from cubemesh.experiments.analysis.ratios import format_ratio, plus_minus, ratio, significance
from cubemesh.schema import Axis, Cell, Chart, Column, Figure, Finding, Line, RunRecord, Table
from cubemesh.schema.spec import Layout, Pinning
from cubemesh.units import format_list


@dataclass(frozen=True)
class CpuMode:
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


def mode_of(record: RunRecord) -> CpuMode:
    """The arrangement a record was measured in."""
    place = record.spec.placement
    threads = place.threads or (record.ranks[0].threads if record.ranks else None) or 0
    return CpuMode(threads, place.pinning, place.numa_node, record.spec.program.layout)


def rate_of(group: Group[CpuMode]) -> Figure:
    """The throughput of an arrangement that was measured."""
    figure = group.throughput
    assert figure is not None, "only arrangements that were measured are ranked"
    return figure


def table(groups: Sequence[Group[CpuMode]], ranked: Sequence[Group[CpuMode]]) -> Table:
    """A row an arrangement, the fastest first; what was not measured last, with its reason."""
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
        share = ratio(figure, rate_of(ranked[0])) if figure and ranked else None
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


def charts(network: str, ranked: Sequence[Group[CpuMode]]) -> Iterator[Chart]:
    """A bar for each arrangement that was measured, the fastest first."""
    if ranked:
        yield Chart(
            name=f"cpu-modes-{network}",
            title=f"{network}: samples/s by arrangement",
            kind="bar",
            x=Axis(name="arrangement", scale="category"),
            y=Axis(name="throughput", unit="samples/s", from_zero=True),
            lines=(
                Line(
                    name=network,
                    points=tuple(g.point(g.key.words, g.throughput) for g in ranked),
                ),
            ),
        )


def findings(
    network: str, groups: Sequence[Group[CpuMode]], ranked: Sequence[Group[CpuMode]]
) -> Iterator[Finding]:
    """Which arrangement wins and by how much, what is level with it, and what each choice does."""
    if not ranked:
        if groups:
            yield Finding(text=f"No arrangement was measured. {groups[0].why}.")
        return
    best, top = ranked[0], rate_of(ranked[0])
    usual = usual_of(groups)
    level = [g for g in ranked[1:] if significance(ratio(top, rate_of(g))) <= 0]
    if usual is None:
        text = f"{best.key.words} trains {network} fastest here, at {plus_minus(top)} samples/s"
        yield Finding(
            question="Which arrangement?", text=f"{text}.", value=top.value, unit="samples/s"
        )
    else:
        yield _against_usual(network, best, usual)
    if level:
        names = format_list(g.key.words for g in level[:4])
        more = f" and {len(level) - 4} more" if len(level) > 4 else ""
        yield Finding(
            text=f"Level with the fastest ({best.key.words}), as far as the intervals can tell: "
            f"{names}{more}.",
            caveats=caveats(best, *level),
        )
    yield from _effects(ranked)
    for group in groups:
        if group.throughput is None:
            yield Finding(text=f"{group.key.words}: {group.why}.")


def usual_of(groups: Sequence[Group[CpuMode]]) -> Group[CpuMode] | None:
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
    groups = group_by(records, mode_of)
    usual = usual_of(groups)
    if usual is None:
        return None
    best = max((g for g in groups if g.throughput is not None), key=lambda g: rate_of(g).value)
    return best.key.words, ratio(rate_of(best), rate_of(usual))


def _against_usual(network: str, best: Group[CpuMode], usual: Group[CpuMode]) -> Finding:
    found = ratio(rate_of(best), rate_of(usual))
    disturbed = caveats(best, usual)
    if disturbed:
        return Finding(
            text=f"Which arrangement is fastest cannot be told: {best.key.words} ran at "
            f"{format_ratio(found)} of the unbound {usual.key.words}, but a run of the two was "
            "disturbed.",
            remedy="Measure again on a quiet machine (--no-cache).",
            caveats=disturbed,
        )
    if significance(found) > 0:
        remedy = _remedy(best.key)
        return Finding(
            question="Which arrangement?",
            text=f"{best.key.words} trains {network} {format_ratio(found)} as fast as the "
            f"unbound {usual.key.words}.",
            value=found.value,
            unit="× the speed",
            low=found.low,
            high=found.high,
            remedy=remedy,
        )
    return Finding(
        question="Which arrangement?",
        text=f"No arrangement trains {network} faster than the unbound {usual.key.words}, "
        f"as far as the intervals can tell: the fastest, {best.key.words}, is at "
        f"{format_ratio(found)} of it.",
        value=found.value,
        unit="× the speed",
        low=found.low,
        high=found.high,
    )


def _remedy(mode: CpuMode) -> str:
    told = [f"threads={mode.threads}"]
    if mode.pinning != "none":
        told.append(f"pinning={mode.pinning}")
    if mode.node is not None:
        told.append(f"numa_node={mode.node}")
    if mode.layout != "nchw":
        told.append(f"layout={mode.layout}")
    return f"Train with --set {' --set '.join(told)}."


def _effects(ranked: Sequence[Group[CpuMode]]) -> Iterator[Finding]:
    """What each choice alone does, beside the fastest arrangement that differs in nothing else."""
    best = ranked[0]
    choices: dict[str, tuple[str, str]] = {
        "layout": ("The layout", "{}"),
        "pinning": ("Pinning", "{}"),
        "threads": ("The number of threads", "{} of them"),
    }
    for name, (words, spoken) in choices.items():
        others = [g for g in ranked[1:] if _only(name, g.key, best.key)]
        told = [
            f"{spoken.format(getattr(g.key, name))} "
            f"{format_ratio(ratio(rate_of(g), rate_of(best)))} as fast"
            for g in others
        ]
        if told:
            base = spoken.format(getattr(best.key, name))
            yield Finding(
                text=f"{words}, all else being the same: against {base}, {format_list(told)}.",
                caveats=caveats(best, *others),
            )


def _only(name: str, mode: CpuMode, best: CpuMode) -> bool:
    """Whether two arrangements differ in `name` and nothing else."""
    return mode != best and replace(mode, **{name: getattr(best, name)}) == best
