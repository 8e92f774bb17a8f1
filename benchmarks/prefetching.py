"""Do threads that make minibatches ahead of the step help, or cost, where data are ready in memory?

For each source a step of `--step-ms` that leaves the processor alone (as a GPU's does) takes
minibatches made by itself and by threads, in turn, in one process; what counts is the ratio of
throughputs (threads over none) with its 95 % interval over pairs of windows.

    python benchmarks/prefetching.py                      # steps of 2 and of 20 ms, one thread
    python benchmarks/prefetching.py --threads 4 --step-ms 50 --batch 256

Above 1 the threads help.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from cubemesh.data import open_source
from cubemesh.data.base import Shape
from cubemesh.data.feed import Feed
from pairs import Side, compare

SOURCES: dict[str, tuple[str, Shape]] = {
    "digits, 8 x 8": ("digits", (1, 8, 8)),
    "synthetic, 32 x 32": ("synthetic", (3, 32, 32)),
    "synthetic, 224 x 224": ("synthetic", (3, 224, 224)),
}


def step_of(feed: Feed, step_s: float) -> Callable[[], None]:
    """Take a minibatch, then wait as for a device."""

    def step() -> None:
        next(feed)
        time.sleep(step_s)

    return step


def main() -> None:
    """Compare and print; how it came out is for the reader."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step-ms", type=float, nargs="*", default=[2.0, 20.0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each comparison")
    given = parser.parse_args()
    for name, (source, shape) in SOURCES.items():
        for step_ms in given.step_ms:
            opened = open_source(source, None, "train", shape=shape, classes=10, seed=0)
            feeds = [Feed(opened, given.batch, 0, threads=n) for n in (given.threads, 0)]
            sides = [Side(step_of(feed, step_ms / 1e3), lambda: None) for feed in feeds]
            found = compare([(sides[0], sides[1])], given.seconds)
            for feed in feeds:
                feed.close()
            print(
                f"{name}, minibatch {given.batch}, steps of {step_ms:g} ms: with "
                f"{given.threads} threads {found.ratio:.3f} times as "
                f"fast ({found.low:.3f} to {found.high:.3f})"
            )


if __name__ == "__main__":
    main()
