"""Page of an image set: its classes with their counts, and a sample of pictures of each class.

One file without scripts and without requests: pictures are in it as small JPEGs.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import cubemesh
from cubemesh.data.prepare.picture_sample import Picture, SetSample
from cubemesh.durable_files import replace_file
from cubemesh.errors import UsageError
from cubemesh.units import format_bytes, format_count
from cubemesh.untrusted import clean
from cubemesh.views.report.render import environment
from cubemesh.views.report.style import report_style

SUFFIXES = (".html", ".htm")
MOST_CLASSES = 5000
"""Classes of more are left out of the page; `--list --json` has all."""
_MOST_NAME = 120


@dataclass(frozen=True, kw_only=True)
class _Class:
    """A class on the page."""

    name: str
    counts: str
    share: float
    """Of the images of the largest class."""
    pictures: tuple[tuple[Picture, str, str], ...]
    """Picture, what it is as text, its address."""


def check_path(path: Path) -> None:
    """UsageError for a suffix that is not one of `SUFFIXES`."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--page {path}: give the page a name that ends in {SUFFIXES[0]}.")


def write_page(path: Path, sample: SetSample) -> None:
    """Write the page. UsageError for another suffix, or where it cannot be written."""
    check_path(path)
    try:
        replace_file(path, render(sample).encode())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}. Choose another path."
        ) from None


def render(sample: SetSample) -> str:
    """The page as text."""
    listed = sample.listed
    each = list(zip(*listed.counts.values(), strict=True))
    largest = max((sum(counts) for counts in each), default=0)
    classes = [
        _Class(
            name=clean(name, _MOST_NAME),
            counts=_counts_text(dict(zip(listed.counts, each[label], strict=True))),
            share=sum(each[label]) / max(1, largest),
            pictures=tuple(map(_shown, sample.pictures.get(label, ()))),
        )
        for label, name in enumerate(listed.classes[:MOST_CLASSES])
    ]
    return (
        environment()
        .get_template("image_set.html.j2")
        .render(
            style=report_style(),
            version=cubemesh.__version__,
            made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            place=clean(listed.place, 400),
            classes=classes,
            facts=_facts(sample),
            notes=_notes(sample),
        )
    )


def _shown(picture: Picture) -> tuple[Picture, str, str]:
    split = "" if picture.split == "images" else f"{picture.split}, "
    text = (
        f"{clean(picture.name, _MOST_NAME)}: {split}{format_count(picture.width)} × "
        f"{format_count(picture.height)} pixels, {picture.format}, {format_bytes(picture.bytes)}"
    )
    return picture, text, f"data:image/jpeg;base64,{base64.b64encode(picture.jpeg).decode()}"


def _counts_text(counts: dict[str, int]) -> str:
    parts = [
        f"{format_count(n)} {'images' if split == 'images' else f'for {split}'}"
        for split, n in counts.items()
        if n or split == "images"
    ]
    return ", ".join(parts) or "no images"


def _facts(sample: SetSample) -> list[tuple[str, str]]:
    listed, manifest = sample.listed, sample.listed.manifest
    totals = {split: sum(each) for split, each in listed.counts.items()}
    all_images = sum(totals.values())
    facts = [("Classes", format_count(len(listed.classes))), ("Images", format_count(all_images))]
    if totals.get("validation"):
        share = totals["validation"] / all_images
        facts.append(("Split", f"{_counts_text(totals)} ({100 * share:.1f} %)"))
    elif "images" in totals:
        facts.append(("Split", "no split: a training validates on every tenth image of a class"))
    by_class = [sum(counts) for counts in zip(*listed.counts.values(), strict=True)]
    if len(by_class) > 1:
        few, many = min(by_class), max(by_class)
        text = format_count(few) if few == many else f"{format_count(few)} to {format_count(many)}"
        facts.append(("Images of a class", text))
    if manifest is None:
        facts.append(("Size", f"about {format_bytes(sample.bytes)}"))
    else:
        shards = len(manifest.shards)
        size = f"{format_bytes(sample.bytes)} in {format_count(shards)} shard{'s'[: shards != 1]}"
        facts.append(("Size", size))
    shown = [picture for pictures in sample.pictures.values() for picture in pictures]
    if shown:
        facts.append(("Pictures shown", format_count(len(shown))))
        facts.append(("Their width", _range([p.width for p in shown], " pixels")))
        facts.append(("Their height", _range([p.height for p in shown], " pixels")))
        facts.append(("Their formats", ", ".join(sorted({p.format for p in shown}))))
    settings = {} if manifest is None else manifest.made.get("settings")
    for name in ("resize", "quality", "seed"):
        value = settings.get(name) if isinstance(settings, Mapping) else None
        if isinstance(value, int):
            facts.append((f"Prepared with --{name}", clean(str(value), 40)))
    return facts


def _range(values: Sequence[int], unit: str) -> str:
    low, high = min(values), max(values)
    if low == high:
        return f"{format_count(low)}{unit}"
    middle = round(median(values))
    return f"{format_count(low)} to {format_count(high)}{unit}, median {format_count(middle)}"


def _notes(sample: SetSample) -> list[str]:
    listed, notes = sample.listed, list[str]()
    if listed.skipped:
        notes.append(
            f"Not in the set, because they cannot be used: {_reasons(listed.skipped)}. "
            "skipped.tsv names them."
        )
    if sample.unusable:
        notes.append(f"Chosen for this page, and cannot be used: {_reasons(sample.unusable)}.")
    if len(listed.classes) > MOST_CLASSES:
        notes.append(
            f"The first {format_count(MOST_CLASSES)} classes are shown. "
            "`cubemesh prepare SET --list --json` has all."
        )
    without = sum(label not in sample.pictures for label in range(len(listed.classes)))
    if sample.shortened or without:
        notes.append(
            f"{format_count(without)} of {format_count(len(listed.classes))} classes have no "
            "picture here: those without images that can be used, and where a page would become "
            "too large."
        )
    return notes


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{clean(why, 100)} ({format_count(n)})" for why, n in counts.items())
