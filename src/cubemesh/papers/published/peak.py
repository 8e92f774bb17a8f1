"""MFU (model FLOPs utilization) of published figures: the fraction of the device's peak.

MFU is the matrix operations of training, a multiply-add counted as two, over the time and the dense
peak of the device in the precision used. Operations are counted from cubemesh's graph of the
network at its own input size, peaks come from the catalogue. If a source names a model but not its
form ("P100"), the fastest form is used, and the MFU is a lower bound. Figures without an MFU have a
reason, figures above 100 % a cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from cubemesh.forecast.fast_algorithms import (
    Operations,
    PassOperations,
    above_peak,
    operations,
    saving,
)
from cubemesh.machines.catalogue import Peak, find, forms
from cubemesh.networks import build
from cubemesh.papers.published.names import precision_of
from cubemesh.schema.published import PublishedFigure
from cubemesh.schema.warning import Warning
from cubemesh.units import format_quantity

_TIMES = {
    "forward time": "forward",
    "backward time": "backward",
    "forward+backward time": "both",
    "step time": "both",
}
"""Metric in milliseconds → the passes that ran."""
_SINGLE_LAYER = re.compile(r"(L\d) (\d+)->(\d+) (\d+)x\d+@(\d+)")
"""A convolution in the note of soumith's layers: name, channels, filters, kernel, image side."""


@dataclass(frozen=True, kw_only=True)
class PeakShare:
    """MFU of one published figure."""

    share: float | None = None
    """Fraction of the dense peak; None if unknown."""
    at_least: bool = False
    """Whether the device's form is unknown, so that the fraction is a lower bound."""
    peak: Peak | None = None
    """Peak of one device."""
    why_not: str = ""
    """Why there is no fraction."""
    warning: Warning | None = None
    """Why the fraction is above 1."""


def peak_share(figure: PublishedFigure) -> PeakShare:
    """The MFU of a published figure of training."""
    work = _work(figure)
    if isinstance(work, str):
        return PeakShare(why_not=work)
    done, seconds = work
    if figure.devices is None:
        return PeakShare(why_not="the number of devices is not stated")
    peaks = _peaks(figure)
    if isinstance(peaks, str):
        return PeakShare(why_not=peaks)
    peak = max(peaks, key=lambda p: p.flops_per_s)
    share = done.counted / seconds / peak.flops_per_s / max(1, figure.devices)
    stated = format_quantity(peak.flops_per_s, "FLOP/s")
    at_least = find(_placed(figure)) is None
    return PeakShare(
        share=share,
        at_least=at_least,
        peak=peak,
        warning=above_peak(
            share,
            done,
            f"{figure.network} on {figure.device} ({figure.metric} {figure.value:g} "
            f"{figure.unit}, {figure.framework.split(',')[0].strip()})",
            f"the datasheet's {stated} in {peak.computed_in}",
            at_least=at_least,
        ),
    )


def _work(figure: PublishedFigure) -> tuple[Operations, float] | str:
    """Operations of a figure and their seconds, or why they are unknown."""
    if figure.metric not in (*_TIMES, "throughput"):
        return "not a time or rate of training"
    passes = _operations(figure)
    if passes is None:
        return "cubemesh has no such network"
    if figure.metric == "throughput":
        return passes.both, 1.0 / figure.value
    if figure.batch_per_device is None:
        return "the batch size is not stated"
    batch = figure.batch_per_device * max(1, figure.devices or 1)
    done: Operations = getattr(passes, _TIMES[figure.metric])
    return done * batch, 1e-3 * figure.value


def _operations(figure: PublishedFigure) -> PassOperations | None:
    """Operations of one sample."""
    if figure.canonical is not None:
        return _of_network(figure.canonical)
    found = _SINGLE_LAYER.findall(figure.note)
    layers = {name: _of_layer(*map(int, sizes)) for name, *sizes in found}
    name = figure.network.removeprefix("conv layer ")
    if name == "Total" and layers:
        forward = sum(layers.values(), start=Operations(counted=0.0, least=0.0))
    elif name in layers:
        forward = layers[name]
    else:
        return None
    return PassOperations(forward=forward, backward=forward * 2)


def _of_layer(channels: int, filters: int, kernel: int, side: int) -> Operations:
    """An unpadded convolution of stride 1."""
    counted = 2.0 * channels * filters * kernel**2 * (side - kernel + 1) ** 2
    return Operations(counted=counted, least=counted / saving((kernel, kernel)))


@cache
def _of_network(name: str) -> PassOperations:
    return operations(build(name))


def _placed(figure: PublishedFigure) -> str:
    """The device with its system, if that determines the form of the device."""
    together = f"{figure.device} {figure.system}"
    return together if find(together) is not None else figure.device


def _peaks(figure: PublishedFigure) -> list[Peak] | str:
    """Peak of each possible form of the device, or why there is none."""
    sheets = forms(_placed(figure))
    if not sheets:
        return f"the catalogue does not know {figure.device}"
    precision = precision_of(figure.precision)
    if precision is None:
        return "the precision is not stated"
    # Without TF32, what may use it runs in fp32.
    found = [s.peak(precision) or (s.peak("fp32") if precision == "tf32" else None) for s in sheets]
    peaks = [peak for peak in found if peak is not None]
    return peaks or f"the datasheet states no peak in {precision}"
