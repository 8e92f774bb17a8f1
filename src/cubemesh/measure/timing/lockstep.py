"""Do the ranks of a run make their steps together, or each as many as it can?

    in step   rank 0   ├ 20 steps ──┤ more? ├ 20 steps ──┤ enough     all do what rank 0 decides,
              rank 1   ├ 20 steps ───┤      ├ 20 steps ─┤             after waiting for it
    apart     rank 0   ├ 50 ms ┤├ 50 ms ┤├ 50 ms ┤ enough             each has windows of its own,
              rank 1   ├ 50 ms, slow ┤├ 50 ms, slow ┤                 until rank 0 has had enough

Ranks that exchange something in every step must make the same number of steps. Ranks that do not
wait for one another must not be made to by being measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from cubemesh.schema.record import Window

if TYPE_CHECKING:
    from cubemesh.measure.timing.timer import Stopwatch


class Pace(Protocol):
    """How the ranks of a run keep time; each makes the same calls in the same order."""

    def length(self, steps: int, step_s: float) -> float:
        """What makes a window of about `steps` steps of `step_s` seconds, for `window`."""

    def window(self, watch: Stopwatch, phase: str, length: float) -> Window:
        """Run a window."""

    def ends(self, phase: str, steady: bool, over: bool) -> tuple[bool, bool]:
        """(whether the step time is steady, whether the phase is over) for this rank, which thinks
        so itself."""


class InStep:
    """Rank 0 decides, `agree` tells the others (`Group.agree`). A length is a number of steps."""

    def __init__(self, agree: Callable[[Any], Any] = lambda decision: decision) -> None:
        self._agree = agree

    def length(self, steps: int, step_s: float) -> float:
        """See `Pace`."""
        return float(self._agree(steps))

    def window(self, watch: Stopwatch, phase: str, length: float) -> Window:
        """See `Pace`."""
        return watch.window(phase, int(length))

    def ends(self, phase: str, steady: bool, over: bool) -> tuple[bool, bool]:
        """See `Pace`."""
        steady, over = self._agree((steady, over))
        return steady, over


class Apart:
    """Rank 0 decides when a phase is over; the others hear of it after a window (`Group.told`). A
    length is a number of seconds."""

    def __init__(self, rank: int, told: Callable[[str, bool], bool]) -> None:
        self._first, self._told = rank == 0, told

    def length(self, steps: int, step_s: float) -> float:
        """See `Pace`."""
        return steps * step_s

    def window(self, watch: Stopwatch, phase: str, length: float) -> Window:
        """See `Pace`."""
        return watch.window_lasting(phase, length)

    def ends(self, phase: str, steady: bool, over: bool) -> tuple[bool, bool]:
        """See `Pace`. What a rank that does not decide thinks of its own steadiness is not told."""
        return steady or not self._first, self._told(phase, over)
