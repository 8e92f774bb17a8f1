"""Findings, tables and chart of `sequential-equivalence`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.ratios import plus_minus
from cubemesh.experiments.sequential_equivalence.compare import (
    ERROR_RATE,
    FIRST_LOSSES,
    SYNCHRONIZED,
    EquivalenceCheck,
    error_rate,
    interval_gap,
    tolerance,
)
from cubemesh.experiments.sequential_equivalence.divergence_causes import FEWER
from cubemesh.experiments.sequential_equivalence.sketch_distance import relative
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    FirstSteps,
    Line,
    Point,
    RunRecord,
    Table,
)
from cubemesh.units import format_devices, format_list

NOTES = (
    "The distance of two gradients is ‖a - b‖ / ‖b‖ of the parameter where it is largest, from "
    "sketches with an error of about a quarter; of two losses it is |a - b| / |b|, the largest of "
    f"the first {FIRST_LOSSES['fp64']} steps in fp64 and of the first step otherwise. Distances up "
    "to 1e-10 pass in fp64, 1e-4 in fp32, 1e-2 in lower precisions. An error rate passes if its "
    "95 % interval overlaps the range of one device in this precision and in finer ones, since "
    "rounding alone changes it.",
    "Nothing is timed; on a CPU devices may share cores.",
)
SMALLEST = 1e-17
"""The value of a zero distance on a logarithmic axis: below the last digit of fp64."""


@dataclass(frozen=True, kw_only=True)
class MachinePair:
    """A training of this store and the same one of another store."""

    own: RunRecord
    other: RunRecord

    @property
    def agrees(self) -> bool:
        """Whether the intervals of the two error rates overlap."""
        return interval_gap(error_rate(self.own), error_rate(self.other)) == 0


def _work(record: RunRecord) -> FirstSteps:
    assert isinstance(record.spec.work, FirstSteps)
    return record.spec.work


def _name(record: RunRecord) -> str:
    """`resnet-18, 16, fp64, 4 devices, all-reduce`: the number is the global batch size."""
    spec = record.spec
    words = [_work(record).network, str(spec.global_batch), spec.program.precision]
    words += [format_devices(spec.placement.devices)]
    return ", ".join(words + ([spec.program.sync] if spec.program.sync != "none" else []))


def findings(comparisons: Sequence[EquivalenceCheck]) -> Iterator[Finding]:
    """How many trainings pass, the largest distance, and the cause of each divergence."""
    if not comparisons:
        return
    passed = [c for c in comparisons if c.passes]
    yield Finding(
        code="trainings-passed",
        question="Do several devices compute what one computes?",
        text=f"{len(passed)} of {len(comparisons)} trainings are equivalent to one device"
        f"{_farthest(passed)}.",
        value=float(len(passed)),
        unit=f"of {len(comparisons)} pass",
    )
    for comparison in comparisons:
        cause = comparison.cause
        if cause is not None:
            yield Finding(
                code="divergence",
                text=f"{_name(comparison.run)} diverges, {cause.name}: {cause.text}.",
                remedy=cause.remedy,
            )
    for comparison in comparisons:
        if comparison.passes_by_rounding:
            yield Finding(code="rounding-dominates", text=_by_rounding(comparison), remedy=FEWER)


def _by_rounding(comparison: EquivalenceCheck) -> str:
    """The error rates where rounding on one device changes them more than several devices do."""
    ones = (
        f"{_percent(one)} in {one.spec.program.precision}"
        for one in (comparison.reference, *comparison.finer)
    )
    return (
        f"{_name(comparison.run)}: the error rate of {_percent(comparison.run)} is inconclusive, "
        f"since one device has {format_list(list(ones))}."
    )


def _percent(record: RunRecord) -> str:
    return f"{plus_minus(error_rate(record))} %"


def _farthest(passed: Sequence[EquivalenceCheck]) -> str:
    """The largest distance of a gradient in each precision."""
    worst: dict[str, float] = {}
    for comparison in passed:
        precision = comparison.run.spec.program.precision
        worst[precision] = max(worst.get(precision, 0.0), _first_gradient(comparison))
    parts = [f"{distance:.1e} in {precision}" for precision, distance in worst.items()]
    return f"; distance of the first gradients at most {format_list(parts)}" if parts else ""


def _first_gradient(comparison: EquivalenceCheck) -> float:
    return next(step.distance for step in comparison.chain if step.name == SYNCHRONIZED)


def failures(records: Iterable[RunRecord]) -> Iterator[Finding]:
    """Runs without a result to compare."""
    for record in records:
        why = Group("", (record,)).why
        yield Finding(code="failed-run", text=f"{_name(record)} was not compared: {why}.")


def tables(
    comparisons: Sequence[EquivalenceCheck], machines: Sequence[MachinePair]
) -> tuple[Table, ...]:
    """A row for each training on several devices; another table for other machines."""
    return (
        *([_comparisons_table(comparisons)] if comparisons else []),
        *([_machines_table(machines)] if machines else []),
    )


def _comparisons_table(comparisons: Sequence[EquivalenceCheck]) -> Table:
    names = [step.name for step in comparisons[0].chain if step.name != ERROR_RATE]
    return Table(
        title="Distance from training on one device",
        columns=(
            Column(name="training"),
            *(Column(name=name) for name in names),
            Column(name="error rate", unit="%"),
            Column(name="error rate of one device", unit="%"),
            Column(name="verdict"),
        ),
        rows=tuple(map(_row, comparisons)),
    )


def _row(comparison: EquivalenceCheck) -> tuple[Cell, ...]:
    run = comparison.run
    steps = [step for step in comparison.chain if step.name != ERROR_RATE]
    return (
        Cell(text=_name(run), run_id=run.run_id),
        *(Cell(text=_distance(step.name, step.distance), run_id=run.run_id) for step in steps),
        _error_cell(run),
        _error_cell(comparison.reference),
        Cell(text="passes" if comparison.cause is None else f"fails: {comparison.cause.name}"),
    )


def _distance(name: str, distance: float) -> str:
    if name == "samples fed":
        return "equal" if not distance else f"different in {distance:.0f} steps"
    return "0" if not distance else f"{distance:.1e}"


def _error_cell(record: RunRecord) -> Cell:
    return Cell.of(error_rate(record), run_id=record.run_id)


def charts(comparisons: Sequence[EquivalenceCheck]) -> tuple[Chart, ...]:
    """The distance of the first gradient of each training, and its tolerance."""
    if not comparisons:
        return ()
    return (
        Chart(
            name="sequential-equivalence",
            title="Distance of the first gradient from one device's",
            kind="scatter",
            x=Axis(name="training", scale="category"),
            y=Axis(name="distance", scale="log10"),
            lines=(
                Line(
                    name="first gradient",
                    points=tuple(
                        Point(
                            x=_name(c.run),
                            y=max(_first_gradient(c), SMALLEST),
                            run_id=c.run.run_id,
                        )
                        for c in comparisons
                    ),
                ),
                Line(
                    name="tolerance",
                    role="reference",
                    points=tuple(Point(x=_name(c.run), y=tolerance(c.run)) for c in comparisons),
                ),
            ),
        ),
    )


def across_machines(
    own: Sequence[RunRecord], others: Sequence[RunRecord]
) -> tuple[MachinePair, ...]:
    """Each training with the same one of every other store: the same network, samples, iterations,
    devices and precision."""
    return tuple(
        MachinePair(own=record, other=other)
        for record in own
        for other in others
        if other.key.spec_id == record.key.spec_id
    )


def machine_findings(machines: Sequence[MachinePair]) -> Iterator[Finding]:
    """How many error rates agree between two machines, and those that do not."""
    if not machines:
        return
    agree = [m for m in machines if m.agrees]
    yield Finding(
        code="machines-agree",
        question="Do two machines reach the same error rate?",
        text=f"{len(agree)} of {len(machines)} trainings have no significant difference of the "
        "error rate between both machines.",
        value=float(len(agree)),
        unit=f"of {len(machines)} agree",
    )
    for machine in machines:
        if not machine.agrees:
            here, there = (_percent(r) for r in (machine.own, machine.other))
            yield Finding(
                code="machines-differ",
                text=f"{_name(machine.own)} after {_work(machine.own).iterations} iterations: "
                f"{here} wrong on {_where(machine.own)}, {there} on {_where(machine.other)}.",
                remedy="Compare their first gradients and losses in the table.",
            )


def _where(record: RunRecord) -> str:
    rank = record.ranks[0]
    return f"{rank.device_name or rank.device} of {rank.host}"


def _machines_table(machines: Sequence[MachinePair]) -> Table:
    return Table(
        title="Trainings of other machines",
        columns=(
            Column(name="training"),
            Column(name="other machine"),
            Column(name="iterations"),
            Column(name="error rate here", unit="%"),
            Column(name="error rate there", unit="%"),
            Column(name="first gradient"),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                Cell(text=_name(m.own), run_id=m.own.run_id),
                Cell(text=_where(m.other), run_id=m.other.run_id),
                Cell(value=_work(m.own).iterations),
                _error_cell(m.own),
                _error_cell(m.other),
                Cell(text=_distance(SYNCHRONIZED, _gradient(m))),
                Cell(text="agrees" if m.agrees else "differs"),
            )
            for m in machines
        ),
    )


def _gradient(machine: MachinePair) -> float:
    return relative(machine.other.replicas[0].gradients, machine.own.replicas[0].gradients)
