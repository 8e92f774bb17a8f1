"""Published figures with their source, and the fraction of the device's peak each reached (MFU)."""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.errors import UsageError, unknown_name
from cubemesh.networks import canonical_name
from cubemesh.papers.published import PeakShare, figures, peak_share
from cubemesh.schema import PublishedFigure


@dataclass(frozen=True, kw_only=True)
class PublishedFigures:
    """Published figures that match, the first `limit` of them."""

    matching: int
    with_peak: int
    """Of the matching ones, those whose device's peak is known."""
    above_peak: int
    """Of the matching ones, those above their device's peak."""
    figures: tuple[tuple[PublishedFigure, PeakShare], ...]


def published_figures(
    network: str | None = None,
    *,
    device: str | None = None,
    above_peak: bool = False,
    limit: int | None = None,
) -> PublishedFigures:
    """Figures of a network (by cubemesh's name or the source's), on devices whose name contains
    `device`, only those above their device's peak, only the first `limit`.

    UsageError where no figure matches.
    """
    found = [(f, peak_share(f)) for f in _matching(network, device)]
    if above_peak:
        found = [pair for pair in found if pair[1].warning is not None]
    return PublishedFigures(
        matching=len(found),
        with_peak=sum(use.share is not None for _, use in found),
        above_peak=sum(use.warning is not None for _, use in found),
        figures=tuple(found[:limit]),
    )


def _matching(network: str | None, device: str | None) -> list[PublishedFigure]:
    found = list(figures())
    if network is not None:
        names = {f.network for f in found} | {f.canonical for f in found if f.canonical}
        name = network if network in names else canonical_name(network)
        found = [f for f in found if name in (f.network, f.canonical)]
        if not found:
            raise UsageError(f"There are no published figures of {name} in cubemesh.")
    if device is not None:
        devices = sorted({f.device for f in found})
        found = [f for f in found if device.casefold() in f.device.casefold()]
        if not found:
            raise unknown_name("device of these figures", device, devices, plural="devices")
    return found
