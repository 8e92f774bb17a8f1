"""What did all ranks do together? Their windows side by side, as windows of the whole run.

    rank 0   ├── window 1 ──┤├── window 2 ──┤
    rank 1    ├── window 1 ───┤├─ window 2 ─┤
    run      ├── window 1 ────┤              from the first start to the last end; samples summed

Ranks that make their steps apart (pace.py) have no *n*-th window in common. The windows of the run
are then rank 0's, and each holds what all ranks did meanwhile:

    rank 0   ├─ window 1 ─┤├─ window 2 ─┤
    rank 1    ├──── window 1 ────┤├── …       its samples a second, while rank 0's window lasted
    run      ├─ window 1 ─┤                   rank 0's own time; samples of all

Clocks of one host are one clock; a rank's times on another host are shifted by its offset before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cubemesh.schema.record import Window


def merge_lockstep(windows: Sequence[Window]) -> list[Window]:
    """The windows of a run from those of its ranks, phase by phase and in their order; as they are
    where there is one rank. What a rank did more than another is left out."""
    ranks = sorted({w.rank for w in windows})
    if len(ranks) < 2:
        return list(windows)
    found = []
    for phase in dict.fromkeys(w.phase for w in windows):
        own = [[w for w in windows if w.rank == rank and w.phase == phase] for rank in ranks]
        found += [_merged(same) for same in zip(*own, strict=False)]
    return found


def merge_free_running(windows: Sequence[Window], phase: str = "measure") -> list[Window]:
    """The windows of a run whose ranks make their steps apart: rank 0's of `phase`, with what the
    others did meanwhile, in whatever phase they trained. Steps are rank 0's."""
    others: dict[int, list[Window]] = {}
    for window in windows:
        if window.rank and window.phase != "evaluate":
            others.setdefault(window.rank, []).append(window)
    found = []
    for own in (w for w in windows if not w.rank and w.phase == phase):
        rates = (_rate_meanwhile(theirs, own) for theirs in others.values())
        samples = own.samples + round(sum(rates) * own.elapsed_s)
        found.append(dataclasses.replace(own, samples=samples))
    return found


def _rate_meanwhile(windows: Sequence[Window], during: Window) -> float:
    """Samples a second of a rank while a window of another lasted; where it had none then, of all
    its windows."""
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
        elapsed_s=end_s - start_s,
        steps=max(w.steps for w in same),
        samples=sum(w.samples for w in same),
        marks=same[0].marks,
    )
