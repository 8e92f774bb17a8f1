"""Precision: speed-up and memory of training in tf32, fp16 and bf16 over fp32.

DGX-1 V100 white paper [002] trains CNNs in mixed precision on tensor cores. Training steps of each
network are timed in each precision, and so is the fastest matrix product, whose speed-up is the
upper limit of a network's. Unsupported precisions are shown with their reason. Speed-ups are ratios
of throughput to fp32, with the widest interval of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit, titled
from cubemesh.experiments.analysis.matrix import CellKey, Matrix, throughput
from cubemesh.experiments.analysis.per_workload import batch_size, per_workload
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, verdicts
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.schema import (
    Answer,
    Axis,
    Ceiling,
    Cell,
    Column,
    Figure,
    Finding,
    NetworkWork,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
)
from cubemesh.schema.spec import Precision
from cubemesh.units import format_list, format_quantity

NETWORKS = ("alexnet", "vgg16", "inception-v3", "resnet-50")
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
BATCH = 64
BASELINE = "fp32"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `precision` besides the fields of its specs."""

    networks: tuple[str, ...] = NETWORKS
    """Networks to train."""
    precisions: tuple[Precision, ...] = PRECISIONS
    """Precisions to train in; speed-ups are over fp32."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: 64, on a CPU an eighth of it."""
    ceiling: bool = True
    """Also measure the fastest matrix product in each precision."""


def plan(settings: Settings, context: Context) -> Plan:
    """The ceilings, then each network in each precision."""
    programs = [ProgramSettings(precision=p) for p in dict.fromkeys(settings.precisions)]
    batches = settings.batch_sizes or (reduction.batch(BATCH, context),)
    ceilings = [
        RunSpec(work=Ceiling(), program=program, budget=context.budget)
        for program in programs
        if settings.ceiling
    ]
    yield [
        *ceilings,
        *(
            RunSpec(
                work=TrainSteps(
                    network=network,
                    batch_per_device=batch,
                    image_size=reduction.image_size(network, context),
                ),
                program=program,
                budget=context.budget,
            )
            for batch in dict.fromkeys(batches)
            for network in dict.fromkeys(settings.networks)
            for program in programs
        ),
    ]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the records of one `precision`, by batch size."""
    steps = [r for r in records if isinstance(r.spec.work, NetworkWork)]
    products = [r for r in records if isinstance(r.spec.work, Ceiling)]
    return per_workload(
        steps,
        batch_size,
        lambda own: _answer(settings, own, products),
    )


def _answer(
    settings: Settings, steps: Sequence[RunRecord], products: Sequence[RunRecord]
) -> Answer:
    matrix, records = Matrix.of(steps, _key), [*products, *steps]
    ceilings = group_by(products, _precision)
    at = f", {batch_size(steps[0])[0]}" if steps else ""
    unit = throughput_unit(steps)
    tables = [matrix.table(unit.capitalize(), "", throughput)]
    if any(v != BASELINE for v in matrix.variants):
        tables += [_speedups(matrix), matrix.table("Memory, MiB", "", _memory)]
    if ceilings:
        tables.append(_ceilings(ceilings))
    return answer_of(
        EXPERIMENT,
        titled(f"Precisions{at}", steps),
        records,
        findings=_findings(matrix, ceilings),
        tables=tables,
        charts=matrix.chart(
            "precision",
            f"{unit} by network and precision",
            Axis(name="throughput", unit=unit, from_zero=True),
            throughput,
        ),
        warnings=reduction.reductions(
            steps,
            batch_per_device=BATCH,
            steps=0,
            missing=[n for n in NETWORKS if n not in settings.networks],
        ),
        notes=(
            "Training steps (forward, backward, update). In fp16 and bf16 weights and their update "
            "stay in fp32 (mixed precision).",
            "DGX-1 V100 white paper [002] states up to 3.1 times, but compares two different GPUs.",
        ),
    )


def _key(record: RunRecord) -> CellKey:
    assert isinstance(record.spec.work, NetworkWork)
    return record.spec.work.network, record.spec.program.precision


def _precision(record: RunRecord) -> str:
    return record.spec.program.precision


def _memory(group: Group[CellKey]) -> Figure | None:
    peak = group.median_of("peak_memory_bytes")
    return None if peak is None else Figure(value=peak / 2**20, unit="MiB")


def _rate(group: Group[str]) -> Figure | None:
    return group.ok[0].figures.get("rate_flops_per_s") if group.ok else None


def _speedups(matrix: Matrix) -> Table:
    others = [v for v in matrix.variants if v != BASELINE]
    columns = (Column(name="network"), *(Column(name=v) for v in others))
    found = {
        (network, other): share
        for other in others
        for network, share, _ in matrix.ratios(other, BASELINE)
    }

    def cell(network: str, other: str) -> Cell:
        share, group = found.get((network, other)), matrix.at(network, other)
        if share is not None:
            return Cell.of(share)
        if group is None or group.throughput is not None:
            return Cell(reason=f"no {BASELINE}")
        return Cell(reason=group.ending, run_id=group.run_id)

    rows = tuple(
        (Cell(text=network), *(cell(network, other) for other in others))
        for network in matrix.networks
    )
    return Table(title=f"Speed-up over {BASELINE}", columns=columns, rows=rows)


def _ceilings(ceilings: list[Group[str]]) -> Table:
    columns = (
        Column(name="precision"),
        Column(name="fastest matrix product", unit="FLOP/s"),
        Column(name=f"vs {BASELINE}", unit="×"),
    )
    base = next((f for g in ceilings if g.key == BASELINE and (f := _rate(g))), None)
    rows = []
    for group in ceilings:
        rate = _rate(group)
        times = ratio(rate, base) if rate and base else None
        rows.append(
            (
                Cell(text=group.key),
                group.cell(rate),
                group.cell(times) if times and group.key != BASELINE else Cell(text="–"),
            )
        )
    return Table(title="Ceilings", columns=columns, rows=tuple(rows))


def _findings(matrix: Matrix, ceilings: list[Group[str]]) -> Iterator[Finding]:
    best: tuple[float, Finding] | None = None
    lines = []
    rates = {g.key: rate for g in ceilings if (rate := _rate(g))}
    for precision in (v for v in matrix.variants if v != BASELINE):
        compared = list(matrix.ratios(precision, BASELINE))
        judged = verdicts([found for _, found, _ in compared])
        for (network, found, groups), verdict in zip(compared, judged, strict=True):
            if caveats(*groups) or verdict.sign <= 0 or (best and found.value <= best[0]):
                continue
            card = Finding.of(
                code="largest-speed-up",
                question="What does lower precision gain?",
                text=f"{network} trains {format_ratio(found)} as fast in {precision} as in "
                f"{BASELINE}.",
                figure=found,
                unit="× the speed",
            )
            best = found.value, card
        if gains := matrix.gains(precision, BASELINE):
            lines.append(replace(gains, text=gains.text + _most(precision, rates)))
    if best:
        yield best[1]
    yield from lines
    for precision, why, networks in matrix.gaps():
        yield Finding(code="failed-run", text=f"{precision}, {format_list(networks)}: {why}.")


def _most(precision: str, rates: dict[str, Figure]) -> str:
    if precision not in rates or BASELINE not in rates:
        return ""
    times = rates[precision].value / rates[BASELINE].value
    rate = format_quantity(rates[precision].value, "FLOP/s")
    return f" Fastest matrix product: {times:.2f}× ({rate})."


EXPERIMENT = Experiment(
    name="precision",
    question="What does lower precision gain in speed and memory?",
    settings=Settings,
    works=(TrainSteps, Ceiling),
    varies={"network": "networks", "precision": "precisions", "batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    papers="[002] (mixed precision)",
)
