"""Findings, table and charts of `lr-scaling`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cubemesh.experiments.analysis.answer import failed_run
from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.experiments.analysis.trainings import training_of, update_count
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    Point,
    RunRecord,
    Table,
    Warning,
    warn,
)
from cubemesh.schema.work import RateScaling
from cubemesh.units import format_devices, format_list

PAPER_EPOCHS = 30
PAPER_BATCH = 128
EQUAL = 1.25
"""Largest ratio of two validation losses that count as roughly equal; the paper states none."""
NAMES: dict[RateScaling, str] = {"none": "constant", "linear": "scaled"}
NOTES = (
    "The loss is the mean softmax cross-entropy of the held-out samples after the last epoch. "
    f"Losses within a factor of {EQUAL:g} count as roughly equal.",
    "DGX-1 best practices [001], figures 5 and 6 (LittleCNN, CIFAR-10, batch size 128 on each of 1 "
    "to 8 V100, RMSprop, 30 epochs): with 1e-4 the loss grows with every doubling of the GPUs; "
    "with N · 1e-4 the losses are roughly equal.",
)


@dataclass(frozen=True, kw_only=True)
class RatePolicy:
    """Trainings with a constant or a scaled learning rate, by number of devices."""

    scaling: RateScaling
    groups: tuple[Group[int], ...]

    @property
    def name(self) -> str:
        """`constant` or `scaled`."""
        return NAMES[self.scaling]

    def losses(self) -> dict[int, float]:
        """Number of devices → final validation loss, of completed trainings."""
        found = ((g.key, g.median_of("validation_loss")) for g in self.groups)
        return {devices: loss for devices, loss in found if loss is not None}

    def unit(self) -> str:
        """Unit of losses relative to the fewest devices."""
        return f"× the loss of {format_devices(min(self.losses()))}"

    def worst(self) -> float | None:
        """The loss that differs most from that of the fewest devices, relative to it; None with a
        single number of devices."""
        losses = list(self.losses().values())
        if len(losses) < 2:
            return None
        return max((loss / losses[0] for loss in losses[1:]), key=lambda r: abs(math.log(r)))

    def rises(self) -> bool:
        """Whether every larger number of devices has a higher final loss."""
        losses = list(self.losses().values())
        return all(a < b for a, b in pairwise(losses))


def _devices(record: RunRecord) -> int:
    return record.spec.placement.devices


def policies(records: Sequence[RunRecord]) -> list[RatePolicy]:
    """Constant and scaled; one device belongs to both, which are the same there."""
    found = []
    for scaling in NAMES:
        own = [r for r in records if _devices(r) == 1 or training_of(r).rate_scaling == scaling]
        groups = sorted(group_by(own, _devices), key=lambda g: g.key)
        found.append(RatePolicy(scaling=scaling, groups=tuple(groups)))
    return found


def findings(found: Sequence[RatePolicy]) -> Iterator[Finding]:
    """Loss by number of devices with either rate, and failed runs."""
    constant, scaled = found
    both = constant.worst(), scaled.worst()
    if both[0] is not None:
        grows = "grows" if constant.rises() else "does not always grow"
        yield Finding(
            code="constant-rate-loss",
            question="What does a constant learning rate cost?",
            text=f"With a constant rate the loss {grows} with the number of devices: "
            f"{losses_text(constant)}.",
            value=both[0],
            unit=constant.unit(),
            remedy="Scale the learning rate with the number of devices." if both[0] > EQUAL else "",
        )
    if both[1] is not None:
        equal = 1 / EQUAL <= both[1] <= EQUAL
        yield Finding(
            code="equal-losses" if equal else "unequal-losses",
            question="Does scaling the learning rate compensate?",
            text=f"With the rate scaled by the number of devices the losses are "
            f"{'roughly equal' if equal else 'not equal'}: {losses_text(scaled)}.",
            value=both[1],
            unit=scaled.unit(),
            remedy="" if equal else _longer(scaled),
        )
    for policy in found:
        for group in policy.groups:
            if not group.ok and (policy is constant or group.key > 1):
                where = format_devices(group.key)
                yield failed_run(f"{where}, {policy.name} rate", group)


def _longer(policy: RatePolicy) -> str:
    """Remedy of unequal losses: more epochs, if there were few."""
    epochs = max(training_of(r).epochs for g in policy.groups for r in g.ok)
    if epochs >= PAPER_EPOCHS:
        return ""
    updates = [f"{update_count(g.ok[0])} on {g.key}" for g in policy.groups if g.ok]
    return (
        f"Train for longer (set epochs={PAPER_EPOCHS}): these {epochs} epochs made only "
        f"{format_list(updates)} updates."
    )


def losses_text(policy: RatePolicy) -> str:
    """The losses by number of devices."""
    ends = [f"{loss:.3g} on {devices}" for devices, loss in policy.losses().items()]
    return format_list(ends)


def tables(found: Sequence[RatePolicy]) -> tuple[Table, ...]:
    """A row for each training."""
    columns = (
        Column(name="learning rate"),
        Column(name="devices"),
        Column(name="global batch size"),
        Column(name="rate"),
        Column(name="updates", digits=12),
        Column(name="validation loss"),
        Column(name="accuracy", unit="%"),
    )
    rows = tuple(_row(policy, group) for policy in found for group in policy.groups)
    return (Table(title="After the last epoch", columns=columns, rows=rows),) if rows else ()


def _row(policy: RatePolicy, group: Group[int]) -> tuple[Cell, ...]:
    record = (group.ok or group.records)[0]
    work = training_of(record)
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
        Cell(value=update_count(record)),
        Cell(value=loss, run_id=group.run_id),
        group.cell(record.figures["accuracy"].scaled(100, "%")),
    )


def charts(found: Sequence[RatePolicy], name: str) -> Iterator[Chart]:
    """Loss by epoch, and by time if devices do not share cores; final loss by number of devices."""
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
            title="Final validation loss by number of devices",
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
    curve = record.curve("validation_loss")
    assert curve is not None, "every training logs it"
    ended = _epoch_ends(record) if by_time else {}
    return Line(
        name=format_devices(group.key),
        points=tuple(
            Point(x=ended.get(int(x), x), y=y, run_id=record.run_id)
            for x, y in zip(curve.x, curve.y, strict=True)
        ),
    )


def _epoch_ends(record: RunRecord) -> dict[int, float]:
    """Epoch → seconds of training until its end, without evaluations."""
    ended: dict[int, float] = {}
    spent = 0.0
    for window in record.windows:
        if window.rank == 0 and window.phase != "evaluate":
            spent += window.elapsed_s
            for mark in window.marks:
                ended[int(mark.removeprefix("epoch-"))] = spent
    return ended


def reduced(records: Sequence[RunRecord]) -> Iterator[Warning]:
    """The warning `reduced` if less was trained than in the paper."""
    for record in records[:1]:
        work = training_of(record)
        if work.epochs < PAPER_EPOCHS or work.batch_per_device < PAPER_BATCH:
            yield warn(
                "reduced",
                f"{work.epochs} epochs with batch size {work.batch_per_device} per device; the "
                f"paper has {PAPER_EPOCHS} and {PAPER_BATCH}.",
                f"Use --set epochs={PAPER_EPOCHS} --set batch_per_device={PAPER_BATCH}.",
            )
