"""How much energy did a run on several devices take? What its ranks read, put together.

Each rank reads the board of its own GPU, and the counters of its host, which all ranks of a host
share. So over the measured windows of each rank

    joules             Σ over ranks of their boards' + Σ over hosts of their packages' and memory's
    joules per sample  joules / samples of all ranks
    mean power         joules / seconds of these windows, in the mean over ranks

Where one board has no reading there is no sum: a run on eight GPUs is not what seven drew. One
process that drives several GPUs reads the first of them alone, so it has none either.
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
"""Of the figures that are put together here."""
Told = Mapping[int, Mapping[str, Figure]]
"""Rank → figures by name, as it told them."""


def energy_of_ranks(ranks: Sequence[Rank], told: Told, windows: Iterable[Window]) -> Energy:
    """The figures of energy and power of a run whose ranks have `told` their own, in place of the
    first rank's; of one rank with one device, those."""
    own = {name: figure for name, figure in told.get(0, {}).items() if name in NAMES}
    driven = max((len(rank.devices) for rank in ranks), default=0)
    if driven > 1 and POWER in own:
        return _of_several_boards(own, driven)
    if len(ranks) < 2:
        return Energy(figures=own)
    return Energy(figures=_of_several_ranks(ranks, told, windows))


def _of_several_boards(own: Mapping[str, Figure], driven: int) -> Energy:
    figures = {
        name: replace(figure, method=f"{figure.method}, of the first of {driven} GPUs alone")
        for name, figure in own.items()
        if name not in _TOTALS
    }
    why = f"one process drives {driven} GPUs, and reads the board of the first of them alone"
    return Energy(figures=figures, unmeasured=(unknown(why),))


def _of_several_ranks(
    ranks: Sequence[Rank], told: Told, windows: Iterable[Window]
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
        **{name: _sum(name, on_gpu, told) for name in _OF_BOARDS},
        **{name: _sum(name, list(firsts.values()), told) for name in OF_HOST},
    }
    figures = {name: figure for name, figure in summed.items() if figure is not None}
    parts = [
        Part(
            name=words,
            how=figures[name].method,
            joules=math.fsum(told[rank][name].value * seconds[rank] for rank in of),
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
        samples = sum(w.samples for w in measured) if _counts_samples(told) else None
        n = sum(w.rank == 0 for w in measured)
        figures |= totals(parts, mean_s, samples, n)
    return figures


def _counts_samples(told: Told) -> bool:
    return any("energy_joules_per_sample" in figures for figures in told.values())


def _sum(name: str, ranks: Sequence[int], told: Told) -> Figure | None:
    """The sum of what these ranks told under a name; None where one of them told nothing."""
    figures = [told[rank][name] for rank in ranks if name in told.get(rank, {})]
    if not figures or len(figures) < len(ranks):
        return None
    how = " or ".join(sorted({figure.method for figure in figures}))
    return Figure(
        value=math.fsum(figure.value for figure in figures),
        unit=figures[0].unit,
        n=min(figure.n for figure in figures),
        method=f"{how}, summed over {len(figures)}" if len(figures) > 1 else how,
    )
