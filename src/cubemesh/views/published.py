"""What did others publish, and how much of their devices' peaks did they reach? A line a figure.

Gives the document of `--json` and a function that prints the same on a console.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.errors import UsageError, unknown_name
from cubemesh.networks import canonical_name
from cubemesh.papers.published import PeakShare, figures, peak_share
from cubemesh.schema import Cell, Column, PublishedFigure, Table
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_count, format_number
from cubemesh.views import terminal
from cubemesh.views.json_output import envelope

Judged = tuple[PublishedFigure, PeakShare]

_COLUMNS = (
    *("network", "figure", "unit", "devices", "precision", "minibatch", "framework"),
    *("of peak (%)", "source"),
)


def published(
    network: str | None = None,
    device: str | None = None,
    *,
    above_peak: bool = False,
    limit: int | None = None,
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """The published figures of a network (by cubemesh's name or a source's own), of devices whose
    name holds `device`, those above their device's peak alone, the first `limit` of them.

    UsageError where no figure is like that.
    """
    found = [(f, peak_share(f)) for f in _chosen(network, device)]
    if above_peak:
        found = [pair for pair in found if pair[1].warning is not None]
    shown = found if limit is None else found[:limit]
    plain = envelope(
        "published", matching=len(found), figures=[_plain(figure, use) for figure, use in shown]
    )
    return plain, lambda console: _print(console, found, shown)


def _chosen(network: str | None, device: str | None) -> list[PublishedFigure]:
    chosen = list(figures())
    if network is not None:
        names = {f.network for f in chosen} | {f.canonical for f in chosen if f.canonical}
        name = network if network in names else canonical_name(network)
        chosen = [f for f in chosen if name in (f.network, f.canonical)]
        if not chosen:
            raise UsageError(f"Nothing is published of {name} that cubemesh carries.")
    if device is not None:
        devices = sorted({f.device for f in chosen})
        chosen = [f for f in chosen if device.casefold() in f.device.casefold()]
        if not chosen:
            raise unknown_name("device of these figures", device, devices, plural="devices")
    return chosen


def _plain(figure: PublishedFigure, use: PeakShare) -> dict[str, Any]:
    return {
        **to_plain(figure),
        "peak_share": use.share,
        "peak_share_at_least": use.at_least,
        "peak_flops_per_s": None if use.peak is None else use.peak.flops_per_s,
        "peak_source": None if use.peak is None else use.peak.source,
        "no_peak_share": use.why_not,
        "warning": None if use.warning is None else to_plain(use.warning),
    }


def _print(console: Console, found: Sequence[Judged], shown: Sequence[Judged]) -> None:
    columns = tuple(Column(name=name) for name in _COLUMNS)
    rows = tuple(_row(figure, use) for figure, use in shown)
    terminal.print_table(console, Table(title="Published figures", columns=columns, rows=rows))
    warnings = [use.warning for _, use in shown if use.warning is not None]
    terminal.print_warnings(console, warnings)
    judged = sum(use.share is not None for _, use in found)
    above = sum(use.warning is not None for _, use in found)
    text = (
        f"{format_count(len(found))} figures, {format_count(judged)} of them with a known peak, "
        f"{format_count(above)} above it. Of peak: matrix operations over time over the dense peak "
        "of the datasheet; ≥ where the form of the device is not stated, – where it cannot be told "
        "(--json says why)."
    )
    if len(shown) < len(found):
        text += f" The first {len(shown)} are shown (--limit)."
    console.print(Text(text, style=terminal.SOFT), soft_wrap=True)


def _row(figure: PublishedFigure, use: PeakShare) -> tuple[Cell, ...]:
    count = {None: "?× ", 0: "", 1: ""}.get(figure.devices, f"{figure.devices}× ")
    share = "–"
    if use.share is not None:
        share = f"{'≥ ' if use.at_least else ''}{format_number(100 * use.share)}"
        share += " !" if use.warning is not None else ""
    texts = (
        figure.network,
        format_number(figure.value),
        f"{figure.unit} ({figure.metric})" if figure.unit == "ms" else figure.unit,
        f"{count}{figure.device}",
        figure.precision or "–",
        str(figure.batch_per_device or "–"),
        figure.framework.split(",")[0].strip() or "–",
        share,
        figure.source,
    )
    return tuple(Cell(text=text) for text in texts)
