"""Findings, table and charts of `train`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Curve,
    Finding,
    Line,
    Point,
    RunRecord,
    Table,
    Train,
)
from cubemesh.units import format_seconds

PERCENT = 100


def last(records: Sequence[RunRecord]) -> RunRecord | None:
    """The last attempt, which resumed the earlier ones."""
    return records[-1] if records else None


def findings(records: Sequence[RunRecord]) -> Iterator[Finding]:
    """Accuracy; target reached or not; how earlier attempts ended."""
    record = last(records)
    if record is None:
        return
    if record.ok:
        yield _accuracy(record)
        yield from _target(record)
    else:
        yield Finding(
            code="training-failed", text=f"The training did not complete: {_ending(record)}"
        )
    for earlier in records[:-1]:
        following = records[records.index(earlier) + 1]
        step = following.figure("resumed_at_step")
        where = "started over" if step is None else f"resumed from step {step:.0f}"
        yield Finding(
            code="restart",
            text=f"An attempt failed: {_ending(earlier)} The next one {where}.",
            value=step,
            unit="" if step is None else "steps",
        )


def _accuracy(record: RunRecord) -> Finding:
    work, figure = _work(record), record.figures["accuracy"]
    epochs = round(record.figure("epochs_trained") or work.epochs)
    top5 = record.figure("top5_accuracy")
    also = f" (top-5 {PERCENT * top5:.1f} %)" if top5 is not None else ""
    return Finding(
        code="accuracy",
        question="What accuracy does it reach?",
        text=f"Accuracy of {work.network} after {epochs} epochs of {work.data}: "
        f"{PERCENT * figure.value:.1f} % of the held-out samples{also}.",
        value=PERCENT * figure.value,
        unit="% top-1",
        low=None if figure.low is None else PERCENT * figure.low,
        high=None if figure.high is None else PERCENT * figure.high,
    )


def _target(record: RunRecord) -> Iterator[Finding]:
    work = _work(record)
    if work.target_accuracy is None:
        return
    target = f"{PERCENT * work.target_accuracy:g} %"
    epoch = record.figure("target_epoch")
    if epoch is None:
        yield Finding(
            code="target-missed",
            text=f"The target of {target} was not reached in {work.epochs} epochs.",
            remedy="Train for more epochs, or change the learning rate or batch size.",
        )
        return
    duration = ""
    if record.figure("resumed_at_step") is None:
        duration = f", after {format_seconds(_training_s(record))} of training and evaluation"
    yield Finding(
        code="target-reached",
        text=f"The target of {target} was reached in epoch {epoch:.0f}{duration}.",
        value=epoch,
        unit="epochs",
    )


def _training_s(record: RunRecord) -> float:
    """Seconds from the first step to the end of the last evaluation, on the first rank."""
    own = [w for w in record.windows if w.rank == 0]
    return max(w.start_s + w.elapsed_s for w in own) - min(w.start_s for w in own)


def _ending(record: RunRecord) -> str:
    message = record.outcome.message or str(record.outcome.status)
    return message if message.endswith(".") else f"{message}."


def table(records: Sequence[RunRecord]) -> Iterator[Table]:
    """A row per epoch."""
    record = last(records)
    accuracy = None if record is None else _curve(record, "validation_accuracy")
    if record is None or accuracy is None or not accuracy.x:
        return
    columns = (
        Column(name="epoch"),
        Column(name="training loss"),
        Column(name="validation loss"),
        Column(name="top-1", unit="%"),
        Column(name="top-5", unit="%"),
        Column(name="samples/s"),
    )
    rows = tuple(_row(record, round(epoch)) for epoch in accuracy.x)
    yield Table(title="Epochs", columns=columns, rows=rows)


def _row(record: RunRecord, epoch: int) -> tuple[Cell, ...]:
    place = epoch - 1
    loss = _curve(record, "validation_loss")
    assert loss is not None, "logged with the accuracy"
    return (
        Cell(text=str(epoch), run_id=record.run_id),
        _cell(_training_loss(record, epoch), "not logged"),
        Cell(value=loss.y[place]),
        _cell(_percent(record, "validation_accuracy", place), "not logged"),
        _cell(_percent(record, "validation_top5_accuracy", place), "five classes or fewer"),
        _cell(_rate(record, epoch), "trained by an earlier run"),
    )


def _cell(value: float | None, reason: str) -> Cell:
    return Cell(reason=reason) if value is None else Cell(value=value)


def _percent(record: RunRecord, name: str, place: int) -> float | None:
    curve = _curve(record, name)
    return None if curve is None else PERCENT * curve.y[place]


def _training_loss(record: RunRecord, epoch: int) -> float | None:
    """The last value in an epoch; all epochs have the same number of steps."""
    curve, scored = _curve(record, "training_loss"), _curve(record, "validation_loss")
    if curve is None or scored is None or not curve.x:
        return None
    each = max(curve.x) / len(scored.x)
    own = [y for x, y in zip(curve.x, curve.y, strict=True) if x <= each * epoch + 0.5]
    return own[-1] if own else None


def _rate(record: RunRecord, epoch: int) -> float | None:
    """Samples/s of all ranks in an epoch's measured windows."""
    own = [w for w in record.measured if f"epoch-{epoch}" in w.marks]
    ranks = {w.rank for w in own}
    seconds = sum(w.elapsed_s for w in own) / max(1, len(ranks))
    return sum(w.samples for w in own) / seconds if seconds else None


def charts(network: str, records: Sequence[RunRecord]) -> Iterator[Chart]:
    """Accuracy by epoch, and the training loss by step."""
    record = last(records)
    if record is None:
        return
    accuracies = [
        _line(name, record, curve, PERCENT)
        for name, key in (("top-1", "validation_accuracy"), ("top-5", "validation_top5_accuracy"))
        if (curve := _curve(record, key)) is not None and curve.x
    ]
    if accuracies:
        yield Chart(
            name=f"train-{network}-accuracy",
            title="Accuracy on held-out samples by epoch",
            kind="line",
            x=Axis(name="epoch"),
            y=Axis(name="accuracy", unit="%"),
            lines=tuple(accuracies),
        )
    losses = _curve(record, "training_loss")
    if losses is not None and losses.x:
        yield Chart(
            name=f"train-{network}-loss",
            title="Training loss by step",
            kind="line",
            x=Axis(name="step"),
            y=Axis(name="loss"),
            lines=(_line(network, record, losses, 1),),
        )


def _line(name: str, record: RunRecord, curve: Curve, times: float) -> Line:
    pairs = zip(curve.x, curve.y, strict=True)
    return Line(
        name=name, points=tuple(Point(x=x, y=times * y, run_id=record.run_id) for x, y in pairs)
    )


def _curve(record: RunRecord, name: str) -> Curve | None:
    return next((curve for curve in record.curves if curve.name == name), None)


def _work(record: RunRecord) -> Train:
    assert isinstance(record.spec.work, Train)
    return record.spec.work
