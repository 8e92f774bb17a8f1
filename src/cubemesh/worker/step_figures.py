"""Which figures of measured steps take more than their windows?"""

from __future__ import annotations

from cubemesh.data.feed import Feed
from cubemesh.data.sequences import Sequences
from cubemesh.measure.figures import figures
from cubemesh.measure.timer import Measured
from cubemesh.model.record import Figure


def input_wait(measured: Measured, feed: Feed) -> Figure:
    """What a step waited for its minibatch, in the mean; without threads, what making it took."""
    steps = sum(w.steps for w in measured.windows)
    waited_s = feed.waited_s(measured.started, measured.ended)
    method = f"by {feed.threads} threads ahead of the step" if feed.threads else "made in the step"
    return Figure(value=waited_s / steps, unit="s", n=steps, method=method)


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
