"""What did all ranks do together? Their windows side by side, as windows of the whole run.

    rank 0   ├── window 1 ──┤├── window 2 ──┤
    rank 1    ├── window 1 ───┤├─ window 2 ─┤
    run      ├── window 1 ────┤              from the first start to the last end; samples summed

Clocks of one host are one clock; a rank's times on another host are shifted by its offset before.
"""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.model.record import Window


def together(windows: Sequence[Window]) -> list[Window]:
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
