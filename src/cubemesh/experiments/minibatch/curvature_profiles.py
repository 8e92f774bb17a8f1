"""What runs on the two sides of a bend? Steps there are taken apart, and the bend is divided.

A bend of the time per sample is a second difference over doublings (bends.py), and so the sum of
the second differences of its parts. Steps at half the minibatch, at it and at twice as much run
once more with an attribution; kernels are taken by category, and beside them stand the parts in
which the device does nothing. The part with the largest share of the bend's own sign is what bends
the curve. Times come from the profiler's own steps, which are not those that are timed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace

from cubemesh.experiments.analysis.groups import group_by
from cubemesh.experiments.core.experiment import Plan
from cubemesh.experiments.minibatch.curvature import Curvature, curvatures
from cubemesh.frameworks import entry
from cubemesh.parallel.timed_group import STAMPED
from cubemesh.schema import Cell, Column, Finding, RunRecord, RunSpec, Table, TrainSteps

WORK = "compute"
"""The part of an attribution that the categories divide."""
Parts = Mapping[str, float]
"""Name → milliseconds a sample."""


def gathered(
    plan: Plan,
) -> Generator[Sequence[RunSpec], Sequence[RunRecord], list[RunRecord]]:
    """Go through `plan`; all records it was sent."""
    found: list[RunRecord] = []
    asked = next(plan)
    while True:
        records = yield asked
        found += records
        try:
            asked = plan.send(records)
        except StopIteration:
            return found


def specs(records: Sequence[RunRecord], fed: str) -> list[RunSpec]:
    """Runs that take steps apart at every bend of what `records` hold of data on `fed`, and on both
    its sides; none where the framework has no profile."""
    steps = [
        r
        for r in records
        if isinstance(r.spec.work, TrainSteps) and r.spec.program.data_location == fed
    ]
    if not steps or not _can_be_taken_apart(steps[0].spec):
        return []
    by_batch = {r.spec.batch_per_device: r.spec for r in steps}
    wanted = sorted({n for bend in _certain(steps) for n in _sides(bend)})
    return [
        replace(spec, budget=replace(spec.budget, attribution=True, repeats=1))
        for spec in (by_batch[n] for n in wanted)
    ]


def parted(records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[RunRecord]]:
    """Records that are timed, and those that were taken apart beside them; all are timed where
    every one was taken apart."""
    apart = [r for r in records if r.spec.budget.attribution]
    timed = [r for r in records if not r.spec.budget.attribution]
    if any(isinstance(r.spec.work, TrainSteps) for r in timed):
        return timed, apart
    return list(records), []


def profiles_table(found: Sequence[Curvature], apart: Sequence[RunRecord]) -> tuple[Table, ...]:
    """Milliseconds a sample by part, at each bend and on its sides; none where nothing was taken
    apart."""
    rows = []
    for bend, sides in _profiled(found, apart):
        names = sorted({n for side in sides for n in side}, key=lambda n: -sides[1].get(n, 0.0))
        for name in names:
            values = [side.get(name, 0.0) for side in sides]
            rows.append(
                (
                    Cell(text=str(bend.batch)),
                    Cell(text=name),
                    *(Cell(value=value) for value in values),
                    Cell(value=_second(values)),
                )
            )
    if not rows:
        return ()
    columns = (
        Column(name="bend at minibatch"),
        Column(name="part of a step"),
        Column(name="half of it", unit="ms a sample"),
        Column(name="there", unit="ms a sample"),
        Column(name="twice as much", unit="ms a sample"),
        Column(name="bends by", unit="ms"),
    )
    return (Table(title="Both sides of the bends", columns=columns, rows=tuple(rows)),)


def profile_findings(found: Sequence[Curvature], apart: Sequence[RunRecord]) -> Iterator[Finding]:
    """What bends the time per sample at each bend that was taken apart."""
    for bend, (before, there, after) in _profiled(found, apart):
        differences = {
            name: _second([side.get(name, 0.0) for side in (before, there, after)])
            for name in {*before, *there, *after}
        }
        whole, sign = sum(differences.values()), bend.sign(bend.sample_ms)
        if whole * sign <= 0:
            yield Finding(
                text=f"The bend at minibatch {bend.batch} is not seen in the steps that were taken "
                "apart: it lies within what their time changes from run to run."
            )
            continue
        name, most = max(differences.items(), key=lambda pair: sign * pair[1])
        yield Finding(
            text=f"At minibatch {bend.batch} it is {name} that bends the time per sample: "
            f"{before.get(name, 0.0):.3g}, {there.get(name, 0.0):.3g} and "
            f"{after.get(name, 0.0):.3g} ms a sample at half of it, there and at twice as much, "
            f"{100 * most / whole:.0f} % of the bend."
        )


def _profiled(
    found: Sequence[Curvature], apart: Sequence[RunRecord]
) -> Iterator[tuple[Curvature, tuple[Parts, Parts, Parts]]]:
    by_batch = {r.spec.batch_per_device: _parts(r) for r in apart if r.parts}
    for bend in found:
        if bend.sign(bend.sample_ms) and all(n in by_batch for n in _sides(bend)):
            before, there, after = (by_batch[n] for n in _sides(bend))
            yield bend, (before, there, after)


def _parts(record: RunRecord) -> Parts:
    """Milliseconds a sample: kernels by category, and what is no kernel by its part."""
    ms = 1e3 / (record.spec.batch_per_device or 1)
    kernels = next((b.rows for b in record.breakdowns if b.name == "category"), ())
    return {row.name: ms * row.seconds for row in kernels} | {
        part.name.replace("_", " "): ms * part.seconds for part in record.parts if part.name != WORK
    }


def _certain(steps: Sequence[RunRecord]) -> list[Curvature]:
    groups = group_by(steps, lambda r: r.spec.batch_per_device or 0)
    found = curvatures(sorted(groups, key=lambda group: group.key))
    return [bend for bend in found if bend.sign(bend.sample_ms)]


def _sides(bend: Curvature) -> tuple[int, int, int]:
    return bend.batch // 2, bend.batch, 2 * bend.batch


def _second(three: Sequence[float]) -> float:
    return three[0] - 2 * three[1] + three[2]


def _can_be_taken_apart(spec: RunSpec) -> bool:
    alone = spec.placement.devices == 1 or spec.program.sync in STAMPED
    return entry(spec.program.framework).profiles and alone
