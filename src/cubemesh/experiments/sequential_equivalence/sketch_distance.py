"""Distances of sets of arrays, and the decomposition of one into others, computed on sketches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from cubemesh.schema import Sketch

Sketches = Sequence[Sketch]
FLOOR = 1e-6
"""Lower limit of an array's norm, as a fraction of the largest: a gradient that is only rounding
errors has no digits to compare."""


def relative(found: Sketches, expected: Sketches) -> float:
    """The largest ‖a − b‖ / ‖b‖ over the arrays of both, b the expected one; infinite if they
    are not the same arrays."""
    return max((d for _, d in distances(found, expected)), default=0.0)


def distances(found: Sketches, expected: Sketches) -> list[tuple[str, float]]:
    """Array → ‖a − b‖ / ‖b‖, in the order of the expected ones."""
    by_name = {s.array: s for s in found}
    if by_name.keys() != {s.array for s in expected}:
        return [("the network", math.inf)]
    largest = max((s.norm for s in expected), default=0.0)
    relatives = []
    for own in expected:
        norm = max(own.norm, FLOOR * largest)
        distance = by_name[own.array].distance(own)
        relatives.append((own.array, distance / norm if norm else distance))
    return relatives


def mean_of(ranks: Iterable[Sketches]) -> list[Sketch]:
    """The sketches of the mean of the ranks' arrays; their norms are unknown, NaN."""
    return _scaled_sum(ranks, mean=True)


def sum_of(ranks: Iterable[Sketches]) -> list[Sketch]:
    """The sketches of the sum of the ranks' arrays."""
    return _scaled_sum(ranks, mean=False)


def _scaled_sum(ranks: Iterable[Sketches], *, mean: bool) -> list[Sketch]:
    all_ranks = list(ranks)
    over = len(all_ranks) if mean else 1
    return [
        Sketch(
            array=own[0].array,
            norm=math.nan,
            sums=tuple(
                math.fsum(values) / over for values in zip(*(s.sums for s in own), strict=True)
            ),
        )
        for own in zip(*all_ranks, strict=True)
    ]


def weights_in(target: Sketches, parts: Sequence[Sketches]) -> tuple[list[float], float]:
    """The weight of each of `parts` in `target`, by least squares over all counters, and the
    fraction of `target` that they do not explain."""
    columns = np.array([[v for s in part for v in s.sums] for part in parts]).T
    expected = np.array([v for s in target for v in s.sums])
    found, *_ = np.linalg.lstsq(columns, expected, rcond=None)
    size = float(np.linalg.norm(expected))
    rest = float(np.linalg.norm(expected - columns @ found))
    return [float(v) for v in found], rest / size if size else 0.0
