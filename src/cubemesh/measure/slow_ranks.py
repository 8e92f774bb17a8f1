"""Slow ranks: which of several ranks makes the others wait, from their windows.

    rank 0   ├ computes ────┤ waits ──┤     13 ms: 10 ms of its own
    rank 1   ├ computes ──────────────┤     13 ms: all its own; every step waits 3 ms for it
    rank 2   ├ computes ────┤ waits ──┤     13 ms: 10 ms of its own

Ranks that wait for one another in every step take the same time for it, so their step times show
nothing. The time of a rank's own is its window less its waits in collectives (parallel/waits.py).
Only durations are compared, so the clocks of hosts need not agree.

A rank is slow where it takes over 5 % of the step longer than the median of the others, on average
over all windows, and longer at all with 99.9 % confidence: a single window with an interruption is
no slow rank. A rank that stands still now and then is one, if that happens often enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from cubemesh.schema.record import Window
from cubemesh.schema.warning import Warning, warn
from cubemesh.statistics import t_interval
from cubemesh.units import format_number, format_seconds

LEAST_SHARE = 0.05
"""Fraction of the step that a slow rank costs at least."""
CONFIDENCE = 0.999
"""Of naming no rank where ranks differ by chance: most runs have no slow one."""
FEWEST_WINDOWS = 3
"""Measured windows needed to judge ranks."""
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A rank that takes longer for a step than the others."""

    rank: int
    own_s: float
    """Seconds of the mean step that are its own: all but its waits for other ranks."""
    others_s: float
    """The same of the others, their median."""
    step_s: float

    @property
    def slower(self) -> float:
        """By which fraction it is slower than the others."""
        return self.own_s / self.others_s - 1

    @property
    def share(self) -> float:
        """Fraction of the step by which it exceeds the others."""
        return (self.own_s - self.others_s) / self.step_s


def slow_ranks(windows: Sequence[Window], spared: Sequence[int] = ()) -> list[SlowRank]:
    """The slow ranks among those with measured `windows`, the slowest first. Windows in which the
    wait of any is unknown are left out. Ranks `spared` are compared with, but never slow: they have
    more to do."""
    by_rank: dict[int, list[Window]] = {}
    for window in windows:
        if window.phase == "measure":
            by_rank.setdefault(window.rank, []).append(window)
    same = [
        together
        for together in zip(*by_rank.values(), strict=False)
        if all(w.waited_s is not None for w in together)
    ]
    if len(by_rank) < 2 or len(same) < FEWEST_WINDOWS:
        return []
    common = dict(zip(by_rank, zip(*same, strict=True), strict=True))
    own_s = {
        rank: [max(w.elapsed_s - (w.waited_s or 0.0), 0.0) for w in own]
        for rank, own in common.items()
    }
    candidates = (_compared(rank, common[rank], own_s) for rank in common if rank not in spared)
    found = [one for one in candidates if one is not None]
    return sorted(found, key=lambda one: -one.share)


def _compared(
    rank: int, windows: Sequence[Window], own_s: Mapping[int, Sequence[float]]
) -> SlowRank | None:
    """This rank against the others, window by window; None where it is not slow."""
    others = [seconds for other, seconds in own_s.items() if other != rank]
    typical = [median_high(together) for together in zip(*others, strict=True)]
    steps = sum(w.steps for w in windows)
    one = SlowRank(
        rank=rank,
        own_s=math.fsum(own_s[rank]) / steps,
        others_s=math.fsum(typical) / steps,
        step_s=math.fsum(w.elapsed_s for w in windows) / steps,
    )
    if one.share <= LEAST_SHARE or not one.others_s:
        return None
    excess = [
        (own - other) / window.steps
        for own, other, window in zip(own_s[rank], typical, windows, strict=True)
    ]
    # Student's, as for independent windows: a rank that is slow for a while was slow in this run.
    confidence = 1 - (1 - CONFIDENCE) / len(own_s)  # for the number of ranks that may be named
    return one if t_interval(excess, confidence).low > 0 else None


def slow_rank(
    found: Sequence[SlowRank], hosts: Mapping[int, str] | None = None, *, blocking: bool = True
) -> Warning | None:
    """The warning that names slow ranks; None without any. `hosts` are the ranks' hosts, where
    there are several; `blocking` says whether a step waits for other ranks."""
    if not found:
        return None
    worst, *more = found
    name, cost = f"Rank {worst.rank}", ""
    if hosts and worst.rank in hosts:
        name += f" on {hosts[worst.rank]}"
    if blocking:
        cost = f", and costs every rank {_percent(worst.share)} of the step"
    cause = (
        f"{name} took {format_seconds(worst.own_s)} a step without its waits for other ranks; the "
        f"others took {format_seconds(worst.others_s)} (median). It is {_percent(worst.slower)} "
        f"slower{cost}."
    )
    if more:
        listed = ", ".join(f"rank {s.rank} ({_percent(s.slower)})" for s in more[:MOST_NAMED])
        cause += f" Also slower: {listed}{', …' if len(more) > MOST_NAMED else ''}."
    return warn(
        "slow-rank",
        cause,
        "Stop other programs on its processors and its GPU, and check its clocks, its cooling and "
        "its input; time-breakdown on the same devices says what it spends the time on.",
    )


def _percent(share: float) -> str:
    return f"{format_number(100 * share, 2)} %"
