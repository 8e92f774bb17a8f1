"""What is told of a training: what it learned, when, and what happened to it on the way."""

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
    """The run that tells most: the last, which went on from those before it."""
    return records[-1] if records else None


def findings(records: Sequence[RunRecord]) -> Iterator[Finding]:
    """What the network learned; the target, reached or not; how attempts before the last ended."""
    record = last(records)
    if record is None:
        return
    if record.ok:
        yield _learned(record)
        yield from _target(record)
    else:
        yield Finding(text=f"The training did not come to its end: {_ending(record)}")
    for earlier in records[:-1]:
        following = records[records.index(earlier) + 1]
        step = following.figure("resumed_at_step")
        where = "from the beginning" if step is None else f"from the checkpoint of step {step:.0f}"
        yield Finding(text=f"An attempt ended: {_ending(earlier)} The next went on {where}.")


def _learned(record: RunRecord) -> Finding:
    work, figure = _work(record), record.figures["accuracy"]
    epochs = round(record.figure("epochs_trained") or work.epochs)
    top5 = record.figure("top5_accuracy")
    also = f" (top-5 {PERCENT * top5:.1f} %)" if top5 is not None else ""
    return Finding(
        question="What has it learned?",
        text=f"After {epochs} epochs of {work.data}, {work.network} is right on "
        f"{PERCENT * figure.value:.1f} % of the held-out samples{also}.",
        value=PERCENT * figure.value,
        unit="% right",
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
            text=f"{target} was not reached in {work.epochs} epochs.",
            remedy="Train longer (epochs), or with another learning rate or minibatch.",
        )
        return
    took = ""
    if record.figure("resumed_at_step") is None:
        took = f", {format_seconds(_training_s(record))} of training and evaluating"
    yield Finding(text=f"{target} was reached in epoch {epoch:.0f}{took}.")


def _training_s(record: RunRecord) -> float:
    """From the first step to the end of the last evaluation, on the first rank."""
    own = [w for w in record.windows if w.rank == 0]
    return max(w.start_s + w.elapsed_s for w in own) - min(w.start_s for w in own)


def _ending(record: RunRecord) -> str:
    message = record.outcome.message or str(record.outcome.status)
    return message if message.endswith(".") else f"{message}."


def table(records: Sequence[RunRecord]) -> Iterator[Table]:
    """A row an epoch."""
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
    yield Table(title="Epoch by epoch", columns=columns, rows=rows)


def _row(record: RunRecord, epoch: int) -> tuple[Cell, ...]:
    place = epoch - 1
    loss = _curve(record, "validation_loss")
    assert loss is not None, "told with the accuracy"
    return (
        Cell(text=str(epoch), run_id=record.run_id),
        _cell(_training_loss(record, epoch), "none was read"),
        Cell(value=loss.y[place]),
        _cell(_percent(record, "validation_accuracy", place), "not told"),
        _cell(_percent(record, "validation_top5_accuracy", place), "five classes or fewer"),
        _cell(_rate(record, epoch), "trained by an earlier run"),
    )


def _cell(value: float | None, reason: str) -> Cell:
    return Cell(reason=reason) if value is None else Cell(value=value)


def _percent(record: RunRecord, name: str, place: int) -> float | None:
    curve = _curve(record, name)
    return None if curve is None else PERCENT * curve.y[place]


def _training_loss(record: RunRecord, epoch: int) -> float | None:
    """The last that was read in an epoch. Steps of an epoch are those of all, evenly shared."""
    curve, scored = _curve(record, "training_loss"), _curve(record, "validation_loss")
    if curve is None or scored is None or not curve.x:
        return None
    each = max(curve.x) / len(scored.x)
    own = [y for x, y in zip(curve.x, curve.y, strict=True) if x <= each * epoch + 0.5]
    return own[-1] if own else None


def _rate(record: RunRecord, epoch: int) -> float | None:
    """Samples of all ranks in an epoch's measured windows, over the time these took."""
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
