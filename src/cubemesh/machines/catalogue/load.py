"""Loader of the catalogue's datasheets; every line is validated.

    [sources]
    maker-2024 = "Maker, Datasheet of the X1 (2024)"

    [x1]
    name = "Maker X1"
    kind = "gpu"                     # or cpu
    family = "X1"
    architecture = "First"
    named = ["X1", "X1 SXM"]         # as nvidia-smi, /proc/cpuinfo or tables call it
    [[x1.figures]]
    source = "maker-2024"            # of every figure in this block
    fp32 = 10e12                     # dense, operations a second
    memory_bytes_per_s = 1e12

What does not fit is an error that names the file, the device and the field.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NoReturn

from cubemesh.errors import DataError
from cubemesh.machines.catalogue.datasheet import FIGURES, PRECISIONS, Datasheet, Sourced

FILES = ("nvidia.toml", "intel.toml", "amd.toml")

_WORDS = ("name", "kind", "family", "architecture")
_FIELDS = (*_WORDS, "named", "computes", "note", "figures")


@cache
def datasheets() -> Mapping[str, Datasheet]:
    """All datasheets of the catalogue, by id, in file order."""
    found: dict[str, Datasheet] = {}
    for file in FILES:
        text = resources.files(__package__).joinpath(file).read_text("utf-8")
        found |= read_datasheets(text, file)
    return found


def read_datasheets(text: str, file: str) -> dict[str, Datasheet]:
    """The datasheets of a TOML text; DataError for what does not fit."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{file}: {error}.") from None
    sources = tables.pop("sources", None)
    if not isinstance(sources, dict) or not all(isinstance(s, str) for s in sources.values()):
        raise DataError(f"{file}: it must have a table [sources] of strings.")
    found = {id: _Table(file, id, table).datasheet(sources) for id, table in tables.items()}
    used = {figure.source for sheet in found.values() for figure in sheet.figures.values()}
    unused = [key for key, words in sources.items() if words not in used]
    if unused:
        raise DataError(f"{file}, [sources]: '{unused[0]}' is not used by any figure.")
    return found


class _Table:
    """One device's table, and the complaints about it."""

    def __init__(self, file: str, id: str, table: Any) -> None:
        self.file, self.id = file, id
        if not isinstance(table, dict):
            self.table: dict[str, Any] = {}
            self.wrong(f"is {table!r} and must be a table")
        self.table = table

    def wrong(self, why: str) -> NoReturn:
        raise DataError(f"{self.file}, [{self.id}]: {why}.")

    def datasheet(self, sources: Mapping[str, str]) -> Datasheet:
        self.known(self.table, _FIELDS, "field")
        kind, computes = self.text("kind"), self.table.get("computes", {})
        if kind not in ("gpu", "cpu"):
            self.wrong(f"kind is {kind!r} and must be gpu or cpu")
        for pair in computes.items():
            if not set(pair) <= set(PRECISIONS):
                self.wrong(f"computes has {pair!r}; precisions are {', '.join(PRECISIONS)}")
        named = self.table.get("named")
        if not isinstance(named, list) or not named or not all(isinstance(n, str) for n in named):
            self.wrong("named must list at least one name")
        return Datasheet(
            id=self.id,
            name=self.text("name"),
            kind=kind,  # type: ignore[arg-type]
            family=self.text("family"),
            architecture=self.text("architecture"),
            named=tuple(named),
            figures=self.figures(sources),
            computes=computes,
            note=self.table.get("note", ""),
        )

    def text(self, name: str) -> str:
        value = self.table.get(name)
        if not isinstance(value, str) or not value.strip():
            self.wrong(f"{name} must be a string")
        return value

    def figures(self, sources: Mapping[str, str]) -> dict[str, Sourced]:
        found: dict[str, Sourced] = {}
        for block in self.table.get("figures", []):
            self.known(block, ("source", *FIGURES), "figure")
            source = block.get("source")
            if source not in sources:
                self.wrong(f"source is {source!r}, which [sources] does not have")
            for name, value in block.items():
                if name == "source":
                    continue
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if not number or not (math.isfinite(value) and value > 0):
                    self.wrong(f"{name} is {value!r} and must be a number above 0")
                if name in found:
                    self.wrong(f"{name} is given twice")
                found[name] = Sourced(value=float(value), source=sources[source])
        if not found:
            self.wrong("it has no [[figures]]")
        return found

    def known(self, given: Mapping[str, Any], allowed: tuple[str, ...], what: str) -> None:
        for name in given:
            if name not in allowed:
                self.wrong(f"unknown {what} '{name}'; known: {', '.join(allowed)}")
