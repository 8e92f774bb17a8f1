"""Windows of a run on several devices, merged from the windows of its ranks.

    rank 0   ├── window 1 ──┤├── window 2 ──┤
    rank 1    ├── window 1 ───┤├─ window 2 ─┤
    run      ├── window 1 ────┤              lockstep: first start to last end; samples summed

Free-running ranks (timing/timer.py) have no common n-th window. Rank 0's windows then also count
the samples of the other ranks in the same time:

    rank 0   ├─ window 1 ─┤├─ window 2 ─┤
    rank 1    ├──── window 1 ────┤├── …       its samples per second during rank 0's window
    run      ├─ window 1 ─┤                   rank 0's time; samples of all ranks

Ranks of one host share a clock; those of another host are shifted by its clock offset before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cubemesh.schema.record import Window


def merge_lockstep(windows: Sequence[Window]) -> list[Window]:
    """Windows of a run in lockstep, phase by phase in their order. A rank's windows beyond those of
    the others are left out; windows of a single rank are returned unchanged."""
    ranks = sorted({w.rank for w in windows})
    if len(ranks) < 2:
        return list(windows)
    found = []
    for phase in dict.fromkeys(w.phase for w in windows):
        own = [[w for w in windows if w.rank == rank and w.phase == phase] for rank in ranks]
        found += [_merged(same) for same in zip(*own, strict=False)]
    return found


def merge_free_running(windows: Sequence[Window]) -> list[Window]:
    """Windows of a run with free-running ranks: the measured ones of rank 0, with the samples that
    the others trained meanwhile. Steps are rank 0's."""
    others: dict[int, list[Window]] = {}
    for window in windows:
        if window.rank and window.phase != "evaluate":
            others.setdefault(window.rank, []).append(window)
    found = []
    for own in (w for w in windows if not w.rank and w.phase == "measure"):
        rates = (_rate_meanwhile(theirs, own) for theirs in others.values())
        samples = own.samples + round(sum(rates) * own.elapsed_s)
        found.append(dataclasses.replace(own, samples=samples))
    return found


def _rate_meanwhile(windows: Sequence[Window], during: Window) -> float:
    """Samples per second of a rank during a window of another; over all its windows where it had
    none then."""
    start_s, end_s = during.start_s, during.start_s + during.elapsed_s
    shared_s = [min(end_s, w.start_s + w.elapsed_s) - max(start_s, w.start_s) for w in windows]
    weights = [max(0.0, s) for s in shared_s]
    if not any(weights):
        weights = [w.elapsed_s for w in windows]
    rates = (w.samples / w.elapsed_s for w in windows)
    return sum(s * rate for s, rate in zip(weights, rates, strict=True)) / sum(weights)


def _merged(same: tuple[Window, ...]) -> Window:
    start_s = min(w.start_s for w in same)
    end_s = max(w.start_s + w.elapsed_s for w in same)
    return Window(
        phase=same[0].phase,
        start_s=start_s,
        elapsed_s=max(end_s - start_s, *(w.elapsed_s for w in same)),
        steps=max(w.steps for w in same),
        samples=sum(w.samples for w in same),
        marks=same[0].marks,
    )
