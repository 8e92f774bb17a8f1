"""Reader of the published figures and claims (CSV), with strict validation of every field.

An invalid row is an error that names file, line and field, so that an edited table never loses a
row silently.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from typing import get_args

from cubemesh.errors import DataError
from cubemesh.papers.published.names import CANONICAL
from cubemesh.schema.published import Claim, ClaimKind, Input, PublishedFigure

FIGURES, STOCK, CLAIMS = "figures.csv.gz", "stock.csv", "claims.csv"
SCALING, SCALING_FILES = "scaling.csv", "scaling_files.csv"
SCALING_COLUMNS = (
    *("file", "system", "machine", "device", "framework", "network", "precision"),
    *("batch_per_device", "unit", "style", "input", "rates"),
)
SCALING_FILE_COLUMNS = ("file", "source", "url", "path", "commit", "licence")
_SCALING_ONLY = {"canonical", "machine", "style", "input"}
FIGURE_COLUMNS = tuple(f.name for f in fields(PublishedFigure) if f.name not in _SCALING_ONLY)
CLAIM_COLUMNS = tuple(f.name for f in fields(Claim))


@cache
def figures() -> tuple[PublishedFigure, ...]:
    """Every published figure cubemesh carries, in the order of its file."""
    return read_figures(gzip.decompress(_carried(FIGURES)).decode(), FIGURES)


@cache
def stock_figures() -> tuple[PublishedFigure, ...]:
    """Rates of stock frameworks on one to eight H200, measured for cubemesh; every step was
    synchronized, which understates short steps and several devices."""
    return read_figures(_carried(STOCK).decode(), STOCK)


@cache
def scaling_figures() -> tuple[PublishedFigure, ...]:
    """Rates of one and of several devices, from tables whose gradient style is known."""
    files = {row["file"]: row for row in scaling_files()}
    return read_scaling(_carried(SCALING).decode(), SCALING, files)


@cache
def scaling_files() -> tuple[Mapping[str, str], ...]:
    """The file that each of these rates is from: source, address, path, commit and licence."""
    rows = csv_rows(_carried(SCALING_FILES).decode(), SCALING_FILES, SCALING_FILE_COLUMNS)
    return tuple({name: row.filled(name) for name in SCALING_FILE_COLUMNS} for row in rows)


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim of the five papers, in their order."""
    return read_claims(_carried(CLAIMS).decode(), CLAIMS)


def read_figures(text: str, file: str) -> tuple[PublishedFigure, ...]:
    """The rows of a CSV text with `FIGURE_COLUMNS`; DataError for one that does not fit."""
    return tuple(
        PublishedFigure(
            source=row.filled("source"),
            url=row.filled("url"),
            system=row.filled("system"),
            device=row.filled("device"),
            devices=row.count("devices", least=0),
            framework=row.text("framework"),
            network=row.filled("network"),
            canonical=CANONICAL.get(row.text("network")),
            precision=row.text("precision"),
            precision_implied=row.one_of("precision_implied", ("yes", "no")) == "yes",
            batch_per_device=row.count("batch_per_device", least=1),
            metric=row.filled("metric"),
            unit=row.filled("unit"),
            value=row.number("value", row.filled("value")),
            note=row.text("note"),
        )
        for row in csv_rows(text, file, FIGURE_COLUMNS)
    )


def read_scaling(
    text: str, file: str, files: Mapping[str, Mapping[str, str]]
) -> tuple[PublishedFigure, ...]:
    """The rates of a CSV text with `SCALING_COLUMNS`, of which `rates` is `1=362.4 8=2722`: devices
    and rate; DataError for a row that does not fit."""
    found = []
    for row in csv_rows(text, file, SCALING_COLUMNS):
        if row.text("file") not in files:
            raise row.wrong("file", f"is not one of {SCALING_FILES}")
        of = files[row.text("file")]
        common = PublishedFigure(
            source=of["source"],
            url=f"{of['url']} {of['path']} at {of['commit']}",
            system=row.filled("system"),
            device=row.filled("device"),
            devices=1,
            framework=row.filled("framework"),
            network=row.filled("network"),
            canonical=CANONICAL.get(row.text("network")),
            precision=row.filled("precision"),
            batch_per_device=row.count("batch_per_device", least=1),
            metric="throughput",
            unit=row.filled("unit"),
            value=0.0,
            machine=row.text("machine"),
            style=row.text("style"),
            input=row.one_of("input", get_args(Input)),  # type: ignore[arg-type]
        )
        for devices, rate in row.rates("rates"):
            found.append(replace(common, devices=devices, value=rate))
    return tuple(found)


def read_claims(text: str, file: str) -> tuple[Claim, ...]:
    """The rows of a CSV text with `CLAIM_COLUMNS`; DataError for one that does not fit, or for an
    id that comes twice."""
    found: dict[str, Claim] = {}
    for row in csv_rows(text, file, CLAIM_COLUMNS):
        claim = Claim(
            id=row.filled("id"),
            document=row.filled("document"),
            place=row.filled("place"),
            experiment=row.filled("experiment"),
            network=row.text("network"),
            system=row.text("system"),
            conditions=row.text("conditions"),
            quantity=row.text("quantity"),
            values=tuple(
                row.number("values", value) for value in row.text("values").split(";") if value
            ),
            unit=row.text("unit"),
            kind=row.one_of("kind", get_args(ClaimKind)),  # type: ignore[arg-type]
        )
        if not claim.id.startswith(f"{claim.document}-"):
            raise row.wrong("id", f"does not begin with its document, {claim.document}")
        if claim.id in found:
            raise row.wrong("id", "comes twice")
        found[claim.id] = claim
    return tuple(found.values())


class CsvRow:
    """One line of a file, and the complaints about it."""

    def __init__(self, file: str, line: int, fields: Mapping[str, str]) -> None:
        self.file, self.line, self.fields = file, line, fields

    def wrong(self, name: str, why: str) -> DataError:
        """The error for a field."""
        return DataError(
            f"{self.file}, line {self.line}, field {name}: {self.fields[name]!r} {why}."
        )

    def text(self, name: str) -> str:
        """A field without the spaces around it."""
        return self.fields[name].strip()

    def filled(self, name: str) -> str:
        """A field that must not be empty."""
        if not self.text(name):
            raise self.wrong(name, "must not be empty")
        return self.text(name)

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """A field that must be one of these."""
        if self.text(name) not in allowed:
            raise self.wrong(name, f"must be one of {', '.join(allowed)}")
        return self.text(name)

    def number(self, name: str, text: str) -> float:
        """A finite number; `name` is the field it is from."""
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(name, "is not a number") from None
        if not math.isfinite(value):
            raise self.wrong(name, "is not finite")
        return value

    def rates(self, name: str) -> Iterator[tuple[int, float]]:
        """(devices, rate) of each."""
        for part in self.filled(name).split():
            devices, equals, rate = part.partition("=")
            if not (equals and devices.isascii() and devices.isdigit() and int(devices) >= 1):
                raise self.wrong(name, "must be devices=rate, as in `1=362.4 8=2722`")
            yield int(devices), self.number(name, rate)

    def count(self, name: str, *, least: int) -> int | None:
        """A whole number, or None where the field is empty."""
        text = self.text(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise self.wrong(name, f"must be an integer of at least {least}")
        return int(text)


def csv_rows(text: str, file: str, columns: tuple[str, ...]) -> Iterator[CsvRow]:
    """The lines of a CSV text with exactly these columns; DataError for another."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if tuple(header) != columns:
            raise DataError(f"{file}, line 1: the columns must be {', '.join(columns)}.")
        for values in reader:
            if len(values) != len(columns):
                raise DataError(
                    f"{file}, line {reader.line_num}: {len(values)} fields where "
                    f"{len(columns)} are expected."
                )
            yield CsvRow(file, reader.line_num, dict(zip(columns, values, strict=True)))
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: {error}.") from None


def _carried(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()
