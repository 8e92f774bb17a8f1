"""Curvature of throughput and time per sample over the batch size, and its causes.

The curvature at batch size b is the second difference over doublings, f(b/2) - 2 f(b) + f(2b):
positive where the curve is convex, negative where it is concave. Its interval is the widest that
the three intervals allow; it is not significant if that contains zero. The paper 000 reads the
knees off the curve of the time per sample.

Where the time per sample has a significant curvature, steps at b/2, b and 2b are profiled in
separate runs. The curvature is then the sum of the second differences of the parts of a step:
kernels by category, and the parts in which the device is idle. The part with the largest fraction
of it is the cause. Times of parts come from the profiler's steps, not from the timed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.experiments.analysis.ratios import bounds, ratio, reciprocal, significance
from cubemesh.experiments.minibatch.input_bound import device_utilization
from cubemesh.frameworks import entry
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import Cell, Column, Figure, Finding, RunRecord, RunSpec, Table, TrainSteps
from cubemesh.units import format_list

WORDS = {1: "convex", -1: "concave", 0: "not significant"}
_THROUGHPUT_MEANING = {
    1: "a doubling gains more than the one before",
    -1: "a doubling gains less than the one before",
}
_SAMPLE_TIME_MEANING = {
    1: "a doubling saves less than the one before",
    -1: "a doubling saves more than the one before",
}
COMPUTE = "compute"
"""The part of an attribution that the kernel categories divide."""
Parts = Mapping[str, float]
"""Name → milliseconds per sample."""


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """The second differences at one batch size, from the groups at half, at it, and at twice it."""

    batch: int
    throughput: Figure
    """Second difference of throughput."""
    sample_ms: Figure
    """Second difference of the time per sample, ms."""
    before: Group[int]
    after: Group[int]
    noisy: bool
    """Whether one of the three runs was noisy: then nothing is significant."""

    @property
    def batches(self) -> tuple[int, int, int]:
        """Half the batch size, the batch size, and twice it."""
        return self.batch // 2, self.batch, 2 * self.batch

    @property
    def significant(self) -> bool:
        """Whether throughput or the time per sample has a significant curvature here."""
        return bool(self.sign(self.throughput) or self.sign(self.sample_ms))

    def sign(self, figure: Figure) -> int:
        """1 for convex, -1 for concave, 0 for not significant."""
        low, high = bounds(figure)
        if self.noisy or low <= 0 <= high or low == high:
            return 0
        return 1 if low > 0 else -1


def second_difference(three: Sequence[Figure], unit: str) -> Figure:
    """f(b/2) - 2 f(b) + f(2b), with the widest interval that theirs allow."""
    before, at, after = three
    (a, b), (c, d), (e, f) = bounds(before), bounds(at), bounds(after)
    return Figure(
        value=before.value - 2 * at.value + after.value,
        unit=unit,
        low=a - 2 * d + e,
        high=b - 2 * c + f,
    )


def sample_ms(group: Group[int]) -> Figure | None:
    """Milliseconds per sample, with its interval."""
    rate = group.throughput
    return reciprocal(rate, 1e3, "ms") if rate else None


def curvatures(groups: Sequence[Group[int]], unit: str = "samples/s") -> list[Curvature]:
    """The curvature at each batch size whose half and double were measured too; `unit` is that of
    throughput."""
    measured = {g.key: g for g in groups if g.throughput is not None}
    found = []
    for batch, at in measured.items():
        before, after = measured.get(batch // 2), measured.get(2 * batch)
        if batch % 2 or before is None or after is None:
            continue
        three = (before, at, after)
        rates = [f for g in three if (f := g.throughput) is not None]
        times = [f for g in three if (f := sample_ms(g)) is not None]
        found.append(
            Curvature(
                batch=batch,
                throughput=second_difference(rates, unit),
                sample_ms=second_difference(times, "ms"),
                before=before,
                after=after,
                noisy=any(g.caveats for g in three),
            )
        )
    return found


def curvature_table(found: Sequence[Curvature]) -> tuple[Table, ...]:
    """Each curvature with its sign, and device utilization on both sides if it was sampled; no
    table where none is significant."""
    if not any(one.significant for one in found):
        return ()
    columns = [
        Column(name="batch size"),
        Column(name="throughput", unit=found[0].throughput.unit),
        Column(name="throughput is"),
        Column(name="time per sample", unit="ms"),
        Column(name="time per sample is"),
    ]
    if any(device_utilization(side) for one in found for side in (one.before, one.after)):
        columns.append(Column(name="utilization at half", unit="%"))
        columns.append(Column(name="utilization at twice", unit="%"))
    rows = tuple(_row(one)[: len(columns)] for one in found)
    title = "Curvature over doublings of the batch size"
    return (Table(title=title, columns=tuple(columns), rows=rows),)


def _row(found: Curvature) -> tuple[Cell, ...]:
    cells = [Cell(text=str(found.batch))]
    for figure in (found.throughput, found.sample_ms):
        word = "noisy" if found.noisy else WORDS[found.sign(figure)]
        cells += [Cell.of(figure), Cell(text=word)]
    for side in (found.before, found.after):
        busy = device_utilization(side)
        cells.append(Cell(text="–") if busy is None else Cell(value=round(busy[1], 1)))
    return tuple(cells)


def curvature_findings(found: Sequence[Curvature]) -> Iterator[Finding]:
    """Where throughput and the time per sample have a significant curvature, and its meaning."""
    throughput = [c.sign(c.throughput) for c in found]
    sample_time = [c.sign(c.sample_ms) for c in found]
    for code, name, meaning, signs in (
        ("throughput-curvature", "Throughput", _THROUGHPUT_MEANING, throughput),
        ("sample-time-curvature", "The time per sample", _SAMPLE_TIME_MEANING, sample_time),
    ):
        places = {
            side: [str(c.batch) for c, s in zip(found, signs, strict=True) if s == side]
            for side in (1, -1)
        }
        parts = [
            f"{WORDS[side]} at {format_list(at)} ({meaning[side]})"
            for side, at in places.items()
            if at
        ]
        if parts:
            text = f"{name} over doublings of the batch size is {' and '.join(parts)}."
            yield Finding(code=code, text=text)


def superlinear_doublings(groups: Sequence[Group[int]], what: str) -> Iterator[Finding]:
    """Doublings of the batch size that significantly more than double the time. Noisy runs look
    the same and are not compared. The paper 000 sees this for VGG from 64 to 128."""
    for small, large in pairwise(groups):
        a, b = small.throughput, large.throughput
        if a is None or b is None or large.key != 2 * small.key:
            continue
        if small.caveats or large.caveats:
            continue
        if significance(ratio(b, a)) < 0:
            times = 2 * a.value / b.value
            yield Finding(
                code="superlinear-doubling",
                text=f"Doubling the batch size from {small.key} to {large.key} takes {times:.2f}× "
                f"the time of {what}: more than double.",
                value=times,
                unit="× the time",
            )


def profile_specs(records: Sequence[RunRecord], location: str) -> list[RunSpec]:
    """Profiled runs at each significant curvature of the time per sample, at half and at twice it,
    for data on `location`; empty if the framework has no profiler."""
    steps = [
        r
        for r in records
        if isinstance(r.spec.work, TrainSteps) and r.spec.program.data_location == location
    ]
    if not steps or not _can_profile(steps[0].spec):
        return []
    groups = group_by(steps, lambda r: r.spec.batch_per_device or 0)
    found = curvatures(sorted(groups, key=lambda group: group.key))
    by_batch = {r.spec.batch_per_device: r.spec for r in steps}
    batches = sorted({b for one in found if one.sign(one.sample_ms) for b in one.batches})
    return [
        replace(spec, budget=replace(spec.budget, attribution=True, repeats=1))
        for spec in (by_batch[b] for b in batches)
    ]


def split_profiled(records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[RunRecord]]:
    """(timed records, profiled records); all are timed if every one was profiled."""
    profiled = [r for r in records if r.spec.budget.attribution]
    timed = [r for r in records if not r.spec.budget.attribution]
    if any(isinstance(r.spec.work, TrainSteps) for r in timed):
        return timed, profiled
    return list(records), []


def profiles_table(found: Sequence[Curvature], profiled: Sequence[RunRecord]) -> tuple[Table, ...]:
    """Milliseconds per sample by part, at each curvature, at half and at twice it."""
    rows = []
    for one, sides in _profiled(found, profiled):
        names = sorted({n for side in sides for n in side}, key=lambda n: -sides[1].get(n, 0.0))
        for name in names:
            values = [side.get(name, 0.0) for side in sides]
            rows.append(
                (
                    Cell(text=str(one.batch)),
                    Cell(text=name),
                    *(Cell(value=value) for value in values),
                    Cell(value=_second(values)),
                )
            )
    if not rows:
        return ()
    columns = (
        Column(name="batch size"),
        Column(name="part of a step"),
        Column(name="at half", unit="ms/sample"),
        Column(name="at it", unit="ms/sample"),
        Column(name="at twice", unit="ms/sample"),
        Column(name="curvature", unit="ms"),
    )
    return (Table(title="Causes of the curvature", columns=columns, rows=tuple(rows)),)


def profile_findings(
    found: Sequence[Curvature], profiled: Sequence[RunRecord]
) -> Iterator[Finding]:
    """The part of a step that causes each curvature of the time per sample."""
    for one, (before, at, after) in _profiled(found, profiled):
        differences = {
            name: _second([side.get(name, 0.0) for side in (before, at, after)])
            for name in {*before, *at, *after}
        }
        whole, sign = sum(differences.values()), one.sign(one.sample_ms)
        if whole * sign <= 0:
            yield Finding(
                code="curvature-not-reproduced",
                text=f"The profiled steps do not show the curvature at batch size {one.batch}: it "
                "is within the variation from run to run.",
            )
            continue
        name, most = max(differences.items(), key=lambda pair: sign * pair[1])
        same = sum(difference for difference in differences.values() if difference * sign > 0)
        yield Finding(
            code="curvature-cause",
            text=f"At batch size {one.batch}, the largest cause of the curvature of the time per "
            f"sample is {name}, {100 * most / same:.0f} % of what curves it so: "
            f"{before.get(name, 0.0):.3g}, {at.get(name, 0.0):.3g} and {after.get(name, 0.0):.3g} "
            "ms/sample at half, at it and at twice.",
            value=100 * most / same,
            unit="%",
        )


def _profiled(
    found: Sequence[Curvature], profiled: Sequence[RunRecord]
) -> Iterator[tuple[Curvature, tuple[Parts, Parts, Parts]]]:
    by_batch = {r.spec.batch_per_device: _parts(r) for r in profiled if r.parts}
    for one in found:
        if one.sign(one.sample_ms) and all(b in by_batch for b in one.batches):
            before, at, after = (by_batch[b] for b in one.batches)
            yield one, (before, at, after)


def _parts(record: RunRecord) -> Parts:
    """Milliseconds per sample: kernels by category, and the parts without kernels."""
    ms = 1e3 / (record.spec.batch_per_device or 1)
    kernels = next((b.rows for b in record.breakdowns if b.name == "category"), ())
    return {row.name: ms * row.seconds for row in kernels} | {
        part.name.replace("_", " "): ms * part.seconds
        for part in record.parts
        if part.name != COMPUTE
    }


def _second(three: Sequence[float]) -> float:
    return three[0] - 2 * three[1] + three[2]


def _can_profile(spec: RunSpec) -> bool:
    single = spec.placement.devices == 1 or strategy(spec.program.sync).profiled
    return entry(spec.program.framework).profiles and single
