"""Parquet: the table of runs with its types, and the unit of a column as metadata of its field."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, BinaryIO

from cubemesh.errors import UsageError
from cubemesh.exports.contents import ExportedRuns
from cubemesh.exports.table import STARTED, table_rows, units


def write(runs: ExportedRuns, file: BinaryIO) -> None:
    """Write the table; UsageError where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed: pip install 'cubemesh[exports]'."
        ) from None
    rows, unit_of = table_rows(runs.records), units(runs.records)
    fields, arrays = [], []
    for name in rows[0] if rows else ():
        array = pyarrow.array(*typed(pyarrow, name, [row[name] for row in rows]))
        unit = {"unit": unit_of[name]} if name in unit_of else None
        fields.append(pyarrow.field(name, array.type, metadata=unit))
        arrays.append(array)
    parquet.write_table(pyarrow.table(arrays, schema=pyarrow.schema(fields)), file)


def typed(pyarrow: Any, name: str, values: Sequence[Any]) -> tuple[list[Any], Any]:
    """Values of one column and their Arrow type; different kinds in a column become text."""
    kinds = {type(value) for value in values if value is not None}
    if name == STARTED:
        dates = [datetime.datetime.fromisoformat(value) for value in values]
        return dates, pyarrow.timestamp("us", tz="UTC")
    if kinds == {bool}:
        return list(values), pyarrow.bool_()
    if kinds == {int}:
        return list(values), pyarrow.int64()
    if kinds and kinds <= {int, float}:
        return [None if v is None else float(v) for v in values], pyarrow.float64()
    return [None if v is None else _text(v) for v in values], pyarrow.string()


def _text(value: Any) -> str:
    """Halves of surrogate pairs, which UTF-8 cannot encode, are escaped."""
    text = value if isinstance(value, str) else repr(value)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
