"""Gain or cost of prefetch threads for data in memory.

For each source a step of `--step-ms` that leaves the processor idle (as a GPU's does) uses
minibatches made in the step and by threads, interleaved in one process; the result is the ratio of
throughputs (threads over none) with its 95 % interval over three instances of each.

    python benchmarks/prefetching.py                      # steps of 2 and of 20 ms, one thread
    python benchmarks/prefetching.py --threads 4 --step-ms 50 --batch 256

Above 1 the threads help.
"""

from __future__ import annotations

import argparse
import time

from ab_comparison import Side, compare
from cubemesh.data import open_for
from cubemesh.data.feed import Feed
from cubemesh.networks import build

INSTANCES = 3
SOURCES = {
    "digits, 8 x 8": ("digits", 8),
    "synthetic, 32 x 32": ("synthetic", 32),
    "synthetic, 224 x 224": ("synthetic", 224),
}


def side_of(feed: Feed, step_s: float) -> Side:
    """Take a minibatch, then wait as for a device."""

    def step() -> None:
        next(feed)
        time.sleep(step_s)

    return Side(step=step, synchronize=lambda: None)


def main() -> None:
    """Compare and print; how it came out is for the reader."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step-ms", type=float, nargs="*", default=[2.0, 20.0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each comparison")
    given = parser.parse_args()
    for name, (source, side) in SOURCES.items():
        for step_ms in given.step_ms:
            opened = open_for(build("little-cnn", side), source, None, "train", seed=0)
            pairs = [
                [Feed(opened, given.batch, 0, threads=n) for n in (0, given.threads)]
                for _ in range(INSTANCES)
            ]
            sides = [[side_of(feed, step_ms / 1e3) for feed in pair] for pair in pairs]
            found = compare([(alone, ahead) for alone, ahead in sides], given.seconds)
            for feed in (feed for pair in pairs for feed in pair):
                feed.close()
            print(
                f"{name}, batch size {given.batch}, steps of {step_ms:g} ms: with "
                f"{given.threads} threads {found.ratio:.3f} times as "
                f"fast ({found.low:.3f} to {found.high:.3f})"
            )


if __name__ == "__main__":
    main()
