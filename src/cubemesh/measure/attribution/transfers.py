"""When did a rank hand something over to be exchanged, and how long did its step wait for it?

    issued ──▶ (the step goes on) ──▶ waited ──▶ ended
    handed      backward pass         turns to    has what it
    over                              wait        waited for

Three readings of the program's clock for each transfer. Ranks of one host read one clock, so what
they handed over can be held side by side: a collective moves nothing before the last rank is there,
and what a rank waits until then is that one's doing, not the network's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Transfer(NamedTuple):
    """Readings of the program's clock around one transfer, and what it held."""

    issued: float
    waited: float
    ended: float
    size_bytes: int = 0
    """As handed over: an all-reduce by ring sends nearly twice that."""


@dataclass
class Transfers:
    """The transfers of a rank, as they end."""

    clock: Callable[[], float]
    _found: list[Transfer] = field(default_factory=list)

    def add(self, transfer: Transfer) -> None:
        """One more."""
        self._found.append(transfer)

    def cut(self, start_s: float, end_s: float) -> tuple[Transfer, ...]:
        """Those handed over in that time, in their order; older ones are forgotten."""
        found = sorted(self._found)
        first, last = (bisect_left(found, (time,)) for time in (start_s, end_s))
        self._found = found[last:]
        return tuple(found[first:last])


@dataclass(frozen=True, kw_only=True)
class Waited:
    """Seconds that a mean step waited, on several devices."""

    exchanging_s: float
    """For the exchange."""
    straggling_s: float | None
    """For the last rank to come; None where ranks' clocks or collectives cannot be held together,
    and this time is in the other."""


def waited(
    own: Sequence[Sequence[Transfer]], arrivals: Sequence[Sequence[float] | None], steps: int
) -> Waited:
    """What `steps` steps waited, of the transfers of some windows and, for each window, when the
    last rank handed each of them over."""
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
    """When the last rank came to each of the collectives that every rank began in the same order;
    None where the ranks did not begin as many."""
    if len({len(own) for own in begun}) != 1:
        return None
    return [max(together) for together in zip(*begun, strict=True)]
