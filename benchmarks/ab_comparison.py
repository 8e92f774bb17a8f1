"""A/B comparison for benchmarks: programs as sides, their instances, and the result.

The method is that of `cubemesh run --against` (`interleaved_ab.py`): short windows alternate in one
process, several instances of each side, and the interval is over the instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.measure.timing.interleaved_ab import Side, alternate
from cubemesh.networks.graph import Network
from cubemesh.schema import Budget
from cubemesh.schema.record import AGAINST
from cubemesh.statistics import mad, median
from in_memory_log import InMemoryLog

__all__ = ["Comparison", "Side", "compare", "cubemesh_side", "random_batch"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How the second side's throughput stands to the first's."""

    pairs: int
    """Windows of each side."""
    steps_per_window: int
    first_step_ms: float
    first_step_mad_ms: float
    second_step_ms: float
    second_step_mad_ms: float
    ratio: float
    """Second over first; more than 1 means that the second is faster."""
    low: float
    high: float


def compare(both: Sequence[tuple[Side, Side]], seconds: float) -> Comparison:
    """Alternate the sides of `both`, two or more instances of (first, second), for about `seconds`.
    ValueError for one instance, which bears no interval."""
    if len(both) < 2:
        raise ValueError("two instances of each side are needed at least; give --instances 2")
    budget = Budget(steps=1, seconds=0.4 * seconds, warmup_seconds=0.2 * seconds, windows=6)
    found = alternate(both, budget=budget, log=InMemoryLog())
    first = [w for w in found.windows if w.phase != AGAINST]
    second = [w for w in found.windows if w.phase == AGAINST]
    ratio = found.ratio
    assert ratio.low is not None
    assert ratio.high is not None
    return Comparison(
        pairs=len(first),
        steps_per_window=first[0].steps,
        first_step_ms=1e3 * median([w.step_s for w in first]),
        first_step_mad_ms=1e3 * mad([w.step_s for w in first]),
        second_step_ms=1e3 * median([w.step_s for w in second]),
        second_step_mad_ms=1e3 * mad([w.step_s for w in second]),
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
    )


def random_batch(network: Network, samples: int) -> Batch:
    """Images and labels drawn for `network`, always the same."""
    rng = np.random.default_rng(0)
    return Batch(
        images=rng.random((samples, *network.inputs[0].shape), dtype=np.float32),
        labels=rng.integers(0, network.targets[0].classes or 1, samples),
    )


def cubemesh_side(framework: str, request: BuildRequest, batch: Batch) -> Side:
    """What cubemesh's measuring loop does for each step: place a batch, train on it."""
    program = entry(framework).load().build(request)
    if isinstance(program, SupportsCompilation):
        program.compile(program.place(batch))
    program.load(request.network.draw(0))

    def step() -> None:
        program.train_step(program.place(batch))

    return Side(step=step, synchronize=program.synchronize)
