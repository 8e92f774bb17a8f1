"""How much of the device did each point of an answer use? Columns of a table, where it is known.

The figures are the records' own (utilization.py): shares of the datasheet where the catalogue
knows the device, and of ceilings where some were measured before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cubemesh.experiments.analysis.groups import Group
from cubemesh.schema import Budget, Ceiling, Cell, Column, Placement, ProgramSettings, RunSpec

COLUMNS = {
    "mfu_percent": "MFU",
    "memory_use_percent": "memory use",
    "ceiling_mfu_percent": "matrix use",
    "ceiling_memory_use_percent": "of a copy",
}
"""Figure → its column: of the datasheet's peak and bandwidth, of the measured product and copy."""
NOTE = (
    "MFU and memory use are the matrix operations and the bytes moved in a second, as counted, "
    "over the datasheet's dense peak and bandwidth; matrix use and ‘of a copy’ are the same over "
    "the fastest product and copy measured on this device. Fused kernels move less than counted."
)


def known_figures(groups: Iterable[Group[Any]], names: Sequence[str] = tuple(COLUMNS)) -> list[str]:
    """Those of `names` that any of the groups has."""
    known = {name for g in groups for record in g.ok for name in record.figures}
    return [name for name in names if name in known]


def utilization_columns(names: Iterable[str]) -> tuple[Column, ...]:
    """The columns of these figures."""
    return tuple(Column(name=COLUMNS[name], unit="%", digits=2) for name in names)


def utilization_cells(group: Group[Any], names: Iterable[str]) -> tuple[Cell, ...]:
    """What stands in them for one point: the median over its runs."""
    cells = []
    for name in names:
        value = group.median_of(name)
        known = Cell(value=value, run_id=group.run_id)
        cells.append(
            known if value is not None else Cell(text="–") if group.ok else group.cell(None)
        )
    return tuple(cells)


def ceiling_specs(
    program: ProgramSettings, budget: Budget, placement: Placement | None = None
) -> list[RunSpec]:
    """The product and the copy that a program's runs are held against."""
    return [
        RunSpec(
            work=Ceiling(operation=operation),
            placement=placement or Placement(),
            program=program if operation == "matrix_product" else ProgramSettings(),
            budget=budget,
        )
        for operation in ("matrix_product", "copy")
    ]
