"""Columns of a table of points: utilization of the ranks, power and samples per joule, where any
run has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.scaling.analysis import ScalingData, rank_utilizations
from cubemesh.schema import Cell, Column

POWERS = {"mean_power_watts": ("power", "W"), "samples_per_joule": ("energy", "samples/J")}
"""Figure, summed over the devices → its column and unit."""


@dataclass(frozen=True, kw_only=True)
class EnergyColumns:
    """The columns that an answer has."""

    utilized: bool
    """Whether any run has the utilization of its ranks."""
    powers: tuple[str, ...]
    """Figures of `POWERS` that any run has."""

    @classmethod
    def of(cls, data: ScalingData) -> EnergyColumns:
        """Those of the points of `data`."""
        groups = [group for curve in data.curves for group in curve.groups]
        known = {name for group in groups for record in group.ok for name in record.figures}
        return cls(
            utilized=any(rank_utilizations(group) for group in groups),
            powers=tuple(name for name in POWERS if name in known),
        )

    def __len__(self) -> int:
        return self.utilized + len(self.powers)

    def columns(self) -> tuple[Column, ...]:
        """Their heads."""
        heads = [Column(name="utilization of the ranks", unit="%")] if self.utilized else []
        return (*heads, *(Column(name=POWERS[n][0], unit=POWERS[n][1]) for n in self.powers))

    def cells(self, group: Group[Any]) -> tuple[Cell, ...]:
        """Those of a point; a dash where a figure is unknown."""
        values = [group.median_of(name) for name in self.powers]
        cells = [
            Cell(text="–") if value is None else Cell(value=value, run_id=group.run_id)
            for value in values
        ]
        return (*([utilization_cell(group)] if self.utilized else []), *cells)


def utilization_cell(group: Group[Any]) -> Cell:
    """Lowest and highest mean utilization of the devices of a point, `84–91`; a dash where
    unknown."""
    values = rank_utilizations(group).values()
    if not values:
        return Cell(text="–")
    low, high = (f"{end:.0f}" for end in (min(values), max(values)))
    return Cell(text=low if low == high else f"{low}–{high}", run_id=group.run_id)
