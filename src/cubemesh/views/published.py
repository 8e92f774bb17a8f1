"""Published figures as a table, a line each, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.api.catalogue import PublishedFigures
from cubemesh.papers.published import PeakShare
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


def _row(figure: PublishedFigure, use: PeakShare) -> tuple[object, ...]:
    count = {None: "?× ", 0: "", 1: ""}.get(figure.devices, f"{figure.devices}× ")
    share = "–"
    if use.share is not None:
        share = f"{'≥ ' if use.at_least else ''}{format_number(100 * use.share)}"
        share += " !" if use.warning is not None else ""
    return (
        figure.network,
        format_number(figure.value),
        f"{figure.unit} ({figure.metric})" if figure.unit == "ms" else figure.unit,
        f"{count}{figure.device}",
        figure.precision or "–",
        figure.batch_per_device or "–",
        figure.framework.split(",")[0].strip() or "–",
        share,
        figure.source,
    )
