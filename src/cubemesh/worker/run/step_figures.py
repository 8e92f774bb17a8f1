"""Which figures of measured steps take more than their windows?"""

from __future__ import annotations

from cubemesh.data.text.sequences import Sequences
from cubemesh.measure.figures import figures
from cubemesh.measure.timing.timer import Measured
from cubemesh.schema.record import Figure


def tokens(measured: Measured, source: Sequences) -> Figure:
    """Positions that count a second: samples a second times those of a sample, in the mean."""
    rate = figures(measured.windows, wall_s=0.0)["throughput_per_s"]
    return times(rate, source.tokens_per_sample, "tokens/s")


def times(figure: Figure, factor: float, unit: str, method: str = "") -> Figure:
    """A figure and its interval, `factor` times as large, in another unit."""
    return Figure(
        value=figure.value * factor,
        unit=unit,
        low=None if figure.low is None else figure.low * factor,
        high=None if figure.high is None else figure.high * factor,
        n=figure.n,
        method=method,
    )
