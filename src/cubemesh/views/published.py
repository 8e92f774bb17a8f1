"""Published figures as a table, a line each, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.api.catalogue import PublishedFigures
from cubemesh.papers.published import PeakShare
from cubemesh.papers.published.generations import WITH_UPDATE, Generation
from cubemesh.schema import PublishedFigure
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_count, format_number
from cubemesh.views import terminal
from cubemesh.views.json_output import envelope
from cubemesh.views.tables import table_of_texts

_COLUMNS = (
    *("network", "figure", "unit", "devices", "precision", "batch size", "framework"),
    *("MFU (%)", "source"),
)


def document(found: PublishedFigures) -> dict[str, Any]:
    """The JSON of `cubemesh published`."""
    return envelope(
        "published",
        matching=found.matching,
        figures=[_figure_json(figure, use) for figure, use in found.figures],
    )


def _figure_json(figure: PublishedFigure, use: PeakShare) -> dict[str, Any]:
    return {
        **to_plain(figure),
        "peak_share": use.share,
        "peak_share_at_least": use.at_least,
        "peak_flops_per_s": None if use.peak is None else use.peak.flops_per_s,
        "peak_source": None if use.peak is None else use.peak.source,
        "no_peak_share": use.why_not,
        "warning": None if use.warning is None else to_plain(use.warning),
    }


def print_figures(console: Console, found: PublishedFigures) -> None:
    """A line for each figure, the warnings, and how the MFU was computed."""
    rows = [_row(figure, use) for figure, use in found.figures]
    terminal.print_table(console, table_of_texts("Published figures", _COLUMNS, rows))
    warnings = [use.warning for _, use in found.figures if use.warning is not None]
    terminal.print_warnings(console, warnings)
    text = (
        f"{format_count(found.matching)} figures, {format_count(found.with_peak)} with a known "
        f"peak, {format_count(found.above_peak)} above it. MFU: FLOP/s of matrix operations "
        "over the dense peak of the datasheet; ≥ where the variant of the device is not stated, "
        "– where it is unknown (--json has the reason)."
    )
    if len(found.figures) < found.matching:
        text += f" The first {len(found.figures)} are shown (--limit)."
    console.print(Text(text, style=terminal.SOFT), soft_wrap=True)


def generations_document(network: str, found: Sequence[Generation]) -> dict[str, Any]:
    """The JSON of `cubemesh published NETWORK --generations`."""
    return envelope(
        "generations",
        network=network,
        generations=[
            {
                "model": one.model,
                "architecture": one.architecture,
                "samples_per_s": one.samples_per_s,
                "ratio": one.ratio,
                "peak_ratio": one.peak_ratio,
                "same_source_ratio": one.same_source_ratio,
                "same_source": one.same_source,
                "figure": _figure_json(one.figure, one.share),
            }
            for one in found
        ],
    )


def print_generations(console: Console, network: str, found: Sequence[Generation]) -> None:
    """A line for each GPU model, and what the ratios compare."""
    first = found[0].model
    columns = (
        *("GPU", "architecture", _unit(found), "× first", "× first, one source", "peak (TFLOP/s)"),
        *("peak × first", "MFU (%)", "precision", "batch size", "source"),
    )
    rows = [
        (
            one.model,
            one.architecture,
            format_number(one.samples_per_s) + ("" if one.figure.metric in WITH_UPDATE else " *"),
            format_number(one.ratio),
            "–" if one.same_source_ratio is None else format_number(one.same_source_ratio),
            "–" if one.share.peak is None else format_number(one.share.peak.flops_per_s / 1e12),
            "–" if one.peak_ratio is None else format_number(one.peak_ratio),
            _share(one.share),
            one.figure.precision or "–",
            one.figure.batch_per_device or "–",
            one.figure.source,
        )
        for one in found
    ]
    title = f"{network}: fastest published training rate of one GPU, by model"
    terminal.print_table(console, table_of_texts(title, columns, rows))
    text = (
        f"× first compares with the {first}, with the framework, precision and batch size of each; "
        "× first, one source: the fastest figures of one source in one precision. Peaks are dense, "
        "in the precision of the row. Compare in one precision: --precision fp32."
    )
    if any(one.figure.metric not in WITH_UPDATE for one in found):
        text += " *: forward and backward passes without an update of the weights."
    console.print(Text(text, style=terminal.SOFT), soft_wrap=True)


def _unit(found: Sequence[Generation]) -> str:
    units = {one.figure.unit for one in found if one.figure.metric == "throughput"}
    return units.pop() if len(units) == 1 else "samples/s"


def _share(use: PeakShare) -> str:
    if use.share is None:
        return "–"
    shown = f"{'≥ ' if use.at_least else ''}{format_number(100 * use.share)}"
    return shown + (" !" if use.warning is not None else "")


def _row(figure: PublishedFigure, use: PeakShare) -> tuple[object, ...]:
    count = {None: "?× ", 0: "", 1: ""}.get(figure.devices, f"{figure.devices}× ")
    return (
        figure.network,
        format_number(figure.value),
        f"{figure.unit} ({figure.metric})" if figure.unit == "ms" else figure.unit,
        f"{count}{figure.device}",
        figure.precision or "–",
        figure.batch_per_device or "–",
        figure.framework.split(",")[0].strip() or "–",
        _share(use),
        figure.source,
    )
