"""Trace of the first training steps of one rank: samples, losses, weights, gradients.

Arrays are kept as *sketches*: a few sums of their elements with random signs. The sketch of a sum
is the sum of the sketches, and the distance of two sketches is that of the arrays, give or take a
quarter (the count sketch of Charikar, Chen and Farach-Colton, ICALP 2002, with eight counters: the
square of the distance is right in the mean, with a deviation of √(2/8) of it). So the gradients of
a run on one machine can be held against those of another without keeping any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COUNTERS = 8
"""Sums in a sketch."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """An array in `COUNTERS` numbers."""

    array: str
    """A parameter or a state of the network, or a layer whose result it is."""
    norm: float
    """The root of the sum of the squares of the elements, which is exact."""
    sums: tuple[float, ...]

    def distance(self, other: Sketch) -> float:
        """About ‖self − other‖; 0 only where every counter agrees."""
        pairs = zip(self.sums, other.sums, strict=True)
        return math.sqrt(math.fsum((a - b) ** 2 for a, b in pairs))


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One rank's part in the first steps of a training."""

    rank: int = 0
    fed: tuple[tuple[int, ...], ...] = ()
    """The numbers of the samples it was fed in each of the first steps."""
    losses: tuple[float, ...] = ()
    """The mean loss of its own samples in each step."""
    weights: tuple[Sketch, ...] = ()
    """Of every parameter before the first step."""
    outputs: tuple[Sketch, ...] = ()
    """Of every layer's result in the first step, in the order they were computed: of the whole
    global minibatch's result, with zeros for the samples of others."""
    own_gradients: tuple[Sketch, ...] = ()
    """Of every parameter's gradient in the first step, before anything was exchanged."""
    gradients: tuple[Sketch, ...] = ()
    """The same when the weights were updated with it."""
    final_weights: tuple[Sketch, ...] = ()
    """Of every parameter after the last step."""
