"""How the answer of `lr-scaling` reads: document 001's two policies, as numbers and as charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    Point,
    RunRecord,
    Table,
    Train,
    Warning,
    warn,
)
from cubemesh.schema.work import RateScaling
from cubemesh.units import format_devices, format_list

DOCUMENT_EPOCHS = 30
DOCUMENT_BATCH = 128
EQUAL = 1.25
"""Largest ratio of two validation losses that are called roughly equal; the document gives none."""
NAMES: dict[RateScaling, str] = {"none": "constant", "linear": "scaled"}
NOTES = (
    "The loss is the mean softmax cross-entropy of the samples held out, after the last epoch. "
    f"Losses within a factor of {EQUAL:g} are called roughly equal.",
    "Document 001 figures 5 and 6 (LittleCNN, CIFAR-10, 128 samples on each of 1 to 8 V100, "
    "RMSprop, 30 epochs): with 1e-4 the loss grows with every doubling of the GPUs; with N · 1e-4 "
    "the losses are roughly equal.",
)


@dataclass(frozen=True, kw_only=True)
class RatePolicy:
    """The trainings with one way to choose the learning rate, by number of devices."""

    scaling: RateScaling
    groups: tuple[Group[int], ...]

    @property
    def name(self) -> str:
        """`constant` or `scaled`."""
        return NAMES[self.scaling]

    def losses(self) -> dict[int, float]:
        """Number of devices → validation loss in the end, of those that came to it."""
        found = ((g.key, g.median_of("validation_loss")) for g in self.groups)
        return {devices: loss for devices, loss in found if loss is not None}

    def unit(self) -> str:
        """Of a multiple of the loss of the fewest devices."""
        return f"× the loss of {format_devices(min(self.losses()))}"

    def worst(self) -> float | None:
        """The loss that differs most from that of the fewest devices, as a multiple of it; None
        with a single number of devices."""
        losses = list(self.losses().values())
        if len(losses) < 2:
            return None
        return max((loss / losses[0] for loss in losses[1:]), key=lambda r: abs(math.log(r)))

    def rises(self) -> bool:
        """Whether every larger number of devices ends with a higher loss."""
        losses = list(self.losses().values())
        return all(a < b for a, b in pairwise(losses))


def _work(record: RunRecord) -> Train:
    assert isinstance(record.spec.work, Train)
    return record.spec.work


def _devices(record: RunRecord) -> int:
    return record.spec.placement.devices


def policies(records: Sequence[RunRecord]) -> list[RatePolicy]:
    """Constant and scaled; one device stands in both, for there the two are the same."""
    found = []
    for scaling in NAMES:
        own = [r for r in records if _devices(r) == 1 or _work(r).rate_scaling == scaling]
        groups = sorted(group_by(own, _devices), key=lambda g: g.key)
        found.append(RatePolicy(scaling=scaling, groups=tuple(groups)))
    return found


def findings(found: Sequence[RatePolicy]) -> Iterator[Finding]:
    """What each policy shows, and whether scaling helps."""
    constant, scaled = found
    both = constant.worst(), scaled.worst()
    if both[0] is not None:
        grows = "grows with the devices" if constant.rises() else "does not grow with every step"
        yield Finding(
            question="What does a constant learning rate cost?",
            text=f"With a constant rate the loss {grows}: {told(constant)}.",
            value=both[0],
            unit=constant.unit(),
            remedy="Scale the rate with the number of devices." if both[0] > EQUAL else "",
        )
    if both[1] is not None:
        equal = 1 / EQUAL <= both[1] <= EQUAL
        yield Finding(
            question="Does scaling the learning rate make up for it?",
            text=f"With the rate times the number of devices the losses are "
            f"{'roughly equal' if equal else 'not equal'}: {told(scaled)}.",
            value=both[1],
            unit=scaled.unit(),
            remedy="" if equal else _longer(scaled),
        )
    for policy in found:
        for group in policy.groups:
            if not group.ok and (policy is constant or group.key > 1):
                where = format_devices(group.key)
                yield Finding(text=f"{where}, {policy.name} rate: {group.why}.")


def _longer(policy: RatePolicy) -> str:
    """What to do about losses that are not equal: where little was learned, learn more."""
    epochs = max(_work(r).epochs for g in policy.groups for r in g.ok)
    if epochs >= DOCUMENT_EPOCHS:
        return ""
    made = [f"{_updates(g.ok[0])} on {g.key}" for g in policy.groups if g.ok]
    return (
        f"Train for longer (set epochs={DOCUMENT_EPOCHS}): updates made in these {epochs} epochs "
        f"are {format_list(made)}."
    )


def told(policy: RatePolicy) -> str:
    """The losses, each with its number of devices."""
    ends = [f"{loss:.3g} on {devices}" for devices, loss in policy.losses().items()]
    return format_list(ends)


def tables(found: Sequence[RatePolicy]) -> tuple[Table, ...]:
    """A row for each training."""
    columns = (
        Column(name="learning rate"),
        Column(name="devices"),
        Column(name="global minibatch"),
        Column(name="rate"),
        Column(name="updates", digits=12),
        Column(name="validation loss"),
        Column(name="accuracy", unit="%"),
    )
    rows = tuple(_row(policy, group) for policy in found for group in policy.groups)
    return (Table(title="After the last epoch", columns=columns, rows=rows),) if rows else ()


def _row(policy: RatePolicy, group: Group[int]) -> tuple[Cell, ...]:
    record = (group.ok or group.records)[0]
    work = _work(record)
    rate = work.learning_rate * (group.key if policy.scaling == "linear" else 1)
    head = (
        Cell(text=policy.name, run_id=group.run_id),
        Cell(value=group.key),
        Cell(value=record.spec.global_batch),
        Cell(text=f"{rate:g}"),
    )
    if not group.ok:
        return (*head, *[group.cell(None)] * 3)
    loss = group.median_of("validation_loss")
    return (
        *head,
        Cell(value=_updates(record)),
        Cell(value=loss, run_id=group.run_id),
        group.cell(_percent(record.figures["accuracy"])),
    )


def _updates(record: RunRecord) -> int:
    """Every step of the first rank: all ranks make one update together."""
    return sum(w.steps for w in record.windows if w.rank == 0 and w.phase != "evaluate")


def _percent(share: Figure) -> Figure:
    low, high = (None if end is None else 100 * end for end in (share.low, share.high))
    return Figure(value=100 * share.value, unit="%", low=low, high=high, n=share.n)


def charts(found: Sequence[RatePolicy], name: str) -> Iterator[Chart]:
    """The document's two policies by epoch; and by time, where every device has cores of its own.
    Then the end of each curve by number of devices."""
    for policy in found:
        yield from _curves(policy, f"{name}-{policy.name}")
    ends = tuple(
        Line(
            name=f"{policy.name} rate",
            points=tuple(
                Point(x=str(devices), y=loss) for devices, loss in policy.losses().items()
            ),
        )
        for policy in found
    )
    if any(len(line.points) > 1 for line in ends):
        yield Chart(
            name=name,
            title="Validation loss after the last epoch, by number of devices",
            kind="bar",
            x=Axis(name="devices", scale="category"),
            y=Axis(name="validation loss", from_zero=True),
            lines=ends,
        )


def _curves(policy: RatePolicy, name: str) -> Iterator[Chart]:
    good = [g for g in policy.groups if g.ok]
    timed = not any(w.code == "oversubscribed" for g in good for r in g.ok for w in r.warnings)
    for axis, by_time in (("epoch", False), ("time", True)):
        if not good or (by_time and not timed):
            continue
        yield Chart(
            name=f"{name}-{axis}",
            title=f"Validation loss by {axis}, {policy.name} learning rate",
            kind="line",
            x=Axis(name=axis, unit="s" if by_time else ""),
            y=Axis(name="validation loss"),
            lines=tuple(_curve(g, by_time) for g in good),
        )


def _curve(group: Group[int], by_time: bool) -> Line:
    record = group.ok[0]
    curve = next(c for c in record.curves if c.name == "validation_loss")
    ended = _epoch_ends(record) if by_time else {}
    return Line(
        name=format_devices(group.key),
        points=tuple(
            Point(x=ended.get(int(x), x), y=y, run_id=record.run_id)
            for x, y in zip(curve.x, curve.y, strict=True)
        ),
    )


def _epoch_ends(record: RunRecord) -> dict[int, float]:
    """Epoch → seconds of training until its end, the evaluations left out."""
    ended: dict[int, float] = {}
    spent = 0.0
    for window in record.windows:
        if window.rank == 0 and window.phase != "evaluate":
            spent += window.elapsed_s
            for mark in window.marks:
                ended[int(mark.removeprefix("epoch-"))] = spent
    return ended


def reduced(records: Sequence[RunRecord]) -> Iterator[Warning]:
    """What was trained less than the document did."""
    for record in records[:1]:
        work = _work(record)
        if work.epochs < DOCUMENT_EPOCHS or work.batch_per_device < DOCUMENT_BATCH:
            yield warn(
                "reduced",
                f"These are {work.epochs} epochs with {work.batch_per_device} samples on each "
                f"device; the document has {DOCUMENT_EPOCHS} and {DOCUMENT_BATCH}.",
                f"Use --set epochs={DOCUMENT_EPOCHS} --set batch_per_device={DOCUMENT_BATCH}.",
            )
