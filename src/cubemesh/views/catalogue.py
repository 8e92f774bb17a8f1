"""Tables of networks, experiments, suites and frameworks, of one experiment's settings, and of an
image set's classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.api.arguments import value_text
from cubemesh.api.catalogue import Catalogue, ExperimentSettings, NetworkLayers, SuiteSummary
from cubemesh.data.prepare.image_set import ImageSet
from cubemesh.networks.describe import NetworkSummary
from cubemesh.schema import Table
from cubemesh.schema.published import PAPERS
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_bytes, format_count, format_quantity
from cubemesh.untrusted import clean
from cubemesh.views import terminal
from cubemesh.views.json_output import envelope
from cubemesh.views.tables import table_of_texts

_SOURCE_WIDTH = 24
"""Least width of the sources of networks."""


def networks_document(networks: Sequence[NetworkSummary]) -> dict[str, Any]:
    """The JSON of `cubemesh networks`."""
    return envelope("networks", networks=[to_plain(n) for n in networks])


def print_networks(console: Console, networks: Sequence[NetworkSummary]) -> None:
    """A line for each network; in a narrow terminal with three digits of its parameters, and
    without its source."""
    rows = [
        (
            n.name,
            _shape(n.input_shape),
            n.classes,
            format_count(n.parameters),
            format_quantity(n.forward_flops, "FLOP"),
            next((_percent(e.top5) for e in n.imagenet_errors if e.top5 is not None), ""),
            n.source,
        )
        for n in networks
    ]
    columns = (
        *("network", "input", "classes", "parameters", "forward per sample"),
        *("top-5 error (%)", "source"),
    )
    note = (
        "FLOPs of convolutions and matrix products; a multiply-add counts as two. Errors on "
        "ImageNet are published ones of one network. `cubemesh networks NAME` lists the layers "
        "of one, and the conditions of its errors."
    )
    table = table_of_texts("Networks", columns[:-1], [row[:-1] for row in rows])
    if console.is_terminal and console.width < terminal.table_width(table) + _SOURCE_WIDTH:
        note += " A wider terminal, a file or a pipe has the source of each, too."
        short = [
            (
                *row[:3],
                f"{n.parameters / 1e6:,.3g} M"
                if n.parameters < 1e9
                else f"{n.parameters / 1e9:.3g} G",
                *row[4:-1],
            )
            for n, row in zip(networks, rows, strict=True)
        ]
        names = ("network", "input", "classes", "parameters", "forward", "top-5 (%)")
        table = table_of_texts("Networks", names, short)
    else:
        table = table_of_texts("Networks", columns, rows)
    _print(console, table, note=note)


def network_document(found: NetworkLayers, drawing: Path | None = None) -> dict[str, Any]:
    """The JSON of `cubemesh networks NAME`."""
    return envelope(
        "network",
        **to_plain({"network": found.summary, "layers": found.layers}),
        drawing=None if drawing is None else str(drawing),
    )


def print_network(console: Console, found: NetworkLayers, drawing: Path | None = None) -> None:
    """A line for each layer, and the published errors; where its drawing was written, only the
    name of the file."""
    if drawing is not None:
        console.print(Text(f"Wrote {drawing}."))
        return
    summary = found.summary
    rows = [
        (
            row.name,
            row.layer,
            row.settings,
            _shape(row.output_shape),
            format_count(row.parameters) if row.parameters else "",
            format_quantity(row.forward_flops or row.forward_other_flops, "FLOP"),
            format_quantity(row.forward_moved_bytes, "B"),
            row.segment,
        )
        for row in found.layers
    ]
    columns = (
        *("name", "layer", "settings", "output", "parameters", "forward", "memory traffic"),
        "segment",
    )
    used = summary.evaluation_parameters
    without = f" ({format_count(used)} without the auxiliary heads)"
    active = f", {format_count(summary.active_parameters)} of them active for a position"
    note = (
        f"{format_count(summary.parameters)} parameters"
        f"{without if used < summary.parameters else ''}"
        f"{active if summary.active_parameters < summary.parameters else ''}; "
        f"{format_quantity(summary.forward_flops, 'FLOP')} forward and "
        f"{format_quantity(summary.backward_flops, 'FLOP')} backward per sample in convolutions "
        f"and matrix products. {summary.source}. {summary.differs}"
    )
    _print(console, table_of_texts(f"Layers of {summary.name}", columns, rows), note=note.strip())
    if summary.imagenet_errors:
        errors = [
            (_percent(e.top5), _percent(e.top1), e.conditions, e.source)
            for e in summary.imagenet_errors
        ]
        heads = ("top-5 (%)", "top-1 (%)", "conditions", "source")
        title = "Published errors on ImageNet, validation set"
        _print(console, table_of_texts(title, heads, errors))


def _percent(error: float | None) -> str:
    return "–" if error is None else f"{error:g}"


def experiments_document(found: Catalogue) -> dict[str, Any]:
    """The JSON of `cubemesh experiments`."""
    return envelope("experiments", **to_plain(found))


def print_experiments(console: Console, found: Catalogue) -> None:
    """A line for each experiment, suite and framework."""
    tables = (
        table_of_texts(
            "Experiments",
            ("experiment", "question", "papers"),
            [(e.name, e.question, e.papers) for e in found.experiments],
        ),
        table_of_texts(
            "Suites",
            ("suite", "summary", "experiments"),
            [(s.name, s.summary, len(s.experiments)) for s in found.suites],
        ),
        table_of_texts(
            "Frameworks",
            ("framework", "summary", "install with"),
            [
                (f.name, f.summary, "installed" if f.installed else f.install)
                for f in found.frameworks
            ],
        ),
    )
    note = (
        "`cubemesh run NAME` runs an experiment or a suite; `cubemesh experiments NAME` lists the "
        "settings of an experiment or the experiments of a suite.\nPapers: "
        + "; ".join(f"{paper} {title}" for paper, title in PAPERS.items())
        + "."
    )
    _print(console, *tables, note=note)


def experiment_document(found: ExperimentSettings) -> dict[str, Any]:
    """The JSON of `cubemesh experiments NAME`."""
    return envelope("experiment", **to_plain(found))


def print_experiment(console: Console, found: ExperimentSettings) -> None:
    """A line for each setting."""
    rows = [
        (f"{f.name}=", f.type, "" if f.default is None else value_text(f.default), f.means)
        for f in (*found.settings, *found.fields)
    ]
    columns = ("--set", "values", "default", "description")
    _print(console, table_of_texts(f"{found.name}: {found.question}", columns, rows))


def suite_document(found: SuiteSummary) -> dict[str, Any]:
    """The JSON of `cubemesh experiments SUITE`."""
    return envelope("suite", **to_plain(found))


def print_suite(console: Console, found: SuiteSummary) -> None:
    """A line for each experiment."""
    rows = [
        (
            e.experiment,
            " ".join(f"{name}={value}" for name, value in e.settings.items()),
            e.reproduces,
            "yes" if e.quick else "no",
        )
        for e in found.experiments
    ]
    columns = ("experiment", "--set", "reproduces", "with --quick")
    note = f"`cubemesh run {found.name}` runs them in this order."
    _print(console, table_of_texts(f"{found.name}: {found.summary}", columns, rows), note=note)


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _print(console: Console, *tables: Table, note: str = "") -> None:
    for table in tables:
        terminal.print_table(console, table)
    if note:
        console.print(Text(note))


def image_set_document(found: ImageSet, page: Path | None = None) -> dict[str, Any]:
    """The JSON of `cubemesh prepare`; `page` is the file that was written."""
    manifest = found.manifest
    return envelope(
        "image-set",
        place=found.place,
        classes=list(found.classes),
        counts={split: list(each) for split, each in found.counts.items()},
        skipped=dict(found.skipped),
        problems=list(found.problems),
        shards=None if manifest is None else [to_plain(shard) for shard in manifest.shards],
        bytes=None if manifest is None else manifest.bytes,
        made=None if manifest is None else to_plain(dict(manifest.made)),
        shards_made_now=found.made,
        page=None if page is None else str(page),
    )


def print_image_set(
    console: Console, found: ImageSet, *, classes: bool, page: Path | None = None
) -> None:
    """What a set has, in a line; its classes, unless a page has them; what is wrong with it."""
    if page is not None:
        console.print(Text(f"Wrote {clean(str(page))}."), soft_wrap=True)
    elif classes:
        rows = [
            (clean(name), *(format_count(each[label]) for each in found.counts.values()))
            for label, name in enumerate(found.classes)
        ]
        terminal.print_table(console, table_of_texts("Classes", ("class", *found.counts), rows))
    samples = [
        f"{format_count(sum(each))} {'images' if split == 'images' else f'for {split}'}"
        for split, each in found.counts.items()
        if sum(each)
    ]
    parts = [_counted(len(found.classes), "class", "classes"), *samples]
    manifest = found.manifest
    if manifest is not None:
        size = format_bytes(manifest.bytes)
        parts.append(f"{size} in {_counted(len(manifest.shards), 'shard')}")
    if found.made:
        parts.append(f"{format_count(found.made)} made now")
    console.print(Text(f"{clean(found.place)}: {', '.join(parts)}."), soft_wrap=True)
    if found.skipped:
        reasons = ", ".join(f"{format_count(n)} {clean(why)}" for why, n in found.skipped.items())
        text = f"Not in the set, because they cannot be used: {reasons} (skipped.tsv names them)."
        console.print(Text(text), soft_wrap=True)
    for problem in found.problems:
        console.print(Text(clean(problem), style=terminal.FAULT), soft_wrap=True)
    if found.problems:
        text = (
            f"{_counted(len(found.problems), 'problem')}. Delete what is damaged and run the same "
            "`cubemesh prepare` again: it makes what is missing."
        )
        console.print(Text(text), soft_wrap=True)


def _counted(count: int, one: str, several: str = "") -> str:
    """`1 shard`, `12 shards`."""
    return f"{format_count(count)} {one if count == 1 else several or one + 's'}"
