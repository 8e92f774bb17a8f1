"""Findings, table and charts of `train`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from cubemesh.experiments.analysis.trainings import curve_line, training_of, training_s
from cubemesh.experiments.train.goodput import goodput_finding, goodput_table
from cubemesh.forecast.training.cost import HOUR_S, known_columns, read_prices, training_cost
from cubemesh.networks import rate_unit
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    NetworkWork,
    RunRecord,
    Table,
)
from cubemesh.units import (
    format_bytes,
    format_count,
    format_list,
    format_number,
    format_quantity,
    format_seconds,
)


def findings(records: Sequence[RunRecord]) -> Iterator[Finding]:
    """Accuracy; target reached or not; gain of the local copy; how earlier attempts ended."""
    if not records:
        return
    record = records[-1]
    if record.ok:
        yield _detection(record) if "map" in record.figures else _accuracy(record)
        yield from _auc(record)
        yield from _segmentation(record)
        yield from _translation(record)
        yield from _target(record)
        yield from _staging(record)
    else:
        yield Finding(
            code="training-failed", text=f"The training did not complete: {_ending(record)}"
        )
    for earlier, following in pairwise(records):
        step = following.figure("resumed_at_step")
        where = "started over" if step is None else f"resumed from step {step:.0f}"
        yield Finding(
            code="restart",
            text=f"An attempt failed: {_ending(earlier)} The next one {where}.",
            value=step,
            unit="" if step is None else "steps",
        )
    yield from goodput_finding(records)


def _accuracy(record: RunRecord) -> Finding:
    work, figure = training_of(record), record.figures["accuracy"].scaled(100, "%")
    epochs = round(record.figure("epochs_trained") or work.epochs)
    top5 = record.figure("top5_accuracy")
    also = f" (top-5 {100 * top5:.1f} %)" if top5 is not None else ""
    return Finding.of(
        code="accuracy",
        question="What accuracy does it reach?",
        text=f"Accuracy of {work.network} after {epochs} epochs of {work.data}: "
        f"{figure.value:.1f} % of the held-out samples{also}.",
        figure=figure,
        unit="% top-1",
    )


def _auc(record: RunRecord) -> Iterator[Finding]:
    """The area under the ROC curve, of two classes."""
    if (figure := record.figures.get("auc")) is None:
        return
    work = training_of(record)
    yield Finding.of(
        code="auc",
        question="How well does it rank the two classes?",
        text=f"Area under the ROC curve of {work.network} on the held-out samples of {work.data}: "
        f"{100 * figure.value:.1f} %: the share of pairs, one sample of each class, in which the "
        "second class has the higher score. 50 % is chance.",
        figure=figure.scaled(100, "%"),
        unit="% AUC",
    )


def _detection(record: RunRecord) -> Finding:
    """The mean average precision of a detector, and its worst class."""
    work, figure = training_of(record), record.figures["map"].scaled(100, "%")
    epochs = round(record.figure("epochs_trained") or work.epochs)
    at_half, by_class = record.figure("map50") or 0.0, record.curve("class_ap")
    worst = ""
    if by_class is not None and len(by_class.x) > 1:
        value, number = min(zip(by_class.y, by_class.x, strict=True))
        worst = f"; the worst is class {round(number)} with {100 * value:.1f} %"
    return Finding.of(
        code="mean-average-precision",
        question="How well does it detect objects?",
        text=f"mAP of {work.network} after {epochs} epochs of {work.data}: {figure.value:.1f} % "
        f"over intersections over union of 0.5 to 0.95, {100 * at_half:.1f} % at 0.5, on "
        f"{format_count(figure.n or 0)} held-out images{worst}.",
        figure=figure,
        unit="% mAP",
    )


def _segmentation(record: RunRecord) -> Iterator[Finding]:
    """The mean intersection over union of a segmentation, and its worst class."""
    mean, by_class = record.figures.get("mean_iou"), record.curve("class_iou")
    if mean is None or by_class is None:
        return
    work = training_of(record)
    worst, number = min(zip(by_class.y, by_class.x, strict=True))
    yield Finding(
        code="mean-iou",
        question="How well are the pixels of each class found?",
        text=f"Mean intersection over union of {work.network} on the held-out images of "
        f"{work.data}: {100 * mean.value:.1f} % over {format_count(len(by_class.x))} classes; the "
        f"worst is class {round(number)} with {100 * worst:.1f} %.",
        value=100 * mean.value,
        unit="% mean IoU",
    )


def _translation(record: RunRecord) -> Iterator[Finding]:
    """BLEU, perplexity and the speed of an epoch, of sentence pairs."""
    perplexity, bleu = record.figure("perplexity"), record.figures.get("bleu")
    if perplexity is None:
        return
    work = training_of(record)
    judged = f"perplexity {format_number(perplexity)} on the held-out sentences of {work.data}"
    if bleu is None:
        yield Finding(
            code="perplexity",
            text=f"{work.network} reaches {judged}.",
            value=perplexity,
            remedy="Set beam_width=1 (greedy search) or more for BLEU.",
        )
    else:
        width, rate = work.beam_width or 1, record.figure("translated_per_s")
        search = "greedy search" if width == 1 else f"beam search of {width} hypotheses"
        speed = f", {format_quantity(rate, 'sentences/s')}" if rate else ""
        yield Finding(
            code="bleu",
            text=f"{work.network} reaches BLEU {bleu.value:.1f} by {search}{speed}; {judged}.",
            value=bleu.value,
            unit="BLEU",
        )
    epoch_s, tokens = record.figure("epoch_s"), record.figure("tokens_per_s")
    rate = _rate(record, round(record.figure("epochs_trained") or 1))
    if epoch_s is not None and tokens is not None and rate is not None:
        yield Finding(
            code="epoch-time",
            text=f"An epoch of {work.data} takes {format_seconds(epoch_s)} without its evaluation: "
            f"{format_quantity(rate, 'sentences/s')}, {format_quantity(tokens, 'tokens/s')} of the "
            "target.",
            value=epoch_s,
            unit="s",
        )


def _target(record: RunRecord) -> Iterator[Finding]:
    work = training_of(record)
    if work.target_accuracy is None:
        return
    target = f"{100 * work.target_accuracy:g} %"
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
        duration = f", after {format_seconds(training_s(record))} of training and evaluation"
    yield Finding(
        code="target-reached",
        text=f"The target of {target} was reached in epoch {epoch:.0f}{duration}.",
        value=epoch,
        unit="epochs",
    )


def _staging(record: RunRecord) -> Iterator[Finding]:
    """How much faster the epochs are that read what the first one copied to the local disk."""
    work, staged = training_of(record), record.figures.get("staged_bytes")
    if staged is None or record.figure("resumed_at_step") is not None:
        return
    first = _rate(record, 1)
    epochs = range(2, 1 + round(record.figure("epochs_trained") or 1))
    later = [rate for epoch in epochs if (rate := _rate(record, epoch)) is not None]
    if first is None or not later:
        return
    mean = len(later) / sum(1 / rate for rate in later)  # epochs have equal numbers of samples
    unit = rate_unit(work.network)
    gain = mean / first
    copied = f"{format_bytes(staged.value)} in {record.spec.program.stage_folder}"
    why = f"; copying ended: {staged.method}" if staged.method else ""
    yield Finding(
        code="staging-gain",
        text=f"Epoch 1 read from {work.data_path} and trained {format_quantity(first, unit)}; "
        f"later epochs read the local copy and trained {format_quantity(mean, unit)}: "
        f"{gain:.3g} × the first ({copied}{why}).",
        value=gain,
        unit="× epoch 1",
    )


def _ending(record: RunRecord) -> str:
    message = record.outcome.message or str(record.outcome.status)
    return message if message.endswith(".") else f"{message}."


def cost_finding(records: Sequence[RunRecord], cost: Sequence[str]) -> Iterator[Finding]:
    """Energy, money and CO₂ of a training over all its attempts, if prices were given."""
    if not cost or not records or not records[-1].ok:
        return
    last, prices = records[-1], read_prices(cost)
    found = training_cost(
        prices,
        hours=math.fsum(record.elapsed_s for record in records) / HOUR_S,
        devices=last.spec.placement.devices,
        watts=last.figure("mean_power_watts"),
    )
    columns = known_columns([found])
    values = [(name, getattr(found, name), unit) for name, (_, unit) in columns.items()]
    words = {"rented": "rented", "owned": "owned", "electricity": "its electricity"}
    parts = [f"{format_number(value)} {unit}" for _, value, unit in values if unit]
    parts += [f"{format_number(value)} {words[name]}" for name, value, unit in values if not unit]
    money = [m for m in (found.rented, found.owned, found.electricity) if m is not None]
    unknown = "" if found.energy_kwh is not None else " Its power was not measured."
    yield Finding(
        code="training-cost",
        text=f"This training cost {format_list(parts)} (money in the unit of the prices).{unknown}",
        value=money[0] if money else None,
        unit="units of money" if money else "",
    )


def table(records: Sequence[RunRecord]) -> Iterator[Table]:
    """A row per epoch, and the goodput to expect."""
    yield from _epochs(records)
    yield from goodput_table(records)


def _epochs(records: Sequence[RunRecord]) -> Iterator[Table]:
    accuracy = records[-1].curve("validation_accuracy") if records else None
    if accuracy is None:
        return
    work = records[-1].spec.work
    assert isinstance(work, NetworkWork)
    record = records[-1]
    detects = record.curve("validation_map") is not None
    names = ("mAP", "mAP50") if detects else ("top-1", "top-5")
    columns = (
        Column(name="epoch"),
        Column(name="training loss"),
        Column(name="validation loss"),
        *(Column(name=name, unit="%") for name in names),
        *([Column(name="AUC", unit="%")] if record.curve("validation_auc") else []),
        *([Column(name="mean IoU", unit="%")] if record.curve("validation_mean_iou") else []),
        *([Column(name="perplexity")] if record.curve("perplexity") is not None else []),
        *([Column(name="BLEU")] if record.curve("bleu") is not None else []),
        Column(name=rate_unit(work.network)),
    )
    rows = tuple(_row(records[-1], round(epoch)) for epoch in accuracy.x)
    yield Table(title="Epochs", columns=columns, rows=rows)


def _row(record: RunRecord, epoch: int) -> tuple[Cell, ...]:
    place = epoch - 1
    loss, iou = record.curve("validation_loss"), _percent(record, "validation_mean_iou", place)
    auc = _percent(record, "validation_auc", place)
    detects = record.curve("validation_map50") is not None
    second = "validation_map50" if detects else "validation_top5_accuracy"
    assert loss is not None, "logged with the accuracy"
    return (
        Cell(text=str(epoch), run_id=record.run_id),
        _cell(_training_loss(record, epoch), "not logged"),
        Cell(value=loss.y[place]),
        _cell(_percent(record, "validation_accuracy", place), "not logged"),
        _cell(_percent(record, second, place), "five classes or fewer"),
        *([Cell(value=auc)] if auc is not None else []),
        *([Cell(value=iou)] if iou is not None else []),
        *(_at(record, name, epoch) for name in ("perplexity", "bleu") if record.curve(name)),
        _cell(_rate(record, epoch), "trained by an earlier run"),
    )


def _cell(value: float | None, reason: str) -> Cell:
    return Cell(reason=reason) if value is None else Cell(value=value)


def _at(record: RunRecord, name: str, epoch: int) -> Cell:
    """The value of a curve after an epoch."""
    curve = record.curve(name)
    found = {} if curve is None else dict(zip(curve.x, curve.y, strict=True))
    return _cell(found.get(float(epoch)), "not translated")


def _percent(record: RunRecord, name: str, place: int) -> float | None:
    curve = record.curve(name)
    return None if curve is None else 100 * curve.y[place]


def _training_loss(record: RunRecord, epoch: int) -> float | None:
    """The last value in an epoch; all epochs have the same number of steps."""
    curve, scored = record.curve("training_loss"), record.curve("validation_loss")
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
    """Accuracy by epoch; intersection over union or average precision by class, BLEU and training
    loss where logged."""
    if not records:
        return
    record = records[-1]
    detects = record.curve("validation_map") is not None
    accuracies = [
        curve_line(name, record, curve, 100)
        for name, key in (
            ("mAP" if detects else "top-1", "validation_accuracy"),
            ("mAP50", "validation_map50"),
            ("top-5", "validation_top5_accuracy"),
            ("AUC", "validation_auc"),
            ("mean IoU", "validation_mean_iou"),
        )
        if (curve := record.curve(key)) is not None and curve.x
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
    iou = Axis(name="intersection over union", unit="%")
    precision = Axis(name="average precision", unit="%")
    for key, name, title, x, y in (
        ("class_iou", "class-iou", "Intersection over union by class, last epoch", "class", iou),
        ("class_ap", "class-ap", "Average precision by class, last epoch", "class", precision),
        ("bleu", "bleu", "BLEU on held-out sentences by epoch", "epoch", Axis(name="BLEU")),
        ("training_loss", "loss", "Training loss by step", "step", Axis(name="loss")),
    ):
        curve = record.curve(key)
        if curve is not None and curve.x:
            yield Chart(
                name=f"train-{network}-{name}",
                title=title,
                kind="line",
                x=Axis(name=x),
                y=y,
                lines=(curve_line(network, record, curve, 100 if y.unit == "%" else 1),),
            )
