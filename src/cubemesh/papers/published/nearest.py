"""Nearest published figures to a measurement.

Rows of another network or metric are left out. The rest are ordered by: the same device (if known),
the number of devices, the class of precision, and the distance of the batch size in powers of two.
Only one row per source, system, device and framework is used, so that a sweep over batch sizes does
not crowd out the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from cubemesh.papers.published.names import precision_of
from cubemesh.schema.published import PublishedFigure

_BITS = {"fp16": 16, "bf16": 16, "tf32": 19, "fp32": 32, "fp64": 64}
_MAKERS = {"NVIDIA", "TESLA", "GEFORCE", "GTX", "RTX", "QUADRO", "INTEL", "AMD"}
_FORMS = re.compile(r"SXM\d?|PCIE|GEN\d|DGX|CTS|NVL|\d|\d+GB|\d+W")

Series = tuple[PublishedFigure, ...]
"""One system at several batch sizes."""


def nearest(
    figures: Iterable[PublishedFigure],
    *,
    network: str,
    device: str | None = None,
    devices: int = 1,
    precision: str | None = None,
    batch_per_device: int | None = None,
    metric: str = "throughput",
    limit: int = 5,
) -> list[PublishedFigure]:
    """The published rows nearest to a measurement, nearest first, at most `limit`.

    `network` is cubemesh's name, `devices` 0 for a CPU, `precision` one of cubemesh's. None is
    ignored. Equally near rows keep the order of `figures`.
    """

    def distance(figure: PublishedFigure) -> tuple[float, ...]:
        return (
            0.0 if device is None or same_device(device, figure.device) else 1.0,
            _steps(devices, figure.devices),
            0.0 if precision is None else precision_distance(precision, figure.precision),
            0.0 if batch_per_device is None else _steps(batch_per_device, figure.batch_per_device),
        )

    chosen: dict[tuple[object, ...], PublishedFigure] = {}
    alike = (f for f in figures if f.canonical == network and f.metric == metric)
    for figure in sorted(alike, key=distance):
        chosen.setdefault((figure.source, figure.system, figure.device, figure.framework), figure)
    return list(chosen.values())[:limit]


def sweep(
    figures: Iterable[PublishedFigure],
    *,
    network: str,
    precision: str,
    batches: tuple[int, int],
    devices: int = 1,
) -> Series:
    """Published throughputs of one system by batch size, within the smallest and the largest of
    `batches`; empty if no source has at least three. Of several values at one batch size the
    highest is used.

    Of several series the one with the nearest precision is used, then the one with most points,
    then the faster one.
    """
    series: dict[tuple[object, ...], dict[int, PublishedFigure]] = {}
    for f in figures:
        batch = f.batch_per_device
        if f.canonical != network or f.metric != "throughput" or f.devices != devices or not batch:
            continue
        if batches[0] <= batch <= batches[1]:
            # Numbers in a note (memory used, loader workers) change along a sweep; words do not.
            conditions = re.sub(r"[\d.]+", "", f.note)
            key = (f.source, f.system, f.device, f.framework, f.network, f.precision, conditions)
            at = series.setdefault(key, {})
            if batch not in at or f.value > at[batch].value:
                at[batch] = f
    several = [tuple(s[b] for b in sorted(s)) for s in series.values() if len(s) >= 3]
    return min(
        several,
        key=lambda s: (
            precision_distance(precision, s[0].precision),
            -len(s),
            -max(f.value for f in s),
        ),
        default=(),
    )


def same_device(first: str, second: str) -> bool:
    """Whether two names mean one model; makers, form factors, memory sizes, power limits and what
    follows a comma are ignored. "NVIDIA A100-SXM4-80GB" is "A100 40GB"; "GTX 1080" is not "GTX 1080
    Ti"."""
    model = _model(first)
    return bool(model) and model == _model(second)


def _model(name: str) -> set[str]:
    upper = re.sub(r"\bK40[CMT]\b", "K40", name.partition(",")[0].upper())  # the board's cooling
    words = set(re.findall(r"[A-Z0-9]+", upper)) - _MAKERS
    return {word for word in words if not _FORMS.fullmatch(word)}


def precision_distance(first: str, second: str) -> float:
    """0 for one class of precision, 1 for fp32 and TF32, 2 for either and 16 bits, 3 if the source
    does not state it."""
    if not second:
        return 3.0
    a, b = (_BITS[precision_of(p) or "fp32"] for p in (first, second))
    return 0.0 if a == b else 2.0 if 16 in (a, b) else 1.0


def _steps(wanted: float, given: float | None) -> float:
    """Doublings between two counts; 0 (a CPU) is one doubling below 1."""
    return math.inf if given is None else abs(math.log2(max(given, 0.5) / max(wanted, 0.5)))
