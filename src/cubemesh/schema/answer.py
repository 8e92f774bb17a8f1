"""Answer of an experiment, computed from records alone: findings, tables and charts as data.

It holds no colours or file formats; every view renders the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cubemesh.schema.comparison import Ratio
from cubemesh.schema.record import Figure
from cubemesh.schema.warning import SIMULATED, Warning

INTERVAL_MEANING = "± is the longer side of the 95 % confidence interval."
"""Begins the note of an answer that says what its intervals cover; a page has it once, below the
headline."""


def is_interval_note(note: str) -> bool:
    """Whether a note of an answer says what ± means."""
    return note.startswith(INTERVAL_MEANING)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A result as a sentence with figures.

    With a `question` it can also be shown as a card: the question, `value` with unit and interval
    in large type, and the sentence.
    """

    code: str
    """What kind of finding it is, such as `throughput-knee`: for programs and tests."""
    text: str
    question: str | None = None
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    remedy: str = ""
    """What to do about it; empty for nothing."""
    caveats: tuple[str, ...] = ()
    """Codes of the warnings that the runs behind it carry."""
    sides: tuple[str, str] | None = None
    """Where the value is a ratio: a run of its numerator and one of its denominator."""
    run_id: str = ""
    """The run whose step it is about; empty for none, and for several."""
    verdict: str = ""
    """Of a ratio that is judged with others: `faster`, `slower` or `no significant difference`,
    which names the smallest difference that would be significant; empty for any other finding."""

    @classmethod
    def of(
        cls,
        *,
        code: str,
        text: str,
        figure: Figure | Ratio,
        unit: str,
        question: str | None = None,
        remedy: str = "",
        caveats: tuple[str, ...] = (),
        sides: tuple[str, str] | None = None,
        verdict: str = "",
    ) -> Finding:
        """A finding with the value and interval of `figure`."""
        return cls(
            code=code,
            text=text,
            question=question,
            value=figure.value,
            unit=unit,
            low=figure.low,
            high=figure.high,
            remedy=remedy,
            caveats=caveats,
            sides=sides,
            verdict=verdict,
        )


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
    """Source run of the figure."""

    @classmethod
    def of(cls, figure: Figure | Ratio, run_id: str = "") -> Cell:
        """A number with its interval."""
        return cls(value=figure.value, low=figure.low, high=figure.high, run_id=run_id)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; every row has a cell for each column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a chart."""

    name: str
    unit: str = ""
    scale: Literal["linear", "log2", "log10", "category"] = "linear"
    from_zero: bool = False
    """Whether the axis must start at zero, because its values are compared by ratio."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a chart; without `y` it is missing, with its `reason`."""

    x: float | str
    y: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    run_id: str = ""
    label: str = ""
    """Text next to the point of a scatter chart."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points that belong together: a line, a group of bars, a row of a heat map."""

    name: str
    points: tuple[Point, ...]
    role: Literal["measured", "published", "forecast", "reference"] = "measured"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart as data."""

    name: str
    """File name: letters, digits and dashes."""
    title: str
    kind: Literal["line", "bar", "heat", "scatter"]
    """In a scatter chart the points of a measured line are not joined, those of a reference are."""
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    rows: str = ""
    """Name of the rows of a heat map (its lines, lowest first); `y` is the value of the cells."""
    stacked: bool = False
    """Whether bars of a category are stacked, as parts of a whole."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of an experiment."""

    experiment: str
    question: str
    title: str
    """Heading of its section: what was compared."""
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    warnings: tuple[Warning, ...] = ()
    """Warnings of the records and of the answer itself."""
    run_ids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Definitions, sources and reductions needed to interpret the figures."""

    @property
    def simulated(self) -> bool:
        """Whether any of its runs was simulated (null framework)."""
        return any(warning.code == SIMULATED for warning in self.warnings)
