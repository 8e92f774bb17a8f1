"""Loader of the catalogue's datasheets; every line is validated.

    [sources]
    maker-2024 = "Maker, Datasheet of the X1 (2024), maker.com/x1.pdf"

    [x1]
    name = "Maker X1"
    kind = "gpu"                     # or cpu, accelerator
    family = "X1"
    architecture = "First"
    named = ["X1", "X1 SXM"]         # as nvidia-smi, /proc/cpuinfo or tables call it
    [[x1.figures]]
    source = "maker-2024"            # of every figure in this block
    fp32 = 10e12                     # dense, operations a second
    memory_bytes_per_s = 1e12

What does not fit is an error that names file, line and field (fields.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from cubemesh.machines.catalogue.datasheet import FIGURES, KINDS, PRECISIONS, Datasheet, Sourced
from cubemesh.machines.catalogue.fields import Fields, read_toml

FILES = ("nvidia.toml", "intel.toml", "amd.toml", "google.toml", "huawei.toml", "apple.toml")


@cache
def datasheets() -> Mapping[str, Datasheet]:
    """All datasheets of the catalogue, by id, in file order."""
    found: dict[str, Datasheet] = {}
    for file in FILES:
        text = resources.files(__package__).joinpath(file).read_text("utf-8")
        found |= read_datasheets(text, file)
    return found


def read_datasheets(text: str, file: str) -> dict[str, Datasheet]:
    """The datasheets of a TOML text, by id; DataError for what does not fit."""
    top = read_toml(text, file)
    sources = top.table("sources")
    if sources is None:
        top.wrong("sources", "is missing: a table of source ids and titles.")
    titles = {id: sources.text(id) for id in sources.values}
    tables = {id: table for id in top.values if id != "sources" and (table := top.table(id))}
    found = {id: _datasheet(id, table, titles) for id, table in tables.items()}
    used = {figure.source for sheet in found.values() for figure in sheet.figures.values()}
    for id, title in titles.items():
        if title not in used:
            sources.wrong(id, "is not used by any figure.")
    return found


def _datasheet(id: str, table: Fields, sources: Mapping[str, str]) -> Datasheet:
    words = ("name", "kind", "family", "architecture")
    table.only((*words, "named", "computes", "note", "figures"))
    computes = table.table("computes")
    if computes is not None:
        computes.only(PRECISIONS)
    return Datasheet(
        id=id,
        name=table.text("name"),
        kind=table.one_of("kind", KINDS),
        family=table.text("family"),
        architecture=table.text("architecture"),
        named=table.texts("named"),
        figures=_figures(table, sources),
        computes={p: computes.one_of(p, PRECISIONS) for p in computes.values} if computes else {},
        note=table.text("note", default=""),
    )


def _figures(table: Fields, sources: Mapping[str, str]) -> dict[str, Sourced]:
    found: dict[str, Sourced] = {}
    for block in table.tables("figures"):
        block.only(("source", *FIGURES))
        source = sources[block.one_of("source", sources)]
        for name in block.values:
            if name in found:
                block.wrong(name, "is given twice.")
            if name != "source" and (value := block.above_zero(name)) is not None:
                found[name] = Sourced(value=value, source=source)
    if ("price_usd" in found) != ("price_year" in found):
        table.wrong("figures", "price_usd and price_year belong together; give both.")
    if not found:
        table.wrong("figures", "is missing: at least one figure with its source.")
    return found
