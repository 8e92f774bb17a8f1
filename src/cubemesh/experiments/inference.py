"""Inference: latency and throughput of each installed engine by batch size.

Requests follow one another (MLPerf's SingleStream): the next batch is passed when the scores of the
last one are on the host, and the time of each is recorded. On a GPU batches are also queued without
waiting (Offline). Engines compute the same network with the same weights, each in a process of its
own. DGX-1 V100 white paper [002], section 5.10, has TensorRT for this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cubemesh.experiments.analysis.answer import answer_of, cell_or_dash, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit, titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.analysis.ratios import format_ratio, plus_minus, ratio, verdicts
from cubemesh.experiments.analysis.utilization_columns import (
    known_figures,
    utilization_cells,
    utilization_columns,
)
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.inference.plan_file import describe_plan
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Infer,
    Line,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
)
from cubemesh.schema.spec import Layout, Precision
from cubemesh.schema.work import Scenario
from cubemesh.statistics import median

CPU_BATCHES, GPU_BATCHES = (1, 8, 32), (1, 32, 256)
LATENCIES = {
    "latency_p50_s": "p50",
    "latency_p90_s": "p90",
    "latency_p99_s": "p99",
    "latency_p999_s": "p99.9",
}
"""Figure → column."""
PLAN = "plan"
"""The framework that runs a plan."""
PREPARING = ("import", "build", "compile", "weights")
"""Phases before the first request, without the data's."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `inference` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks; default: resnet-50, with --quick little-cnn."""
    frameworks: tuple[str, ...] = ()
    """Engines; default: all that cubemesh knows."""
    precisions: tuple[Precision, ...] = ("fp32",)
    """Precisions. Accuracy is not judged."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: 1, 8 and 32, on a GPU 1, 32 and 256, with --quick the first two."""
    scenarios: tuple[Scenario, ...] = ()
    """single-stream, offline; default: both on a GPU, the first on a CPU, where they are equal."""
    plan: str | None = None
    """Plan file to compare with them; networks and batch sizes are then its own by default."""


Key = tuple[int, Scenario, str, Precision]
"""Batch size, scenario, engine, precision."""
Engine = Group[Key]


def engines() -> tuple[str, ...]:
    """Everything that infers and computes."""
    return tuple(n for n, line in FRAMEWORKS.items() if line.infers and not line.simulates)


@dataclass(frozen=True, kw_only=True)
class ComparedPlan:
    """A plan file as a side of a comparison."""

    program: ProgramSettings
    network: str
    batch_sizes: tuple[int, ...]


def compared_plan(file: str | None) -> ComparedPlan | None:
    """The plan of a file; None without one. UsageError where there is no file, DataError where it
    is damaged."""
    if file is None:
        return None
    path = Path(file).resolve()
    document, checksum = describe_plan(path)
    return ComparedPlan(
        program=ProgramSettings(framework=PLAN, plan_file=str(path), plan_checksum=checksum),
        network=document.network,
        batch_sizes=tuple(choice.batch for choice in document.choices),
    )


def programs(
    frameworks: Sequence[str], precisions: Sequence[Precision], compared: ComparedPlan | None
) -> list[ProgramSettings]:
    """The engines in each precision, then the plan, which has its own."""
    found = [
        ProgramSettings(framework=name, precision=precision, layout=layout(name))
        for precision in dict.fromkeys(precisions)
        for name in dict.fromkeys(frameworks or engines())
        if name != PLAN or compared is None
    ]
    return found if compared is None else [*found, compared.program]


def plan(settings: Settings, context: Context) -> Plan:
    """Each network at each batch size with each engine."""
    quick = context.scale is Scale.QUICK
    compared = compared_plan(settings.plan)
    batches = GPU_BATCHES if context.has_gpu else CPU_BATCHES
    usual: tuple[Scenario, ...] = (
        ("single-stream", "offline") if context.has_gpu else ("single-stream",)
    )
    yield [
        RunSpec(
            work=Infer(network=network, batch_per_device=batch, scenario=scenario),
            program=program,
            budget=context.budget,
        )
        for network in dict.fromkeys(settings.networks or default_networks(compared, quick))
        for batch in dict.fromkeys(
            settings.batch_sizes
            or (compared.batch_sizes if compared else batches[: 2 if quick else 3])
        )
        for scenario in dict.fromkeys(settings.scenarios or usual)
        for program in programs(settings.frameworks, settings.precisions, compared)
    ]


def default_networks(compared: ComparedPlan | None, quick: bool) -> tuple[str, ...]:
    """The network of a plan; without one a usual one."""
    if compared is not None:
        return (compared.network,)
    return ("little-cnn",) if quick else ("resnet-50",)


def layout(framework: str) -> Layout:
    """Frameworks that train are fastest in nhwc; engines choose their own and take nchw."""
    line = FRAMEWORKS.get(framework)
    return "nhwc" if line is not None and line.trains and not line.simulates else "nchw"


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `inference`, by network."""
    return per_workload(records, _network, _answer)


def _network(record: RunRecord) -> tuple[str]:
    assert isinstance(record.spec.work, Infer)
    return (record.spec.work.network,)


def _key(record: RunRecord) -> Key:
    work, program = record.spec.work, record.spec.program
    assert isinstance(work, Infer)
    return work.batch_per_device, work.scenario, program.framework, program.precision


def _answer(records: Sequence[RunRecord]) -> Answer:
    groups = group_by(records, _key)
    name = _network(records[0])[0] if records else ""
    return answer_of(
        EXPERIMENT,
        titled(f"Inference of {name}", records),
        records,
        findings=_findings(groups),
        tables=_tables(groups),
        charts=_charts(groups),
        notes=(
            "p50, p90, p99, p99.9: percentiles of the time from passing a batch on the host to "
            "its scores on the host, of requests one after another; a percentile is shown from as "
            "many requests on as leave one beyond it. First answer: import, building, compiling "
            "and the first request, in a new process.",
            "Engines run one after another in separate processes, which can differ by more than "
            "the intervals (repeats=3 shows it): differences below 3 % are not significant.",
            "Weights are random, and accuracy in lower precisions is not judged. A plan has the "
            "weights and the precision of its build.",
        ),
    )


def latency(group: Group[Any], name: str) -> Figure | None:
    """A percentile in milliseconds: of one run with its interval, of several their median, from
    the least to the greatest."""
    found = [f for r in group.ok if (f := r.figures.get(name)) is not None]
    if len(found) < 2:
        return found[0].scaled(1e3, "ms") if found else None
    values = [f.value * 1e3 for f in found]
    return Figure(value=median(values), unit="ms", low=min(values), high=max(values), n=len(values))


def first_answer_s(group: Engine) -> float | None:
    """Seconds from the import of the engine to its first scores, without the data's; the median
    over runs."""
    found = []
    for record in group.ok:
        first = [w.elapsed_s for w in record.windows if "first-step" in w.marks]
        if first:
            prepared = sum(p.elapsed_s for p in record.phases if p.name in PREPARING)
            found.append(prepared + first[0])
    return median(found) if found else None


def _title(group: Engine, groups: Sequence[Engine]) -> str:
    """An engine's name, with "on the CPU" where others of `groups` ran on a GPU."""
    name = FRAMEWORKS[group.key[2]].title if group.key[2] in FRAMEWORKS else group.key[2]
    elsewhere = _on_cpu(group) and not all(_on_cpu(g) for g in groups if g.ok)
    return f"{name} on the CPU" if elsewhere else name


def _on_cpu(group: Engine) -> bool:
    return bool(group.ok) and all(rank.device == "cpu" for r in group.ok for rank in r.ranks)


def _tables(groups: Sequence[Engine]) -> Iterator[Table]:
    """A table of what was measured in each scenario, the fastest engine first at each batch
    size."""
    for scenario in dict.fromkeys(g.key[1] for g in groups):
        own = [g for g in groups if g.key[1] == scenario and g.throughput is not None]
        if not own:
            continue
        percentiles = known_figures(own, tuple(LATENCIES))
        shares = known_figures(own)
        energy = known_figures(own, ("energy_joules_per_sample",))
        columns = (
            Column(name="batch size"),
            Column(name="engine"),
            Column(name="precision"),
            Column(name="throughput", unit=throughput_unit(r for g in own for r in g.records)),
            *(Column(name=LATENCIES[name], unit="ms") for name in percentiles),
            Column(name="first answer", unit="s", digits=2),
            Column(name="memory", unit="MiB"),
            *(Column(name="energy", unit="J/sample") for _ in energy),
            *utilization_columns(shares),
        )
        rows = tuple(
            (
                Cell(value=group.key[0]),
                Cell(text=_title(group, groups)),
                Cell(text="its own" if group.key[2] == PLAN else group.key[3]),
                group.cell(group.throughput),
                *(cell_or_dash(latency(group, name), group.run_id) for name in percentiles),
                cell_or_dash(first_answer_s(group)),
                cell_or_dash(_mebibytes(group)),
                *(cell_or_dash(group.median_of(name)) for name in energy),
                *utilization_cells(group, shares),
            )
            for group in sorted(own, key=_order)
        )
        yield Table(title=scenario, columns=columns, rows=rows)


def _order(group: Engine) -> tuple[float, ...]:
    rate = group.throughput
    return group.key[0], -(rate.value if rate else 0)


def _mebibytes(group: Engine) -> float | None:
    peak = group.median_of("peak_memory_bytes")
    return None if peak is None else peak / 2**20


def _charts(groups: Sequence[Engine]) -> Iterator[Chart]:
    """p50 and throughput by batch size, a line for each engine and precision."""
    single = [g for g in groups if g.key[1] == "single-stream"]
    x = Axis(name="batch size", scale="log2")
    if len({g.key[0] for g in groups}) < 2:
        return
    if single:
        y = Axis(name="p50", unit="ms", scale="log10")
        yield Chart(
            name="inference-latency",
            kind="line",
            title="Latency by batch size",
            x=x,
            y=y,
            lines=tuple(_lines(single, "latency_p50_s")),
        )
    unit = throughput_unit(r for g in groups for r in g.records)
    y = Axis(name="throughput", unit=unit, scale="log10")
    best = [g for g in groups if g.key[1] == groups[-1].key[1]]
    yield Chart(
        name="inference-throughput",
        kind="line",
        title=f"Throughput by batch size, {groups[-1].key[1]}",
        x=x,
        y=y,
        lines=tuple(_lines(best, "")),
    )


def _lines(groups: Sequence[Engine], name: str) -> Iterator[Line]:
    several = len({g.key[3] for g in groups}) > 1
    for key in dict.fromkeys((g.key[2], g.key[3]) for g in groups):
        own = [g for g in groups if g.key[2:] == key and g.ok]
        if own:
            title = _title(own[0], groups)
            if several:
                title += f" {key[1]}"
            yield Line(
                name=title,
                points=tuple(
                    g.point(g.key[0], latency(g, name) if name else g.throughput) for g in own
                ),
            )


def _findings(groups: Sequence[Engine]) -> Iterator[Finding]:
    """The fastest engine at the smallest batch by latency and at the largest by throughput, within
    a precision; then the engines without a measurement."""
    batches = sorted({g.key[0] for g in groups if g.ok})
    asked = True
    for precision in dict.fromkeys(g.key[3] for g in groups):
        own = [g for g in groups if g.key[3] == precision]
        judged = [(batch, True) for batch in batches[:1]] + [(b, False) for b in batches[-1:]]
        for batch, by_latency in judged:
            found = _fastest([g for g in own if g.key[0] == batch], groups, by_latency)
            if found is not None:
                yield replace(found, question=found.question if asked else None)
        asked = False
    yield from dict.fromkeys(
        failed_run(_where(group, groups), group) for group in groups if group.throughput is None
    )


def _where(group: Engine, groups: Sequence[Engine]) -> str:
    """An engine in a precision; with the batch size where it works at another."""
    alike = [g for g in groups if g.key[2:] == group.key[2:]]
    at = f", batch size {group.key[0]}" if any(g.ok for g in alike) else ""
    precision = "" if group.key[2] == PLAN else f", {group.key[3]}"
    return f"{_title(group, groups)}{precision}{at}"


def _fastest(
    compared: Sequence[Engine], groups: Sequence[Engine], by_latency: bool
) -> Finding | None:
    """The fastest of the engines `compared`, and how its lead over the next one is judged."""
    scenario = compared[0].key[1] if by_latency else compared[-1].key[1]
    found: list[tuple[Engine, Figure]] = []
    for group in compared:
        figure = latency(group, "latency_p50_s") if by_latency else group.throughput
        if figure is not None and group.key[1] == scenario:
            found.append((group, figure))
    if not found:
        return None
    found.sort(key=lambda pair: pair[1].value if by_latency else -pair[1].value)
    best, figure = found[0]
    unit = throughput_unit(best.records)
    name, batch, precision = _title(best, groups), best.key[0], best.key[3]
    text = (
        f"{name} has the shortest latency at batch size {batch} in {precision}: "
        f"{plus_minus(figure)} ms (p50)"
        if by_latency
        else f"{name} has the highest throughput at batch size {batch} in {precision}: "
        f"{plus_minus(figure)} {unit}"
    )
    noise = caveats(best)
    if len(found) > 1:
        second, other = found[1]
        lead = ratio(other, figure) if by_latency else ratio(figure, other)
        (verdict,) = verdicts([lead])
        noise = caveats(best, second)
        if verdict.sign:
            text += f", {format_ratio(lead)} as fast as {_title(second, groups)}"
        elif lead.low is None:
            text += f"; too few requests to compare it with {_title(second, groups)}"
        else:
            text += f"; no significant difference to {_title(second, groups)} ({verdict.unseen})"
    return Finding(
        code="shortest-latency" if by_latency else "highest-throughput",
        question="Which engine answers fastest?" if by_latency else "Which serves the most?",
        text=f"{text}.",
        value=figure.value,
        low=figure.low,
        high=figure.high,
        unit="ms" if by_latency else unit,
        caveats=noise,
    )


EXPERIMENT = Experiment(
    name="inference",
    question="How fast does a trained network answer, and with which engine?",
    settings=Settings,
    works=(Infer,),
    varies={
        "network": "networks",
        "framework": "frameworks",
        "precision": "precisions",
        "batch_per_device": "batch_sizes",
        "scenario": "scenarios",
        "plan_file": "plan",
        "plan_checksum": "plan",
    },
    plan=plan,
    answer=answer,
    papers="[002], section 5.10 (TensorRT)",
)
