"""Tables of answers and facts as text, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.schema import Cell, Column, Table
from cubemesh.untrusted import clean
from cubemesh.views.formatting import SCALED, bare_quantity, with_unit

GAP = "–"
"""Text of a gap without a reason."""


@dataclass(frozen=True, kw_only=True)
class TextCell:
    """A table cell as text; a gap has its reason, or "–"."""

    text: str
    span: int = 1
    """Columns: more than one where a reason is that of the rest of the row."""
    gap: bool = False
    number: bool = False
    run_id: str = ""


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table as text."""

    title: str
    headings: tuple[tuple[str, bool], ...]
    """Each heading, and whether its column holds numbers."""
    rows: tuple[tuple[TextCell, ...], ...]


def table_of_texts(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """A table whose cells are texts, from their names and values."""
    cells = tuple(tuple(Cell(text=str(value)) for value in row) for row in rows)
    return Table(title=title, columns=tuple(Column(name=name) for name in columns), rows=cells)


def table_of_figures(
    title: str, columns: Mapping[str, str], rows: Iterable[Iterable[float | str | None]]
) -> Table:
    """A table of numbers, texts and gaps; `columns` maps each name to its unit."""
    cells = tuple(
        tuple(Cell(text=v) if isinstance(v, str) else Cell(value=v) for v in row) for row in rows
    )
    heads = tuple(Column(name=name, unit=unit) for name, unit in columns.items())
    return Table(title=title, columns=heads, rows=cells)


def text_table(table: Table) -> TextTable:
    """A table with every cell as text; gaps at the end of a row with one reason are one cell."""
    headings = tuple(
        (heading(column), any(row[i].value is not None for row in table.rows))
        for i, column in enumerate(table.columns)
    )
    rows = []
    for row in table.rows:
        cells = [
            TextCell(
                text=cell_text(cell, column),
                gap=_is_gap(cell),
                number=number and not _is_gap(cell),
                run_id=cell.run_id,
            )
            for cell, column, (_, number) in zip(row, table.columns, headings, strict=True)
        ]
        start = gap_from(row)
        if start is not None:
            tail = row[start:]
            reason = next(cell.reason for cell in tail if cell.reason)
            run_id = next((cell.run_id for cell in tail if cell.run_id), "")
            cells[start:] = [TextCell(text=clean(reason), span=len(tail), gap=True, run_id=run_id)]
        rows.append(tuple(cells))
    return TextTable(title=clean(table.title), headings=headings, rows=tuple(rows))


def heading(column: Column) -> str:
    """The head of a column: its name, and its unit where the cells do not have it."""
    return with_unit(column.name, "" if column.unit in SCALED else column.unit)


def cell_text(cell: Cell, column: Column) -> str:
    """The text of a table cell, or the reason of a gap."""
    if cell.value is not None:
        return bare_quantity(cell.value, column.unit, cell.low, cell.high, column.digits)
    return clean(cell.text or cell.reason) or GAP


def gap_from(row: tuple[Cell, ...]) -> int | None:
    """The index of the first gap of a row whose remaining cells are gaps with one reason."""
    start = len(row)
    while start > 0 and _is_gap(row[start - 1]):
        start -= 1
    reasons = {cell.reason for cell in row[start:] if cell.reason}
    return start if len(reasons) == 1 else None


def _is_gap(cell: Cell) -> bool:
    return cell.value is None and not cell.text
