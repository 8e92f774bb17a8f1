"""Own step: throughput, FLOP/s, input wait and overheads of a training step of one's own code.

`step=train.py:make_step` names a function that returns a step, or a step and its batches. A worker
imports it (worker/run/own_step.py), measures the step as it is, profiles it, and counts the FLOPs
of its operators. The rate is compared with the fastest matrix product measured on the same device,
in the precision that `precision` gives: the code decides in which it computes, and no setting
changes that. docs/own_step.md shows how to write one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, titled
from cubemesh.experiments.analysis.utilization_columns import ABOVE_WHOLE, ceiling_specs
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.analysis import excess_text, profiled_record
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck, step_parts
from cubemesh.schema import (
    Answer,
    Cell,
    Column,
    Finding,
    OwnStep,
    RunRecord,
    RunSpec,
    Table,
)
from cubemesh.units import (
    format_bytes,
    format_interval,
    format_number,
    format_quantity,
    format_seconds,
)
from cubemesh.user_code import locate

MOST_OPERATORS = 10


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `own-step` besides the fields of its specs."""

    step: str = ""
    """Function that makes the step: FILE.py:NAME or PACKAGE.MODULE:NAME."""
    samples: int = 1
    """Samples in a step, for samples/s; default: 1, which gives steps/s."""
    ceiling: bool = True
    """Also measure the fastest matrix product, the ceiling of FLOP/s."""


def plan(settings: Settings, context: Context) -> Plan:
    """The ceilings, then the step, with attribution."""
    if not settings.step:
        raise UsageError(
            "own-step measures a training step of your own code. Name the function that makes it: "
            "--set step=train.py:make_step."
        )
    named = locate(settings.step, "step")
    work = OwnStep(step=named.name, samples=settings.samples, import_from=named.folder)
    budget = replace(context.budget, repeats=1)
    products = ceiling_specs(budget)[:1] if settings.ceiling else []
    yield [*products, RunSpec(work=work, budget=replace(context.budget, attribution=True))]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings and tables from the records of one `own-step`."""
    steps = [r for r in records if isinstance(r.spec.work, OwnStep)]
    groups = group_by(steps, _key)
    return answer_of(
        EXPERIMENT,
        titled("Own training step", steps),
        records,
        findings=[finding for group in groups for finding in _findings(group)],
        tables=[table for group in groups for table in _tables(group)],
        notes=_notes(steps),
    )


def _key(record: RunRecord) -> str:
    """`train.py:make_step`."""
    assert isinstance(record.spec.work, OwnStep)
    return record.spec.work.name


def _findings(group: Group[str]) -> Iterator[Finding]:
    rate = group.throughput
    if rate is None:
        yield failed_run(group.key, group)
        return
    record = group.ok[0]
    work, step_s, memory = record.spec.work, record.figures["step_s"], group.median_of(_PEAK)
    assert isinstance(work, OwnStep)
    unit = "steps/s" if work.samples == 1 else "samples/s"
    held = f", peak memory {format_bytes(memory)}" if memory is not None else ""
    yield Finding.of(
        code="throughput",
        question="How fast is the step?",
        text=f"{group.key}: {format_interval(rate.value, rate.low, rate.high, unit)}, "
        f"{format_interval(step_s.value, step_s.low, step_s.high, 's')} a step (median){held}.",
        figure=rate,
        unit=unit,
        caveats=caveats(group),
    )
    yield from _rate(group, record)
    wait_s = group.median_of("input_wait_s")
    if wait_s is not None:
        share = 100 * wait_s / step_s.value
        yield Finding(
            code="input-wait",
            text=f"{group.key} waits {format_seconds(wait_s)} for its batch, "
            f"{format_number(share, 2)} % of a step.",
            value=share,
            unit="%",
            caveats=caveats(group),
        )
    yield from _overhead(group)


_PEAK = "peak_memory_bytes"


def _rate(group: Group[str], record: RunRecord) -> Iterator[Finding]:
    flops = record.figures.get("model_flops_per_s")
    if flops is None:
        return
    text = f"{group.key}: {format_quantity(flops.value, 'FLOP/s')} by the operators it dispatches"
    precision = record.spec.program.precision
    for name, of in (
        ("ceiling_mfu_percent", f"the fastest {precision} matrix product measured here"),
        ("mfu_percent", f"the datasheet's {precision} peak"),
    ):
        share = group.median_of(name)
        if share is not None:
            shown = ABOVE_WHOLE if share > 100 else format_number(share, 2)
            text += f", {shown} % of {of}"
    yield Finding(
        code="flops",
        text=f"{text}.",
        value=flops.value,
        unit="FLOP/s",
        caveats=caveats(group),
    )


def _overhead(group: Group[str]) -> Iterator[Finding]:
    record = profiled_record(group)
    loss = None if record is None else largest_bottleneck(record)
    if record is None or loss is None:
        unmeasured = [u.why for r in group.ok for u in r.unmeasured if u.what == "attribution"]
        why = excess_text(group) or next(iter(unmeasured), "it ran without attribution")
        yield Finding(code="no-attribution", text=f"{group.key} has no breakdown: {why}.")
        return
    yield Finding(
        code="largest-overhead",
        question="What is the largest overhead of the step?" if loss.name else None,
        text=f"{group.key}: {loss.text}.",
        value=100 * loss.share if loss.name else None,
        unit=f"% {loss.name.replace('_', ' ')}" if loss.name else "",
        remedy=f"{loss.remedy[0].upper()}{loss.remedy[1:]}." if loss.remedy else "",
        caveats=caveats(group),
        run_id=record.run_id,
    )


def _tables(group: Group[str]) -> Iterator[Table]:
    record = profiled_record(group)
    if record is None:
        return
    parts = step_parts(record)
    total_s = math.fsum(part.seconds for part in parts)
    run_id = record.run_id
    yield Table(
        title=f"{group.key}: breakdown of the mean step time",
        columns=(
            Column(name="part"),
            Column(name="per step", unit="ms"),
            Column(name="of step", unit="%"),
        ),
        rows=tuple(
            (
                Cell(text=part.name.replace("_", " ")),
                Cell(value=1e3 * part.seconds, run_id=run_id),
                Cell(value=100 * part.seconds / total_s if total_s else 0.0, run_id=run_id),
            )
            for part in parts
        ),
    )
    for name, title in (("category", "work by category"), ("operator", "longest operators")):
        found = next((b for b in record.breakdowns if b.name == name), None)
        if found is None or not found.rows:
            continue
        yield Table(
            title=f"{group.key}: {title}",
            columns=(
                Column(name=name),
                Column(name="per step", unit="ms"),
                Column(name="calls per step"),
            ),
            rows=tuple(
                (
                    Cell(text=row.name),
                    Cell(value=1e3 * row.seconds, run_id=run_id),
                    Cell(value=row.calls, run_id=run_id),
                )
                for row in found.rows[:MOST_OPERATORS]
            ),
        )


def _notes(records: Sequence[RunRecord]) -> Iterator[str]:
    if any("model_flops_per_s" in r.figures for r in records):
        yield (
            "FLOPs are those of products, convolutions and attention that PyTorch dispatched in "
            "one step, a multiply-add counted as two; kernels of other libraries are not counted. "
            "`precision` only chooses the ceiling and the peak of the comparison."
        )
    if any(r.parts for r in records):
        yield (
            "Every part except unattributed is measured. Categories and operators are of profiled "
            "steps, whose rows add up to the profiler's total, not to the step."
        )
    if any(r.ok for r in records):
        yield (
            "A graph of layers, which a step does not have, would add costs by layer, a memory "
            "forecast and a comparison of frameworks."
        )


EXPERIMENT = Experiment(
    name="own-step",
    question="How fast is a training step of one's own code, and what is its largest overhead?",
    settings=Settings,
    works=(OwnStep,),
    varies={"step": "step", "samples": "samples", "import_from": "step", "by": "step"},
    plan=plan,
    answer=answer,
    alternates=False,
    tunes=False,
)
