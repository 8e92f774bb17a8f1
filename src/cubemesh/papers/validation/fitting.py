"""Factors fitted to published rates, and forecasts judged on rows that no parameter has seen.

Leave-one-source-out: all rows of one source are kept aside, every factor and every band is fitted
on the rows of the other sources, and the forecasts are judged on those kept aside;
leave-one-machine-out likewise. (S. Geisser, The predictive sample reuse method, 1975.) Factors are
fitted to the rates of two to eight devices in one machine, by the least mean absolute error, one
factor after the other until no change improves it. Every part of a step is in proportion to a
factor of `GRID`, so that one forecast serves all its values.

A band contains nine of ten errors that the seen rows have when they are kept aside themselves,
source by source. A second band is of forecasts with nothing given: every row, also those of unknown
style and of images that the host decodes, as the default all-reduce, with the same factors.
Launches take no time here, because their factors were read from a single source.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cubemesh.forecast.calibration import Calibration, defaults
from cubemesh.forecast.communication import host_factor
from cubemesh.forecast.fabric import fabric
from cubemesh.forecast.request import Point
from cubemesh.forecast.step import slowest
from cubemesh.forecast.styles import STYLES
from cubemesh.papers.validation.rows import Row, RowForecast, forecasts, rows

LeftOut = Literal["source", "machine"]
Values = dict[str, float]
Array = NDArray[np.float64]

GRID: dict[str, list[float]] = {
    "overlap_slowdown": [i / 10 for i in range(11)],
    "copy_slowdown": [i / 10 for i in range(11)],
    "step_spread": [i / 400 for i in range(17)],
    "length_spread": [float(i) for i in range(31)],
    "board_share": [i / 100 for i in range(9)],
}
_HOST_RATES = [1e9, 2e9, 3e9, 4e9, 5e9, 6e9, 7e9, 8e9]
RATES: dict[str, list[float]] = {
    "one_ring_bytes_per_s": [5e9, 10e9, 15e9, 20e9],
    "pcie_share": [0.2, 0.3, 0.5, 0.75, 1.0],
    "host_exchange_bytes_per_s": _HOST_RATES,
    "host_exchange_zen2_bytes_per_s": _HOST_RATES,
}
"""One forecast for each, of the rows whose gradients go that way; the others go over NVLink or by
copies, which these do not change."""
_NONE: Mapping[str, Array] = {}
UNIT = dict.fromkeys(GRID, 1.0) | {"step_spread": 0.01}
"""Values of the factors while the parts are computed."""
BAND_SHARE = 0.9
"""Share of the rates that a band contains."""


@dataclass(frozen=True, kw_only=True)
class Fold:
    """The rows of one source or machine, judged by a model that has seen none of them."""

    left_out: str
    values: Mapping[str, float]
    saw: Mapping[str, tuple[Row, ...]]
    """Fitted factor → the rows that it was fitted to."""
    judged: tuple[RowForecast, ...]
    """Those whose style and input are given."""
    unknown: tuple[RowForecast, ...]
    """All, forecast with nothing given."""


class FitData:
    """The parts of every row's step for every value of `RATES`; with the rows' styles, or as where
    nothing is `given`."""

    def __init__(self, found: Sequence[Row], given: bool = True) -> None:
        self.rows = tuple(found)
        known = _with_values(defaults(), UNIT).launched_at_once()
        self.ways = [_way(row, given) for row in self.rows]
        self._parts: dict[tuple[str, float], dict[Row, Point]] = {}
        for name, values in ({"": [0.0]} | RATES).items():
            those = [r for r, w in zip(self.rows, self.ways, strict=True) if w == name]
            changed = [_with_values(known, {name: v}) if name else known for v in values]
            for value, points in zip(values, forecasts(those, changed, given), strict=True):
                self._parts[name, value] = points
        self.copies = np.array([_by_copies(row, given) for row in self.rows])
        self.alone_s = np.array([p.batch_per_device / r.alone for r, p in self._points({}).items()])
        self.count = np.array([slowest(row.devices) for row in self.rows])
        self.published = np.array([row.efficiency for row in self.rows])
        recurrent = np.array([row.kind == "recurrent" for row in self.rows])
        batches = np.array([p.batch_per_device for p in self._points({}).values()])
        self.lengths = recurrent / batches
        self._arrays: dict[tuple[float, ...], dict[str, Array]] = {}
        self._fitted: dict[tuple[bytes, bytes], Values] = {}

    def _points(self, values: Values) -> dict[Row, Point]:
        found = {}
        for row, way in zip(self.rows, self.ways, strict=True):
            value = values.get(way, defaults()[way]) if way else 0.0
            found[row] = self._parts[way, value][row]
        return found

    def _steps(self, values: Values) -> dict[str, Array]:
        key = tuple(values.get(name, defaults()[name]) for name in RATES)
        if key not in self._arrays:
            points = self._points(values).values()
            names = next(iter(points)).parts_s
            self._arrays[key] = {n: np.array([p.parts_s[n] for p in points]) for n in names}
        return self._arrays[key]

    def efficiency(self, values: Values, columns: Mapping[str, Array] = _NONE) -> Array:
        """One device's step over that of several, of every row, with these values. `columns` has
        values of a factor of `GRID`, of shape (n, 1): the efficiencies are (n, rows)."""
        parts: dict[str, Array] = self._steps(values)
        at: dict[str, Any] = {**values, **columns}
        own = parts["forward"] + parts["backward"] + parts["update"]
        slow = np.where(self.copies, at["copy_slowdown"], at["overlap_slowdown"])
        spread = np.hypot(at["step_spread"], at["length_spread"] * self.lengths)
        step = own + parts["exposed"] + slow * parts["slowdown"]
        step = step + (at["board_share"] * parts["sharing"] + spread * self.count * own)
        found: Array = self.alone_s / step
        return found

    def errors(self, values: Values, columns: Mapping[str, Array] = _NONE) -> Array:
        """Forecast over published, minus 1, of every row."""
        found: Array = self.efficiency(values, columns) / self.published - 1
        return found

    def fit(self, seen: NDArray[np.bool_]) -> Values:
        """The factors of the least mean absolute error on the rows that are `seen`."""
        key = seen.tobytes(), self.published.tobytes()
        if key not in self._fitted:
            self._fitted[key] = self._fit(seen)
        return dict(self._fitted[key])

    def _fit(self, seen: NDArray[np.bool_]) -> Values:
        def tried(values: Values, name: str, grid: list[float]) -> Array:
            """The mean absolute error with each value of a factor."""
            if name in GRID:
                errors = self.errors(values, {name: np.array(grid)[:, np.newaxis]})
            else:
                errors = np.array([self.errors(values | {name: value}) for value in grid])
            means: Array = np.abs(errors[:, seen]).mean(axis=1)
            return means

        values = {name: grid[len(grid) // 2] for name, grid in (RATES | GRID).items()}
        least = float(np.abs(self.errors(values)[seen]).mean())
        while True:
            before = least
            for name, grid in (RATES | GRID).items():
                for value, error in zip(grid, tried(values, name, grid), strict=True):
                    if error < least - 1e-12:
                        values, least = values | {name: value}, float(error)
            if before - least < 1e-9:
                return values

    def saw(self, seen: NDArray[np.bool_]) -> dict[str, tuple[Row, ...]]:
        """Factor → the seen rows on whose forecasts it has an effect."""
        parts = self._steps({})
        slowed = parts["slowdown"] > 0
        affected = {
            "overlap_slowdown": slowed & ~self.copies,
            "copy_slowdown": slowed & self.copies,
            "step_spread": np.ones(len(self.rows), dtype=bool),
            "length_spread": self.lengths > 0,
            "board_share": parts["sharing"] > 0,
            **{name: np.array([way == name for way in self.ways]) for name in RATES},
        }
        return {
            name: tuple(r for r, yes in zip(self.rows, mask & seen, strict=True) if yes)
            for name, mask in affected.items()
        }


@cache
def published_left_out(left_out: LeftOut) -> tuple[Fold, ...]:
    """Every row with its forecast by a model that has not seen its source, or its machine."""
    of = _GROUPS[left_out]
    return tuple(_fold(name, of) for name in sorted({of(row) for row in rows()[0]}))


@cache
def fit_data(given: bool = True) -> FitData:
    """Of the rows whose style and input are given, or of all with nothing given."""
    return FitData([row for row in rows()[0] if row.given or not given], given)


def local(found: Sequence[Row]) -> NDArray[np.bool_]:
    """Which rows are of two to eight devices in one machine: those that factors are fitted to."""
    return np.array([row.one_machine and row.devices <= 8 for row in found])


def source(row: Row) -> str:
    """Its source; two figures of one document are one."""
    if row.figure.source.startswith("Lambda"):
        return "Lambda deeplearning-benchmark"
    return row.figure.source.partition(" Fig ")[0]


_GROUPS: dict[LeftOut, Callable[[Row], str]] = {
    "source": source,
    "machine": lambda row: row.family,
}


def _fold(name: str, of: Callable[[Row], str]) -> Fold:
    """Fit on all other rows and judge on these."""
    data, nothing = fit_data(), fit_data(given=False)
    seen = np.array([of(row) != name for row in data.rows])
    values = data.fit(local(data.rows) & seen)
    left = {row for row in rows()[0] if of(row) != name}
    return Fold(
        left_out=name,
        values=values,
        saw=data.saw(local(data.rows) & seen),
        judged=_judged(data, values, _bands(data, data, left), of, name),
        unknown=_judged(nothing, values, _bands(data, nothing, left), of, name),
    )


def _judged(
    data: FitData, values: Values, bands: Mapping[bool, float], of: Callable[[Row], str], name: str
) -> tuple[RowForecast, ...]:
    """The forecasts of the rows of `name`."""
    efficiencies = data.efficiency(values)
    return tuple(
        RowForecast(row=row, forecast=float(efficiencies[i]), band=bands[row.one_machine])
        for i, row in enumerate(data.rows)
        if of(row) == name
    )


def _bands(data: FitData, forecast: FitData, left: set[Row]) -> dict[bool, float]:
    """Whether in one machine → the factor within which nine of ten forecasts of the rows that are
    `left` are, each with values fitted to `data` without its source."""
    seen = np.array([row in left for row in data.rows])
    sources = np.array([source(row) for row in data.rows])
    inside = local(data.rows)
    of_source: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(forecast.rows):
        if row in left:
            of_source[source(row)].append(place)
    distances: dict[Row, float] = {}
    for name, places in sorted(of_source.items()):
        rest = inside & seen & (sources != name)
        errors = forecast.errors(data.fit(rest if rest.any() else inside & seen))
        for place in places:
            distances[forecast.rows[place]] = abs(math.log1p(errors[place]))
    found = {}
    for one in (True, False):
        those = [row for row in distances if row.one_machine == one] or [*distances]
        sizes = np.array([distances[row] for row in those])
        order = np.argsort(sizes)
        share = np.cumsum(_weights(those)[order])
        found[one] = math.exp(sizes[order][np.searchsorted(share, BAND_SHARE * share[-1])])
    return found


def _weights(found: Sequence[Row]) -> Array:
    """Of a row: a source counts in proportion to the root of its rows."""
    rows_of = Counter(source(row) for row in found)
    return np.array([rows_of[source(row)] ** -0.5 for row in found])


def _with_values(known: Calibration, values: Mapping[str, float]) -> Calibration:
    for name, value in values.items():
        known = known.with_factor(name, value, "fitted", "published rates")
    return known


def _way(row: Row, given: bool) -> str:
    """Which of RATES decides how fast the row's devices communicate; empty where another link
    does."""
    if given and row.style and STYLES[row.style].one_ring:
        return "one_ring_bytes_per_s"
    if _by_copies(row, given):
        return ""
    where = fabric(row.system, row.devices, row.peer_access)
    if where.through_host:
        return host_factor(where)
    return "pcie_share" if where.pcie_bytes_per_s else ""


def _by_copies(row: Row, given: bool) -> bool:
    return given and bool(row.style and STYLES[row.style].sync) and row.one_machine
