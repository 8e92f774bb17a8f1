"""Published training rates by GPU generation: the fastest of one GPU of each model, with its peak.

Sources differ in framework, precision, batch size and year, so a ratio of two rows compares GPUs
with their software. `same_source_ratio` compares figures of one source, in one precision. A rate
with the update of the weights is preferred to one of forward and backward passes alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cubemesh.machines.catalogue import Datasheet, Peak, forms
from cubemesh.papers.published.names import precision_of
from cubemesh.papers.published.peak import PeakShare, peak_share
from cubemesh.schema.published import PublishedFigure

ARCHITECTURES = (
    *("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper"),
    "Blackwell",
)
"""Oldest first."""
WITH_UPDATE = ("throughput", "step time")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One GPU model with its fastest published rate."""

    model: str
    architecture: str
    samples_per_s: float
    figure: PublishedFigure
    share: PeakShare
    """MFU, and the peak in the figure's precision."""
    ratio: float
    """To the first generation's rate."""
    peak_ratio: float | None = None
    """Peaks of the two; None where one is not known."""
    same_source_ratio: float | None = None
    """Ratio of the fastest rates of one source, in one precision, on this GPU and on the first."""
    same_source: str = ""


def generations(
    figures: Iterable[PublishedFigure], precision: str | None = None
) -> tuple[Generation, ...]:
    """The generations of the figures of one network, oldest first, and of one architecture by their
    rate; only those in `precision` (fp32, fp16, …) if given."""
    models: dict[str, list[PublishedFigure]] = defaultdict(list)
    sheets: dict[str, Datasheet] = {}
    for figure in figures:
        if rate_of(figure) is None or precision not in (None, precision_of(figure.precision)):
            continue
        sheet = next((s for s in forms(figure.device) if s.kind == "gpu"), None)
        if sheet is not None:
            models[sheet.family].append(figure)
            sheets[sheet.family] = sheet
    fastest = {model: _fastest(own) for model, own in models.items()}
    ordered = sorted(
        fastest, key=lambda m: (_age(sheets[m].architecture), rate_of(fastest[m]) or 0.0)
    )
    if not ordered:
        return ()
    first = ordered[0]
    shares = {model: peak_share(fastest[model]) for model in ordered}
    found = []
    for model in ordered:
        figure = fastest[model]
        like = None if model == first else _same_source(models[first], models[model])
        found.append(
            Generation(
                model=model,
                architecture=sheets[model].architecture,
                samples_per_s=rate_of(figure) or 0.0,
                figure=figure,
                share=shares[model],
                ratio=(rate_of(figure) or 0.0) / (rate_of(fastest[first]) or 1.0),
                peak_ratio=_ratio(shares[model].peak, shares[first].peak),
                same_source_ratio=None if like is None else like[0],
                same_source="" if like is None else like[1],
            )
        )
    return tuple(found)


def rate_of(figure: PublishedFigure) -> float | None:
    """Samples per second that one GPU trains by a figure; None for another figure."""
    if figure.devices != 1 or figure.value <= 0:
        return None
    if figure.metric == "throughput":
        return figure.value if figure.unit.endswith("/s") else None
    timed = figure.metric in (*WITH_UPDATE, "forward+backward time") and figure.unit == "ms"
    if not timed or figure.batch_per_device is None:
        return None
    return 1e3 * figure.batch_per_device / figure.value


def _fastest(figures: Sequence[PublishedFigure]) -> PublishedFigure:
    whole = [f for f in figures if f.metric in WITH_UPDATE]
    return max(whole or figures, key=lambda f: rate_of(f) or 0.0)


def _same_source(
    first: Sequence[PublishedFigure], own: Sequence[PublishedFigure]
) -> tuple[float, str] | None:
    """The ratio of the fastest rates of a source that has both, and the source: the one with most
    figures of `own`. None without one."""
    rates = [_by_source(first), _by_source(own)]
    shared = [key for key in rates[1] if key in rates[0]]
    if not shared:
        return None
    best = max(shared, key=lambda key: len(rates[1][key]))
    source, precision, _ = best
    return max(rates[1][best]) / max(rates[0][best]), f"{source}, {precision}"


def _by_source(
    figures: Sequence[PublishedFigure],
) -> dict[tuple[str, str, bool], list[float]]:
    """(source, precision, whether with the update) → rates."""
    found: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for figure in figures:
        rate, precision = rate_of(figure), precision_of(figure.precision)
        if rate is not None and precision is not None:
            found[figure.source, precision, figure.metric in WITH_UPDATE].append(rate)
    return found


def _ratio(own: Peak | None, first: Peak | None) -> float | None:
    return None if own is None or first is None else own.flops_per_s / first.flops_per_s


def _age(architecture: str) -> int:
    known = architecture in ARCHITECTURES
    return ARCHITECTURES.index(architecture) if known else len(ARCHITECTURES)
