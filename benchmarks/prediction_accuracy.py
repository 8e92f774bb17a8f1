"""How near do forecasts come to published training rates on several devices?

Every forecast is calibrated with the published rate of one device of the same source, system,
network, framework, precision and minibatch, and held against that of several
(experiments/validation_rows.py). Six factors are fitted on every second system, in the order of
their names, to the rates of two to eight devices in one machine; errors are printed for that half
and for the other, by class of network, with a baseline beside them: a constant efficiency for each
number of devices, fitted on the same half. Rows that cannot be forecast are listed with the reason.
Last, forecasts without any calibration are held against the published one-device rates.

    python benchmarks/prediction_accuracy.py [--rows]

`--rows` prints every row with its error, the largest first. Some minutes on one core. Exit code 1
unless the model halves the baseline's mean error on the half it has not seen.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import hypot

from cubemesh.experiments.validation_rows import Row, forecasts, halves, published_alone, rows
from cubemesh.predict.calibration import Calibration, defaults
from cubemesh.predict.step import Point, slowest

GRID = {
    "overlap_slowdown": [i / 10 for i in range(11)],
    "copy_slowdown": [i / 10 for i in range(11)],
    "step_spread": [i / 400 for i in range(17)],
    "length_spread": [i / 10 for i in range(31)],
    "board_share": [i / 100 for i in range(9)],
}
"""Every part of a step is in proportion to one of these, so one forecast serves all values."""
PCIE_SHARES = (0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
"""These need a forecast each."""
UNIT = dict.fromkeys(GRID, 1.0) | {"step_spread": 0.01}
"""What the factors are while the parts are computed."""
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
    copies = row.exchange.startswith("parameter-server-") and row.one_machine
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


def fit(seen: Sequence[Row], by_share: dict[float, dict[Row, Point]]) -> tuple[float, Values]:
    """(share of PCIe, the other factors) of the least mean error, one after the other until none
    of them improves it."""

    def error(share: float, values: Values) -> float:
        found = by_share[share]
        return mean(abs(efficiency(row, found[row], values) / row.efficiency - 1) for row in seen)

    share, values = 1.0, {name: defaults()[name] for name in GRID}
    least = error(share, values)
    while True:
        before = least
        for tried in by_share:
            if error(tried, values) < least:
                share, least = tried, error(tried, values)
        for name, grid in GRID.items():
            for value in grid:
                if error(share, values | {name: value}) < least - 1e-12:
                    values = values | {name: value}
                    least = error(share, values)
        if before - least < 1e-9:
            return share, values


def summary(name: str, judged: Sequence[Row], of: Callable[[Row], float]) -> float:
    """Print the errors of a way to predict efficiency; their mean."""
    errors = sorted(abs(of(row) / row.efficiency - 1) for row in judged)
    ninth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    print(f"  {name:<52}{100 * mean(errors):6.2f} %{100 * ninth:8.2f} %{len(errors):6d}")
    return mean(errors)


def without_calibration() -> None:
    """Hold forecasts from datasheets alone against the published rates of one device."""
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
    known = with_values(defaults(), UNIT)
    by_share = {
        share: forecasts(found, with_values(known, {"pcie_share": share})) for share in PCIE_SHARES
    }
    share, values = fit(seen, by_share)
    chosen = ", ".join(f"{name} {value:g}" for name, value in values.items())
    print(f"Fitted: pcie_share {share}, {chosen}; all else is assumed.")
    by_count = defaultdict(list)
    for row in seen:
        by_count[row.devices].append(row.efficiency)
    constant = {count: mean(those) for count, those in by_count.items()}

    def baseline(row: Row) -> float:
        return constant[min(constant, key=lambda count: abs(count - row.devices))]

    def model(row: Row) -> float:
        return efficiency(row, by_share[share][row], values)

    print(f"  {'error of':<54}mean  90th percentile  rows")
    ratio = _judge(seen, unseen, model, baseline)
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
            f"{row.figure.batch_per_device or 'minibatch not stated'}, {row.exchange}"
        )


if __name__ == "__main__":
    sys.exit(main())
