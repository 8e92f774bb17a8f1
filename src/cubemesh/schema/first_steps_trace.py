"""Trace of the first training steps of one rank: samples, losses, weights, gradients.

Arrays are kept as *sketches*: a few sums of their elements with random signs. The sketch of a sum
is the sum of the sketches, and the distance of two sketches is that of the arrays, give or take a
quarter (the count sketch of Charikar, Chen and Farach-Colton, ICALP 2002, with eight counters: the
square of the distance is right in the mean, with a deviation of √(2/8) of it). So the gradients of
runs on different machines can be compared without storing them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COUNTERS = 8
"""Number of sums in a sketch."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """An array in `COUNTERS` numbers."""

    array: str
    """A parameter or state of the network, or a layer whose output it is."""
    norm: float
    """The Euclidean norm of the array, exact."""
    sums: tuple[float, ...]

    def distance(self, other: Sketch) -> float:
        """An estimate of ‖self − other‖; 0 only if every counter agrees."""
        pairs = zip(self.sums, other.sums, strict=True)
        return math.sqrt(math.fsum((a - b) ** 2 for a, b in pairs))


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """The trace of one rank."""

    rank: int = 0
    fed: tuple[tuple[int, ...], ...] = ()
    """Indices of the samples of each step."""
    losses: tuple[float, ...] = ()
    """Mean loss over the rank's own samples in each step."""
    weights: tuple[Sketch, ...] = ()
    """Every parameter before the first step."""
    outputs: tuple[Sketch, ...] = ()
    """Every layer's output in the first step, in execution order: of the global batch, with
    zeros for the samples of other ranks."""
    own_gradients: tuple[Sketch, ...] = ()
    """Every parameter's gradient in the first step, before synchronization."""
    gradients: tuple[Sketch, ...] = ()
    """Every parameter's gradient in the first step, after synchronization."""
    final_weights: tuple[Sketch, ...] = ()
    """Every parameter after the last step."""
