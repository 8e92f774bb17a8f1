"""A/B comparison for benchmarks: programs as sides, interleaved in one of two ways.

`compare` is the method of `cubemesh run --against` (`interleaved_ab.py`): short windows alternate
in one process, several instances of each side, and the interval is over the instances.

`in_rounds` is cheaper where one program is compared with many: each is built once, and in each
round every program has a window, in random order. A round is one observation of each ratio of
step times; the ratio is their median, with its interval over the rounds. It holds for
these processes only: differences between processes, which may be percents, are not in it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation
from cubemesh.measure.timing.interleaved_ab import Side, alternate
from cubemesh.networks.graph import Network
from cubemesh.schema import Budget
from cubemesh.schema.record import AGAINST
from cubemesh.statistics import mad, median, median_interval
from in_memory_log import InMemoryLog

__all__ = [
    "Comparison",
    "Side",
    "compare",
    "compare_rounds",
    "cubemesh_side",
    "in_rounds",
    "random_batch",
    "setting",
    "window_s",
    "write_json",
]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Step times of two sides, and the ratio of their throughputs."""

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

    def text(self, first: str, second: str, samples: int) -> str:
        """The step time and rate of either side, and the ratio, for batches of `samples`."""
        lines = [f"{self.pairs} pairs of windows of {self.steps_per_window} steps"]
        for name, step_ms, mad_ms in (
            (first, self.first_step_ms, self.first_step_mad_ms),
            (second, self.second_step_ms, self.second_step_mad_ms),
        ):
            rate = samples / step_ms * 1e3
            lines.append(
                f"{name:28} {step_ms:8.3f} ms a step (MAD {mad_ms:.3f}), {rate:,.0f} samples/s"
            )
        lines.append(
            f"ratio of throughputs, {second} / {first}: {self.ratio:.4f} "
            f"(95 % interval {self.low:.4f} to {self.high:.4f})"
        )
        return "\n".join(lines)


def compare(both: Sequence[tuple[Side, Side]], seconds: float) -> Comparison:
    """Alternate the sides of `both`, two or more instances of (first, second), for about `seconds`.
    ValueError for one instance, which has no interval."""
    if len(both) < 2:
        raise ValueError("at least two instances of each side are needed; set --instances 2")
    budget = Budget(steps=1, seconds=0.4 * seconds, warmup_seconds=0.2 * seconds, windows=6)
    found = alternate(both, budget=budget, log=InMemoryLog())
    first = [w for w in found.windows if w.phase != AGAINST]
    second = [w for w in found.windows if w.phase == AGAINST]
    ratio = found.ratio
    assert ratio.low is not None
    assert ratio.high is not None
    return _comparison(
        [w.step_s for w in first],
        [w.step_s for w in second],
        first[0].steps,
        (ratio.value, ratio.low, ratio.high),
    )


def in_rounds(sides: Mapping[str, Side], rounds: int, steps: int) -> dict[str, list[float]]:
    """Name → seconds of a step by its side's own clock, in each round, of `steps` steps."""
    order = random.Random(0)
    names = list(sides)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            found[name].append(window_s(sides[name], steps))
    return found


def window_s(side: Side, steps: int) -> float:
    """Seconds of a step in one window of `steps` steps, by the side's own clock."""
    start = side.clock()
    for _ in range(steps):
        side.step()
    side.synchronize()
    return (side.clock() - start) / steps


def compare_rounds(first: Sequence[float], second: Sequence[float], steps: int) -> Comparison:
    """The second side relative to the first, from the seconds of a step of both in each round of
    windows of `steps` steps. ValueError for a single round."""
    if len(first) < 2:
        raise ValueError("at least two rounds are needed; set --rounds 2 or more")
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    interval = median_interval(ratios)
    return _comparison(first, second, steps, (median(ratios), interval.low, interval.high))


def _comparison(
    first: Sequence[float], second: Sequence[float], steps: int, ratio: tuple[float, float, float]
) -> Comparison:
    return Comparison(
        pairs=len(first),
        steps_per_window=steps,
        first_step_ms=1e3 * median(first),
        first_step_mad_ms=1e3 * mad(first),
        second_step_ms=1e3 * median(second),
        second_step_mad_ms=1e3 * mad(second),
        ratio=ratio[0],
        low=ratio[1],
        high=ratio[2],
    )


def setting(args: argparse.Namespace) -> str:
    """The network and its setting, from the options that the comparisons of two programs share."""
    return (
        f"{args.network}, batch size {args.batch}, {args.precision} on {args.device}, "
        f"{args.threads} threads, PyTorch {version('torch')}"
    )


def write_json(args: argparse.Namespace, found: Comparison, **more: Any) -> None:
    """Write the options, a comparison and `more` to the file of `--json`, if given."""
    if args.json:
        options = {k: v for k, v in vars(args).items() if k != "json"}
        result = {"schema": 2, "torch": version("torch"), **options, **asdict(found), **more}
        Path(args.json).write_text(json.dumps(result, indent=2))


def random_batch(network: Network, samples: int) -> Batch:
    """Random images and labels for `network`, always the same."""
    rng = np.random.default_rng(0)
    return Batch(
        images=rng.random((samples, *network.inputs[0].shape), dtype=np.float32),
        labels=rng.integers(0, network.targets[0].classes or 1, samples),
    )


def cubemesh_side(framework: str, request: BuildRequest, batch: Batch) -> Side:
    """A side that steps as cubemesh's timer does: place a batch, train on it."""
    program = entry(framework).load().build(request)
    if isinstance(program, SupportsCompilation):
        program.compile(program.place(batch))
    program.load(request.network.draw(0))

    def step() -> None:
        program.train_step(program.place(batch))

    return Side(step=step, synchronize=program.synchronize)
