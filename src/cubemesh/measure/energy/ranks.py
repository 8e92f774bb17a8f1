"""Energy of a run on several devices, from the readings of its ranks.

Each rank reads the board of its own GPU and the counters of its host, which the ranks of a host
share. Over the measured windows of each rank:

    joules             Σ over ranks of the boards + Σ over hosts of the packages and their memory
    joules per sample  joules / samples of all ranks
    mean power         joules / seconds of these windows, mean over ranks

Without a reading of every board there is no sum: the energy of seven GPUs is not that of eight. One
process that drives several GPUs reads only the first, so it has no sum either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cubemesh.measure.energy.energy import BOARD, INTEGRATED, OF_HOST, Energy, Part, totals, unknown
from cubemesh.measure.telemetry.gpu import ENERGY, POWER
from cubemesh.schema.record import Figure, Rank, Window

IDLE = "gpu_idle_watts"
_TOTALS = ("mean_power_watts", "energy_joules_per_sample", "samples_per_joule")
_OF_BOARDS = (POWER, ENERGY, INTEGRATED, IDLE)
NAMES = frozenset({*_TOTALS, *_OF_BOARDS, *OF_HOST})
"""Names of the figures combined here."""
ByRank = Mapping[int, Mapping[str, Figure]]
"""Rank → its figures by name."""


def energy_of_ranks(
    ranks: Sequence[Rank], own_figures: ByRank, windows: Iterable[Window]
) -> Energy:
    """Figures of energy and power of a run, from those of its ranks; on one device, that rank's."""
    own = {name: figure for name, figure in own_figures.get(0, {}).items() if name in NAMES}
    driven = max((len(rank.devices) for rank in ranks), default=0)
    if driven > 1 and POWER in own:
        return _of_several_boards(own, driven)
    if len(ranks) < 2:
        return Energy(figures=own)
    return Energy(figures=_of_several_ranks(ranks, own_figures, windows))


def _of_several_boards(own: Mapping[str, Figure], driven: int) -> Energy:
    figures = {
        name: replace(figure, method=f"{figure.method}, only the first of {driven} GPUs")
        for name, figure in own.items()
        if name not in _TOTALS
    }
    why = f"one process drives {driven} GPUs and reads only the first one's board"
    return Energy(figures=figures, unmeasured=(unknown(why),))


def _of_several_ranks(
    ranks: Sequence[Rank], own_figures: ByRank, windows: Iterable[Window]
) -> dict[str, Figure]:
    measured = [w for w in windows if w.phase == "measure"]
    seconds = {
        rank.rank: math.fsum(w.elapsed_s for w in measured if w.rank == rank.rank) for rank in ranks
    }
    firsts: dict[str, int] = {}
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        firsts.setdefault(rank.host, rank.rank)
    on_gpu = [rank.rank for rank in ranks if rank.device != "cpu"]
    summed = {
        **{name: _sum(name, on_gpu, own_figures) for name in _OF_BOARDS},
        **{name: _sum(name, list(firsts.values()), own_figures) for name in OF_HOST},
    }
    figures = {name: figure for name, figure in summed.items() if figure is not None}
    parts = [
        Part(
            name=words,
            how=figures[name].method,
            joules=math.fsum(own_figures[rank][name].value * seconds[rank] for rank in of),
            mean_name=name,
        )
        for name, words, of in (
            (POWER, BOARD, on_gpu),
            *((name, words, list(firsts.values())) for name, words in OF_HOST.items()),
        )
        if name in figures
    ]
    mean_s = math.fsum(seconds.values()) / len(seconds)
    if parts and mean_s > 0 and (not on_gpu or POWER in figures):
        samples = sum(w.samples for w in measured) if _counts_samples(own_figures) else None
        n = sum(w.rank == 0 for w in measured)
        figures |= totals(parts, mean_s, samples, n)
    return figures


def _counts_samples(own_figures: ByRank) -> bool:
    return any("energy_joules_per_sample" in figures for figures in own_figures.values())


def _sum(name: str, ranks: Sequence[int], own_figures: ByRank) -> Figure | None:
    """Sum of a figure over these ranks; None where one of them lacks it."""
    figures = [own_figures[rank][name] for rank in ranks if name in own_figures.get(rank, {})]
    if not figures or len(figures) < len(ranks):
        return None
    how = " or ".join(sorted({figure.method for figure in figures}))
    return Figure(
        value=math.fsum(figure.value for figure in figures),
        unit=figures[0].unit,
        n=min(figure.n for figure in figures),
        method=f"{how}, summed over {len(figures)}" if len(figures) > 1 else how,
    )
