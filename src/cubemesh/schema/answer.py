"""The answer to a question, computed from records alone: findings, tables, charts as data.

An answer knows nothing of colours or file formats; every view draws the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cubemesh.schema.warning import SCRIPTED, Warning


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found out, as a sentence with figures.

    With a `question` it can also stand alone as a card: the question, `value` with its unit and
    interval in large, the sentence below.
    """

    text: str
    code: str = ""
    """What kind of finding it is, such as `throughput-knee`: for programs and tests."""
    question: str | None = None
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    remedy: str = ""
    """What to do about it, if anything."""
    caveats: tuple[str, ...] = ()
    """Codes of the warnings that the runs behind it carry."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    unit: str = ""
    digits: int = 3
    """Significant digits to show."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number with its interval, or text; a cell with neither is a gap with its `reason`."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    reason: str = ""
    run_id: str = ""
    """The run the figure comes from."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; every row has a cell for each column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What a chart counts along one side."""

    name: str
    unit: str = ""
    scale: Literal["linear", "log2", "log10", "category"] = "linear"
    from_zero: bool = False
    """Whether the axis must begin at zero, because what it shows is compared by ratio."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a chart; without `y` it is missing, for the `reason` given."""

    x: float | str
    y: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    run_id: str = ""
    label: str = ""
    """What stands beside the point of a scatter chart."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points that belong together: a line, a group of bars, a row of a heat map."""

    name: str
    points: tuple[Point, ...]
    role: Literal["measured", "published", "forecast", "reference"] = "measured"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture as data."""

    name: str
    """Letters, digits and dashes: the name of its file."""
    title: str
    kind: Literal["line", "bar", "heat", "scatter"]
    """In a scatter chart the points of a measured line are not joined, those of a reference are."""
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    rows: str = ""
    """What the lines of a heat map go through, the lowest row first; `y` is what cells say."""
    stacked: bool = False
    """Of bars: whether the lines of a category stand on one another, being parts of a whole."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an experiment says about its question."""

    experiment: str
    question: str
    title: str
    """What was compared, in a few words: the heading of its section."""
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    warnings: tuple[Warning, ...] = ()
    """Those of the records, and of the answer itself."""
    run_ids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader must know to read the figures right: reductions, sources, definitions."""

    @property
    def scripted(self) -> bool:
        """Whether a script played any of the runs behind it."""
        return any(warning.code == SCRIPTED for warning in self.warnings)
