"""Which figures of measured steps take more than their windows?"""

from __future__ import annotations

from cubemesh.data.sequences import Sequences
from cubemesh.measure.figures import figures
from cubemesh.measure.timer import Measured
from cubemesh.model.record import Figure


def tokens(measured: Measured, source: Sequences) -> Figure:
    """Positions that count a second: samples a second times those of a sample, in the mean."""
    rate, each = figures(measured.windows, wall_s=0.0)["throughput_per_s"], source.tokens_per_sample
    return Figure(
        value=rate.value * each,
        unit="tokens/s",
        low=None if rate.low is None else rate.low * each,
        high=None if rate.high is None else rate.high * each,
        n=rate.n,
    )
