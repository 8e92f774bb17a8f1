"""Transfers between ranks: when each was issued and how long the step waited for it.

    issued ──▶ (the step continues) ──▶ waited ──▶ ended
    queued     backward pass            starts     has the
                                        to wait    result

Three readings of the program's clock for each transfer. Ranks of one host share a clock, so their
times can be compared: a collective moves no data before the last rank arrives, and the wait until
then is due to that straggler, not to the network.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Transfer(NamedTuple):
    """Readings of the program's clock around one transfer, and its size."""

    issued: float
    waited: float
    ended: float
    size_bytes: int = 0
    """Bytes of the buffer; a ring all-reduce sends nearly twice that."""


@dataclass
class Transfers:
    """Transfers of a rank, recorded as they end."""

    clock: Callable[[], float]
    _found: list[Transfer] = field(default_factory=list)

    def add(self, transfer: Transfer) -> None:
        """Record one."""
        self._found.append(transfer)

    def cut(self, start_s: float, end_s: float) -> tuple[Transfer, ...]:
        """Transfers issued in that time, in order; older ones are dropped."""
        found = sorted(self._found)
        first, last = (bisect_left(found, (time,)) for time in (start_s, end_s))
        self._found = found[last:]
        return tuple(found[first:last])


@dataclass(frozen=True, kw_only=True)
class Waited:
    """Seconds that the mean step waited, on several devices."""

    exchanging_s: float
    """For communication."""
    straggling_s: float | None
    """For the last rank to arrive; None where the ranks' clocks or collectives cannot be compared;
    `exchanging_s` then includes it."""


def waited(
    own: Sequence[Sequence[Transfer]], arrivals: Sequence[Sequence[float] | None], steps: int
) -> Waited:
    """Mean wait of a step, from the transfers of windows with `steps` steps and, for each window,
    the times at which the last rank issued each transfer."""
    known = all(times is not None for times in arrivals)
    straggling = exchanging = 0.0
    for transfers, times in zip(own, arrivals, strict=True):
        for index, transfer in enumerate(transfers):
            took = transfer.ended - transfer.waited
            last = times[index] if known and times is not None else transfer.waited
            lost = min(max(last - transfer.waited, 0.0), took)
            straggling, exchanging = straggling + lost, exchanging + took - lost
    return Waited(
        exchanging_s=exchanging / steps, straggling_s=straggling / steps if known else None
    )


def last_arrivals(begun: Sequence[Sequence[float]]) -> list[float] | None:
    """Time at which the last rank arrived at each collective, which all ranks begin in the same
    order; None where their numbers differ."""
    if len({len(own) for own in begun}) != 1:
        return None
    return [max(together) for together in zip(*begun, strict=True)]
