"""What `cubemesh export`, `cubemesh build` and `cubemesh infer` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.api.inference import (
    BuiltPlan,
    Classification,
    ExportedNetwork,
    MeasuredPlan,
    Translation,
)
from cubemesh.inference.build import proof_text
from cubemesh.inference.engines import title
from cubemesh.inference.plan_file import PlanDevice, PlanDocument, Proof, Trial
from cubemesh.networks import rate_unit
from cubemesh.schema.serialization import to_plain
from cubemesh.units import (
    format_bytes,
    format_count,
    format_interval,
    format_list,
    format_number,
    format_seconds,
)
from cubemesh.untrusted import clean
from cubemesh.views import terminal
from cubemesh.views.json_output import envelope
from cubemesh.views.tables import table_of_texts


def export_document(done: ExportedNetwork) -> dict[str, Any]:
    """The JSON of `cubemesh export`."""
    return envelope("export", **to_plain(done))


def print_export(console: Console, done: ExportedNetwork) -> None:
    """One line about the file."""
    console.print(
        Text(
            f"Wrote {done.file} ({done.format}, {format_bytes(done.size_bytes)}): {done.network}, "
            f"{format_count(done.parameters)} parameters, {done.weights}."
        )
    )


def build_document(done: BuiltPlan) -> dict[str, Any]:
    """The JSON of `cubemesh build`."""
    return envelope("build", **to_plain(done))


def print_build(console: Console, done: BuiltPlan) -> None:
    """What the passes did, the accuracy of lower precisions, every trial, and the file."""
    document = done.document
    changed = [p for p in document.passes if p.before != p.after]
    if changed:
        rows = [(p.name, str(p.before), str(p.after)) for p in changed]
        _print(console, "Passes", ("pass", "operators before", "after"), rows)
    if document.proofs:
        proofs = [
            (
                _precision(proof.precision, proof.model),
                title(proof.engine),
                "yes" if proof.accepted else "no",
                proof_text(proof),
            )
            for proof in document.proofs
        ]
        _print(
            console,
            _accuracy_title(document.proofs[0]),
            ("precision", "engine", "accepted", "compared with fp32"),
            proofs,
        )
    _print(
        console,
        "Latency",
        ("batch size", "precision", "engine", "ms", "ratio to fastest", "chosen"),
        [_trial_row(document, trial) for trial in document.trials],
    )
    for choice in document.choices:
        equal = [_name(t) for t in document.trials if _is_close(t, choice)]
        if equal:
            console.print(
                Text(
                    f"At batch size {choice.batch} {format_list(equal)} may be as fast as the "
                    "chosen one: their intervals reach 1. A quiet machine or more --seconds "
                    "can tell."
                )
            )
    device = document.device
    console.print(
        Text(
            f"Wrote {done.file} ({format_bytes(done.size_bytes)}) in "
            f"{format_seconds(done.seconds)}: {clean(document.source)}, {document.steps} steps, "
            f"for {_device(device)}."
        )
    )
    console.print(Text(f"Measure it: cubemesh infer {done.file}"))


def _device(device: PlanDevice) -> str:
    """What a plan was built for: the GPU, or the processor and its threads."""
    return device.gpu or f"{device.cpu}, {device.threads} thread{'s' * (device.threads != 1)}"


def _accuracy_title(proof: Proof) -> str:
    bound = f"Accuracy, at least {proof.bound:.4g} of fp32"
    if proof.ratio is None:
        return bound
    return f"{bound}, which answers {proof.reference_right:,} of {proof.samples:,} correctly"


def _trial_row(document: PlanDocument, trial: Trial) -> tuple[str, ...]:
    chosen = "yes" if trial in document.choices else ""
    shown = (str(trial.batch), _precision(trial.precision, trial.model), title(trial.engine))
    if trial.seconds is None:
        return (*shown, "-", "-", clean(trial.error, 60))
    return (
        *shown,
        _milliseconds(trial.seconds, trial.low, trial.high),
        "1×" if trial.ratio == 1 else _ratio(trial),
        chosen,
    )


def infer_document(done: MeasuredPlan) -> dict[str, Any]:
    """The JSON of `cubemesh infer`."""
    return envelope("infer", **to_plain(done))


def print_infer(console: Console, done: MeasuredPlan) -> None:
    """The latencies, as trtexec sums them up."""
    document = done.document
    choice = next(c for c in document.choices if c.batch == max(done.split))
    split = "" if done.split == (done.batch,) else f" as {' + '.join(map(str, done.split))}"
    console.print(
        Text(
            f"{document.network}, batch size {done.batch}{split}: {choice.precision} in "
            f"{title(choice.engine)}, {_device(document.device)}"
        )
    )
    rows = [
        (name, _milliseconds(figure.value, figure.low, figure.high))
        for name, figure in done.latencies.items()
    ]
    _print(console, "Latency", ("", "ms"), rows)
    console.print(
        Text(
            f"Throughput {format_number(done.throughput_per_s)} {rate_unit(document.network)} "
            f"over {done.iterations:,} runs. Loaded in {format_seconds(done.load_s)}, first run in "
            f"{format_seconds(done.first_s)}."
        )
    )
    if done.times is not None:
        console.print(Text(f"Wrote {done.times}: the times of each run."))


def classify_document(found: Classification) -> dict[str, Any]:
    """The JSON of `cubemesh infer --image`."""
    return envelope("classification", **to_plain(found))


def print_classes(console: Console, found: Classification) -> None:
    """The most probable classes of each image, or its boxes."""
    rows: list[tuple[str, ...]] = []
    read = [image for image in found.images if not image.reason]
    if any(not image.classes or image.classes[0].box is not None for image in read):
        _print_boxes(console, found)
        return
    for image in found.images:
        if image.reason:
            rows.append((clean(image.file), f"not classified: {image.reason}", ""))
        for one in image.classes:
            percent = format_number(100 * one.probability)
            rows.append((clean(image.file), clean(one.name), percent))
    _print(console, f"Classes by {found.network}", ("image", "class", "probability (%)"), rows)
    console.print(Text(f"{found.model}: {clean(found.weights)}."))


def _print_boxes(console: Console, found: Classification) -> None:
    rows: list[tuple[str, ...]] = []
    for image in found.images:
        if not image.classes:
            why = f"not read: {image.reason}" if image.reason else "no object"
            rows.append((clean(image.file), why, "", ""))
        for one in image.classes:
            box = " ".join(f"{corner:.0f}" for corner in one.box or ())
            rows.append((clean(image.file), clean(one.name), f"{one.probability:.2f}", box))
    columns = ("image", "class", "coverage", "left top right bottom")
    _print(console, f"Boxes by {found.network}", columns, rows)
    console.print(Text(f"{found.model}: {clean(found.weights)}."))


def translation_document(found: Translation) -> dict[str, Any]:
    """The JSON of `cubemesh infer --text`."""
    return envelope("translation", **to_plain(found))


def print_translations(console: Console, found: Translation) -> None:
    """Each text with its translation."""
    rows = []
    for one in found.texts:
        shown = clean(one.translation, 2000)
        if one.reason:
            shown = f"not translated: {one.reason}"
        elif one.unknown:
            shown += f" ({one.unknown} unknown in the text)"
        rows.append((clean(one.text, 200), shown))
    _print(console, f"Translations by {found.network}", ("text", "translation"), rows)
    search = "greedy search"
    if found.beam_width > 1:
        search = (
            f"beam search of {found.beam_width} hypotheses, length penalty "
            f"{format_number(found.length_penalty)}"
        )
    console.print(Text(f"{clean(found.model)}: {clean(found.weights)}; {search}."))


def _is_close(trial: Trial, choice: Trial) -> bool:
    """Whether a trial that was not chosen may be as fast as the choice."""
    return (
        trial != choice
        and trial.batch == choice.batch
        and trial.ratio_low is not None
        and trial.ratio_low <= 1
    )


def _name(trial: Trial) -> str:
    precision = _precision(trial.precision, trial.model)
    return f"{precision} in {title(trial.engine)}"


def _ratio(trial: Trial) -> str:
    return format_interval(trial.ratio or 1.0, trial.ratio_low, trial.ratio_high, "×")


def _precision(precision: str, model: str) -> str:
    more = {"int8-products": ", products only", "fp32-siblings": ", siblings merged"}
    return precision + more.get(model, "")


def _milliseconds(seconds: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return format_number(seconds * 1e3)
    return format_interval(seconds * 1e3, low * 1e3, high * 1e3)


def _print(
    console: Console, title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> None:
    terminal.print_table(console, table_of_texts(title, columns, rows))
