"""Error of forecasts relative to published training rates on several devices.

Every forecast is calibrated with the published rate of one device of the same source, system,
network, framework, precision and batch size, and peer access where its source gives it, and
compared with the rate of several devices (papers/validation/rows.py). Eight factors are fitted on
every second machine, in the order of their names, to the rates of two to eight devices in it; the
time of a launch comes from one row of the same half. Errors are printed for that half and for the
other, by class of network and by peer access, with those of a baseline: a constant efficiency for
each number of devices, fitted on the same half. Rows that cannot be forecast are listed with the
reason. Last, forecasts without any calibration are compared with the published one-device rates.

    python benchmarks/prediction_accuracy.py [--rows]

`--rows` prints every row with its error, the largest first. Half a minute on one core. Exit code 1
unless the model halves the baseline's mean error on the half it has not seen.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import hypot

from cubemesh.forecast.calibration import Calibration, defaults
from cubemesh.forecast.communication import host_factor
from cubemesh.forecast.fabric import fabric
from cubemesh.forecast.request import Point
from cubemesh.forecast.step import slowest
from cubemesh.papers.validation.rows import (
    Row,
    forecasts,
    halves,
    mean_and_ninth,
    published_alone,
    rows,
)

GRID = {
    "overlap_slowdown": [i / 10 for i in range(11)],
    "copy_slowdown": [i / 10 for i in range(11)],
    "step_spread": [i / 400 for i in range(17)],
    "length_spread": [i / 10 for i in range(31)],
    "board_share": [i / 100 for i in range(9)],
}
"""Every part of a step is in proportion to one of these, so one forecast serves all values."""
HOST_RATES = (1e9, 1.5e9, 2e9, 2.5e9, 3e9, 3.5e9, 4e9, 4.5e9, 5e9, 6e9, 8e9)
RATES = {
    "pcie_share": (0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0),
    "host_exchange_bytes_per_s": HOST_RATES,
    "host_exchange_zen2_bytes_per_s": HOST_RATES,
}
"""One forecast for each, of the rows whose gradients go that way; the others go over NVLink or by
copies, which these do not change."""
UNIT = dict.fromkeys(GRID, 1.0) | {"step_spread": 0.01}
"""Values of the factors while the parts are computed."""
Values = dict[str, float]


def with_values(known: Calibration, values: Values) -> Calibration:
    """The calibration with other values of factors."""
    for name, value in values.items():
        known = known.with_factor(name, value, "fitted", "tried here")
    return known


def efficiency(row: Row, point: Point, values: Values) -> float:
    """One device's step over that of several, with these values; `point` was forecast with UNIT."""
    parts = point.parts_s
    own = parts["forward"] + parts["backward"] + parts["update"]
    copies = row.sync.startswith("parameter-server-") and row.one_machine
    slow = values["copy_slowdown" if copies else "overlap_slowdown"]
    lengths = values["length_spread"] / point.batch_per_device**0.5
    spread = hypot(values["step_spread"], lengths if row.kind == "recurrent" else 0.0)
    step = own + parts["launch"] + parts["exposed"] + slow * parts["slowdown"]
    step += values["board_share"] * parts["sharing"] + spread * slowest(row.devices) * own
    return point.batch_per_device / row.alone / step


def mean(values: Iterable[float]) -> float:
    """Of one value at least."""
    listed = list(values)
    return sum(listed) / len(listed)


def way(row: Row) -> str:
    """Which of RATES decides how fast the row's devices exchange; empty where another link does."""
    where = fabric(row.system, row.devices, row.peer_access)
    if where.through_host:
        return host_factor(where)
    return "pcie_share" if where.pcie_bytes_per_s else ""


class Forecasts:
    """Every row's forecast with every value of the factor that its way depends on."""

    def __init__(self, found: Sequence[Row]) -> None:
        known = with_values(defaults(), UNIT)
        self.ways = {row: way(row) for row in found}
        self.points: dict[str, dict[float, dict[Row, Point]]] = {
            "": {0.0: forecasts([row for row in found if not self.ways[row]], known)}
        }
        for name, values in RATES.items():
            those = [row for row in found if self.ways[row] == name]
            self.points[name] = {
                value: forecasts(those, with_values(known, {name: value})) for value in values
            }

    def efficiency(self, row: Row, values: Values) -> float:
        """One device's step over that of several, with these values."""
        name = self.ways[row]
        return efficiency(row, self.points[name][values.get(name, 0.0)][row], values)


def fit(seen: Sequence[Row], found: Forecasts) -> Values:
    """The factors of the least mean error, one after the other until no change improves it."""

    def error(values: Values) -> float:
        return mean(abs(found.efficiency(row, values) / row.efficiency - 1) for row in seen)

    values = {name: defaults()[name] for name in (*GRID, *RATES)}
    least = error(values)
    while True:
        before = least
        for name, grid in (RATES | GRID).items():
            for value in grid:
                tried = error(values | {name: value})
                if tried < least - 1e-12:
                    values, least = values | {name: value}, tried
        if before - least < 1e-9:
            return values


def constant(
    seen: Sequence[Row], sort: Callable[[Row], object] = lambda row: ""
) -> Callable[[Row], float]:
    """The baseline: the mean efficiency of `seen` rows of a sort at each number of devices, or at
    the nearest number in `seen`."""
    by_count = defaultdict(list)
    for row in seen:
        by_count[sort(row), row.devices].append(row.efficiency)

    def of(row: Row) -> float:
        counts = [count for kind, count in by_count if kind == sort(row)]
        nearest = min(counts, key=lambda count: abs(count - row.devices))
        return mean(by_count[sort(row), nearest])

    return of


def summary(name: str, judged: Sequence[Row], of: Callable[[Row], float]) -> float:
    """Print the errors of a way to predict efficiency; their mean."""
    mean_error, ninth = mean_and_ninth(of(row) / row.efficiency - 1 for row in judged)
    print(f"  {name:<58}{100 * mean_error:6.2f} %{100 * ninth:8.2f} %{len(judged):6d}")
    return mean_error


def without_calibration() -> None:
    """Compare forecasts from datasheets alone with the published rates of one device."""
    band, found = defaults()["band_uncalibrated"], published_alone()
    within = sum(1 / band <= one.forecast / one.figure.value <= band for one in found)
    total = len(found)
    share = within / total
    print(
        f"Without calibration: {within} of {total} one-device rates ({share:.0%}) are within a "
        f"factor of {band}; goal: nine in ten."
    )


def main() -> int:
    """Fit, judge and print; 1 where the model does not halve the baseline."""
    found, left = rows()
    fitted_on, judged_on = halves(found)
    print("Fitted on:", "; ".join(fitted_on))
    print("Judged on:", "; ".join(judged_on))
    local = [row for row in found if row.one_machine and row.devices <= 8]
    seen = [row for row in local if row.family in fitted_on]
    unseen = [row for row in local if row.family not in fitted_on]
    forecast = Forecasts(found)
    values = fit(seen, forecast)
    chosen = ", ".join(f"{name} {value:g}" for name, value in values.items())
    print(f"Fitted: {chosen}; launch_layer_s and launch_several to one row; all else is assumed.")
    baseline = constant(seen)

    def model(row: Row) -> float:
        return forecast.efficiency(row, values)

    print(f"  {'error of':<60}mean  90th percentile  rows")
    ratio = _judge(seen, unseen, model, baseline)
    by_access = constant(seen, lambda row: row.peer_access)
    for name, judged in (("fitted half", seen), ("other half", unseen)):
        summary(f"constant by peer access, {name}", judged, by_access)
        for reached in (True, False):
            those = [row for row in judged if row.peer_access == reached]
            which = f"{name}, {'with' if reached else 'without'} peer access"
            summary(f"model, {which}", those, model)
            summary(f"constant by peer access, {which}", those, by_access)
    beyond = [row for row in found if not row.one_machine]
    summary("model, beyond one machine", beyond, model)
    summary("constant efficiency, beyond one machine", beyond, baseline)
    many = [row for row in found if row.one_machine and row.devices > 8]
    summary("model, 16 devices in one machine", many, model)
    print("Not forecast:")
    for reason, figures_left in sorted(left.items()):
        where = Counter(f.source for f in figures_left)
        print(f"  {len(figures_left):4d}  {reason} ({', '.join(sorted(where))})")
    if "--rows" in sys.argv[1:]:
        _print_rows(found, fitted_on, model)
    without_calibration()
    print(f"The model's error is {ratio:.2f} of the baseline's; goal: 0.5.")
    return int(ratio > 0.5)


def _judge(
    seen: Sequence[Row],
    unseen: Sequence[Row],
    model: Callable[[Row], float],
    baseline: Callable[[Row], float],
) -> float:
    """The errors of both halves, whole and by class; the ratio to the baseline on the other."""
    ratio = 0.0
    for name, judged in (("fitted half", seen), ("other half", unseen)):
        error = summary(f"model, {name}", judged, model)
        ratio = error / summary(f"constant efficiency, {name}", judged, baseline)
    kinds = sorted({row.kind for row in seen})
    for (name, judged), kind in product((("fitted half", seen), ("other half", unseen)), kinds):
        alike = [row for row in judged if row.kind == kind]
        error = summary(f"model, {name}, {kind} networks", alike, model)
        base = summary(f"constant, {name}, {kind} networks", alike, baseline)
        print(f"    ratio {error / base:.2f}")
    return ratio


def _print_rows(
    found: Sequence[Row], fitted_on: Sequence[str], model: Callable[[Row], float]
) -> None:
    print("Every row: published and forecast efficiency, error, half")
    for row in sorted(found, key=lambda row: -abs(model(row) / row.efficiency - 1)):
        half = "fitted" if row.family in fitted_on else "other"
        print(
            f"  {row.efficiency:.3f} {model(row):.3f} "
            f"{100 * (model(row) / row.efficiency - 1):+6.1f} % {half:<6} "
            f"{row.devices:3d} × {row.family}, {row.network}, {row.figure.precision}, "
            f"{row.figure.batch_per_device or 'batch size not stated'}, {row.sync}"
        )


if __name__ == "__main__":
    sys.exit(main())
