"""Device utilization of measured points, as table columns.

The figures are in the records (forecast/utilization.py): fractions of the datasheet's peaks if the
catalogue knows the device, and of measured ceilings if there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cubemesh.experiments.analysis.groups import Group
from cubemesh.schema import Budget, Ceiling, Cell, Column, RunSpec

COLUMNS = {
    "mfu_percent": "MFU",
    "memory_use_percent": "of peak bandwidth",
    "ceiling_mfu_percent": "matmul use",
    "ceiling_memory_use_percent": "of memcpy bandwidth",
}
"""Figure → its column."""
NOTE = (
    "MFU and ‘of peak bandwidth’ are the counted matrix operations and bytes moved per second over "
    "the datasheet's dense peak and bandwidth; ‘matmul use’ and ‘of memcpy bandwidth’ are the same "
    "over the fastest matrix product and copy measured on this device. Fused kernels move fewer "
    "bytes than counted."
)


ABOVE_WHOLE = "> 100"
"""Shown for a rate above its ceiling, of which no percentage is a share: a fast algorithm, or a
fused kernel, did less than is counted."""


def share_cell(percent: float, run_id: str = "") -> Cell:
    """A percentage of a ceiling; `> 100` above it."""
    return (
        Cell(text=ABOVE_WHOLE, run_id=run_id)
        if percent > 100
        else Cell(value=percent, run_id=run_id)
    )


def known_figures(groups: Iterable[Group[Any]], names: Sequence[str] = tuple(COLUMNS)) -> list[str]:
    """Those of `names` that any of the groups has."""
    known = {name for g in groups for record in g.ok for name in record.figures}
    return [name for name in names if name in known]


def utilization_columns(names: Iterable[str]) -> tuple[Column, ...]:
    """The columns of these figures."""
    return tuple(Column(name=COLUMNS[name], unit="%", digits=2) for name in names)


def utilization_cells(group: Group[Any], names: Iterable[str]) -> tuple[Cell, ...]:
    """Their cells for one point: the median over its runs."""
    cells = []
    for name in names:
        value = group.median_of(name)
        if value is not None:
            cells.append(share_cell(value, group.run_id))
        else:
            cells.append(Cell(text="–") if group.ok else group.cell(None))
    return tuple(cells)


def ceiling_specs(budget: Budget) -> list[RunSpec]:
    """The matrix product and the copy that runs are compared with."""
    works = (Ceiling(operation="matrix_product"), Ceiling(operation="copy"))
    return [RunSpec(work=work, budget=budget) for work in works]
