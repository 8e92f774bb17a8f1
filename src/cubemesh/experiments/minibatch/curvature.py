"""Where does a curve over the minibatch bend, and which doublings cost more than double?

The bend at minibatch b is the second difference over doublings, f(b/2) - 2 f(b) + f(2b): above zero
the curve is concave up there, below it concave down. Its interval is the widest that the three
allow; a bend whose interval holds zero is straight. Document 000 reads its bends off the curve of
the time per sample; those of throughput stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.ratios import bounds, ratio, significance
from cubemesh.experiments.minibatch.input_starvation import device_utilisation
from cubemesh.schema import Cell, Column, Figure, Finding, Table
from cubemesh.units import format_list

WORDS = {1: "up", -1: "down", 0: "straight"}


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """The curves at one minibatch, with its neighbours half and twice as large."""

    batch: int
    throughput: Figure
    """Second difference, samples/s."""
    sample_ms: Figure
    """Second difference of the time per sample, ms."""
    before: Group[int]
    after: Group[int]
    disturbed: bool
    """Whether one of the three runs was: nothing is called then."""

    def sign(self, figure: Figure) -> int:
        """1 for concave up, -1 for concave down, 0 where the intervals cannot tell."""
        low, high = bounds(figure)
        if self.disturbed or low <= 0 <= high or low == high:
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
    """Milliseconds a sample takes, with its interval."""
    rate = group.throughput
    if rate is None:
        return None
    low, high = bounds(rate)
    return Figure(value=1e3 / rate.value, unit="ms", low=1e3 / high, high=1e3 / low)


def curvatures(groups: Sequence[Group[int]]) -> list[Curvature]:
    """A bend for each minibatch whose half and double were measured too."""
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
                throughput=second_difference(rates, "samples/s"),
                sample_ms=second_difference(times, "ms"),
                before=before,
                after=after,
                disturbed=any(g.caveats for g in three),
            )
        )
    return found


def curvature_table(found: Sequence[Curvature]) -> tuple[Table, ...]:
    """Every bend with its sign, and where it is known how busy the device was on both sides; none
    for none."""
    if not found:
        return ()
    columns: tuple[Column, ...] = (
        Column(name="bend at minibatch"),
        Column(name="of samples/s"),
        Column(name=""),
        Column(name="of a sample", unit="ms"),
        Column(name=""),
    )
    busy = (Column(name="utilisation before", unit="%"), Column(name="after", unit="%"))
    sides = (side for bend in found for side in (bend.before, bend.after))
    columns += busy if any(device_utilisation(side) for side in sides) else ()
    rows = tuple(_row(bend)[: len(columns)] for bend in found)
    return (Table(title="Bends", columns=columns, rows=rows),)


def _row(bend: Curvature) -> tuple[Cell, ...]:
    cells = [Cell(text=str(bend.batch))]
    for figure in (bend.throughput, bend.sample_ms):
        cells.append(Cell(value=figure.value, low=figure.low, high=figure.high))
        word = "disturbed" if bend.disturbed else WORDS[bend.sign(figure)]
        cells.append(Cell(text=word))
    for side in (bend.before, bend.after):
        busy = device_utilisation(side)
        cells.append(Cell(text="–") if busy is None else Cell(value=round(busy[1], 1)))
    return tuple(cells)


def curvature_findings(found: Sequence[Curvature]) -> Iterator[Finding]:
    """Where throughput and the time per sample surely bend, in a sentence each."""
    if not found:
        return
    for name, signs in (
        ("Throughput", [b.sign(b.throughput) for b in found]),
        ("The time per sample", [b.sign(b.sample_ms) for b in found]),
    ):
        places = {
            side: [str(b.batch) for b, s in zip(found, signs, strict=True) if s == side]
            for side in (1, -1)
        }
        told = [f"{WORDS[side]} at {format_list(at)}" for side, at in places.items() if at]
        if told:
            yield Finding(
                text=f"{name} over doublings of the minibatch bends {' and '.join(told)}."
            )
        else:
            yield Finding(text=f"{name} bends at no minibatch that the intervals can tell.")


def superlinear_doublings(groups: Sequence[Group[int]], what: str) -> Iterator[Finding]:
    """Every doubling that surely costs more than double. Document 000 saw by eye that VGG at 128
    takes more than twice the time of 64. A machine disturbed during one of the two looks just the
    same, so disturbed runs are not compared."""
    for small, large in pairwise(groups):
        a, b = small.throughput, large.throughput
        if a is None or b is None or large.key != 2 * small.key:
            continue
        if small.caveats or large.caveats:
            continue
        if significance(ratio(b, a)) < 0:
            yield Finding(
                text=f"Doubling the minibatch from {small.key} to {large.key} costs "
                f"{2 * a.value / b.value:.2f}× the time of {what}: more than double."
            )
