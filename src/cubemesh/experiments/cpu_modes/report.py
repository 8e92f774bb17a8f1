"""Table, chart and findings of `cpu-modes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.answer import failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit
from cubemesh.experiments.analysis.ratios import format_ratio, plus_minus, ratio, verdicts
from cubemesh.networks import rate_unit
from cubemesh.schema import Axis, Cell, Chart, Column, Figure, Finding, Line, RunRecord, Table
from cubemesh.schema.spec import HugePages, Layout, MemoryPolicy, Pinning
from cubemesh.units import format_list


@dataclass(frozen=True)
class CpuMode:
    """One configuration."""

    threads: int
    pinning: Pinning
    node: int | None
    layout: Layout
    memory_policy: MemoryPolicy = "default"
    huge_pages: HugePages = "default"

    @property
    def words(self) -> str:
        """`2 threads, spread, nhwc`."""
        parts = [f"{self.threads} thread{'' if self.threads == 1 else 's'}"]
        if self.node is not None:
            parts.append(f"node {self.node}")
        if self.pinning != "none":
            parts.append(self.pinning)
        parts.append(self.layout)
        if self.memory_policy != "default":
            parts.append(f"memory {self.memory_policy}")
        if self.huge_pages == "never":
            parts.append("no huge pages")
        return ", ".join(parts)


def mode_of(record: RunRecord) -> CpuMode:
    """The configuration of a record."""
    place = record.spec.placement
    threads = place.threads or (record.ranks[0].threads if record.ranks else None) or 0
    return CpuMode(
        threads,
        place.pinning,
        place.numa_node,
        record.spec.program.layout,
        place.memory_policy,
        place.huge_pages,
    )


def rate_of(group: Group[CpuMode]) -> Figure:
    """Throughput of a configuration that ran."""
    figure = group.throughput
    assert figure is not None, "only configurations that ran are ranked"
    return figure


def table(groups: Sequence[Group[CpuMode]], ranked: Sequence[Group[CpuMode]]) -> Table:
    """A row per configuration, the fastest first, failed ones last."""
    columns = (
        Column(name="threads"),
        Column(name="pinning"),
        Column(name="NUMA node"),
        Column(name="layout"),
        Column(name=throughput_unit(r for g in groups for r in g.records)),
        Column(name="vs fastest"),
        Column(name="processes"),
        Column(name="memory policy"),
        Column(name="huge pages"),
    )
    rows = []
    for group in [*ranked, *(g for g in groups if g.throughput is None)]:
        mode = group.key
        node = "all" if mode.node is None else str(mode.node)
        figure = group.throughput
        measured = [group.cell(None)] * 3
        if figure:
            best = group is ranked[0]
            share = Cell(text="fastest") if best else group.cell(ratio(figure, rate_of(ranked[0])))
            measured = [group.cell(figure), share, Cell(value=len(group.ok))]
        rows.append(
            (
                Cell(text=str(mode.threads), run_id=group.run_id),
                Cell(text=mode.pinning),
                Cell(text=node),
                Cell(text=mode.layout),
                *measured,
                Cell(text=mode.memory_policy),
                Cell(text=mode.huge_pages),
            )
        )
    return Table(title="", columns=columns, rows=tuple(rows))


def charts(network: str, ranked: Sequence[Group[CpuMode]]) -> Iterator[Chart]:
    """A bar for each configuration that ran, the fastest first."""
    if ranked:
        yield Chart(
            name=f"cpu-modes-{network}",
            title=f"{network}: {rate_unit(network)} by CPU configuration",
            kind="bar",
            x=Axis(name="configuration", scale="category"),
            y=Axis(name="throughput", unit=rate_unit(network), from_zero=True),
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
    """The fastest configuration, those without a significant difference, and each effect."""
    if not ranked:
        if groups:
            yield Finding(
                code="nothing-measured", text=f"No configuration was measured: {groups[0].why}."
            )
        return
    best, top = ranked[0], rate_of(ranked[0])
    default = default_of(groups)
    judged = verdicts([ratio(top, rate_of(g)) for g in ranked[1:]])
    same = [(g, v) for g, v in zip(ranked[1:], judged, strict=True) if v.sign <= 0]
    equal = [g for g, _ in same]
    if len(ranked) == 1:
        yield Finding(
            code="single-configuration",
            text=f"{network} trains at {plus_minus(top)} {rate_unit(network)} with "
            f"{best.key.words}. Only this configuration was measured: no comparison.",
            value=top.value,
            unit=rate_unit(network),
        )
    elif default is None:
        yield Finding(
            code="fastest-configuration",
            question=QUESTION,
            text=f"{network} trains fastest with {best.key.words}: {plus_minus(top)} "
            f"{rate_unit(network)}.",
            value=top.value,
            unit=rate_unit(network),
        )
    else:
        yield _versus_default(network, best, default)
    if equal:
        names = format_list(g.key.words for g in equal[:4])
        more = f" and {len(equal) - 4} more" if len(equal) > 4 else ""
        yield Finding(
            code="equal-configurations",
            text=f"No significant difference from the fastest ({best.key.words}): {names}{more}; "
            f"{max((v for _, v in same), key=lambda v: v.least).unseen}.",
            caveats=caveats(best, *equal),
        )
    yield from _effects(ranked)
    for group in groups:
        if group.throughput is None:
            yield failed_run(group.key.words, group)


def default_of(groups: Sequence[Group[CpuMode]]) -> Group[CpuMode] | None:
    """The default configuration, which a plan runs first; None if it was not measured."""
    first = groups[0] if groups else None
    if first is None or first.throughput is None:
        return None
    mode = first.key
    return first if mode == CpuMode(mode.threads, "none", None, "nchw") else None


def gain(records: Sequence[RunRecord]) -> tuple[str, Figure] | None:
    """The fastest configuration in words, and its throughput relative to the default; None
    unless the default and another one were measured."""
    groups = group_by(records, mode_of)
    default = default_of(groups)
    measured = [group for group in groups if group.throughput is not None]
    if default is None or len(measured) == 1:
        return None
    best = max(measured, key=lambda g: rate_of(g).value)
    return best.key.words, ratio(rate_of(best), rate_of(default))


QUESTION = "Which CPU configuration is fastest?"


def _versus_default(network: str, best: Group[CpuMode], default: Group[CpuMode]) -> Finding:
    found = ratio(rate_of(best), rate_of(default))
    noisy = caveats(best, default)
    if noisy:
        return Finding(
            code="noisy-runs",
            text=f"Inconclusive: {best.key.words} ran at {format_ratio(found)} the speed of the "
            f"default ({default.key.words}), but one of the runs is noisy.",
            remedy="Measure again on a quiet machine (--no-cache).",
            caveats=noisy,
        )
    verdict = verdicts([found])[0]
    if verdict.sign > 0:
        return Finding.of(
            code="fastest-configuration",
            question=QUESTION,
            text=f"{network} trains fastest with {best.key.words}: {format_ratio(found)} the speed "
            f"of the default ({default.key.words}).",
            figure=found,
            unit="× the speed",
            remedy=_remedy(best.key),
        )
    return Finding.of(
        code="default-fastest",
        question=QUESTION,
        text=f"No configuration trains {network} significantly faster than the default "
        f"({default.key.words}): the fastest, {best.key.words}, is at {format_ratio(found)}; "
        f"{verdict.unseen}.",
        figure=found,
        unit="× the speed",
    )


def _remedy(mode: CpuMode) -> str:
    changes = [f"threads={mode.threads}"]
    if mode.pinning != "none":
        changes.append(f"pinning={mode.pinning}")
    if mode.node is not None:
        changes.append(f"numa_node={mode.node}")
    if mode.layout != "nchw":
        changes.append(f"layout={mode.layout}")
    if mode.memory_policy != "default":
        changes.append(f"memory_policy={mode.memory_policy}")
    if mode.huge_pages != "default":
        changes.append(f"huge_pages={mode.huge_pages}")
    return f"Train with --set {' --set '.join(changes)}."


def _effects(ranked: Sequence[Group[CpuMode]]) -> Iterator[Finding]:
    """Effect of each choice: the fastest configuration with only that choice changed. Memory is
    compared in the default configuration, which alone has all its choices."""
    for name, words in EFFECTS.items():
        best = ranked[0]
        if name in ("memory_policy", "huge_pages"):
            varied = next((g.key for g in ranked if getattr(g.key, name) != "default"), best.key)
            base = replace(varied, memory_policy="default", huge_pages="default")
            best = next((g for g in ranked if g.key == base), best)
        others = [g for g in ranked if _only(name, g.key, best.key)]
        if others:
            speeds = (
                f"{getattr(g.key, name)} {format_ratio(ratio(rate_of(g), rate_of(best)))}"
                for g in others
            )
            yield Finding(
                code=f"{name.replace('_', '-')}-effect",
                text=f"Speed by {words}, otherwise equal, relative to {getattr(best.key, name)}: "
                f"{format_list(speeds)}.",
                caveats=caveats(best, *others),
            )


EFFECTS = {
    "layout": "layout",
    "pinning": "pinning",
    "threads": "threads",
    "memory_policy": "memory policy",
    "huge_pages": "huge pages",
}
"""Choice → its name in words."""


def _only(name: str, mode: CpuMode, best: CpuMode) -> bool:
    """Whether two configurations only differ in `name`."""
    return mode != best and replace(mode, **{name: getattr(best, name)}) == best
