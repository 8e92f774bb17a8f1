"""Forecasts of one device from its datasheet, compared with published steps of training.

Fits the factors of `forecast/attained.py` to all rows but those of one source, or one device,
judges the forecasts on these, and prints errors by source, architecture, precision and network;
then those corrected by one published step of another network on the same device. The baseline is
40 % of every peak and 70 % of every bandwidth. `--rows` prints every row, and for each fold which
rows its factors were fitted to. Exit code 1 where a mean error is above its goal.

    python benchmarks/one_device_accuracy.py [--rows]
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

import numpy as np

from cubemesh.forecast.attained import FITTED
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.launch_overhead import stall_s
from cubemesh.forecast.passes import DeviceSpeed, passes
from cubemesh.papers.validation.fitting import LeftOut
from cubemesh.papers.validation.one_device import (
    OneDeviceFit,
    OneDeviceForecast,
    OneDeviceRow,
    corrected,
    one_device_folds,
    one_device_judged,
    one_device_rows,
)
from cubemesh.papers.validation.rows import built, mean_and_ninth

DATASHEET_GOAL, CORRECTED_GOAL = 0.20, 0.08


def baseline(row: OneDeviceRow) -> float:
    """The error of constant shares of peak and bandwidth."""
    known, f = defaults(), row.figure
    peak, bandwidth = row.sheet.peak(row.precision), row.sheet.value("memory_bytes_per_s")
    assert f.canonical
    assert f.batch_per_device
    assert peak
    assert bandwidth
    at = DeviceSpeed(
        flops_per_s=peak.flops_per_s * known["attained_flops"],
        bytes_per_s=bandwidth * known["attained_bytes"],
        source="",
    )
    own = passes(built(f.canonical), f.batch_per_device, row.precision, at)
    return row.seconds / (own.step_s + stall_s(own, known["launch_layer_s"])) - 1


def line(what: str, errors: Sequence[float]) -> str:
    """Mean, median and 90th percentile of the errors' sizes, and the typical ratio."""
    mean, ninth = mean_and_ninth(errors)
    ratio = 1 + median(errors)
    middle = median(abs(e) for e in errors)
    return (
        f"{what:58} {100 * mean:6.1f} % {100 * middle:6.1f} % {100 * ninth:6.1f} % "
        f"{ratio:6.2f} {len(errors):5d}"
    )


def table(judged: Sequence[OneDeviceForecast], key: Callable[[OneDeviceRow], str]) -> None:
    """Errors by `key`."""
    groups = defaultdict(list)
    for one in judged:
        groups[key(one.row)].append(one.error)
    for name, errors in sorted(groups.items()):
        print(line(f"  {name}", errors))


def print_saw(saw: Mapping[str, Iterable[OneDeviceRow]]) -> None:
    """The rows that each factor was fitted to, by source and device."""
    for factor, rows in saw.items():
        places = Counter(f"{row.source}: {row.sheet.name}" for row in rows)
        print(f"    {factor}: {places.total()} rows")
        for place, count in sorted(places.items()):
            print(f"      {count:4d}  {place}")


def judge(left_out: LeftOut, each: bool) -> tuple[float, float]:
    """Print the errors; (mean error from datasheets alone, with the best other network)."""
    judged = one_device_judged(left_out)
    print(f"\nLeave-one-{'device' if left_out == 'machine' else left_out}-out")
    print(f"  {'error of the rate':56}     mean   median  90th p.  ratio  rows")
    print(line("constant shares", [baseline(one.row) for one in judged]))
    print(line("attained shares", [one.error for one in judged]))
    table(judged, lambda row: "images/s" if row.figure.unit == "images/s" else "ms of a step")
    table(judged, lambda row: row.source)
    table(judged, lambda row: f"{row.sheet.architecture}, {row.precision}")
    table(judged, lambda row: row.figure.canonical or "")
    found = corrected(judged)
    best = [one[0] for one in found]
    own = {id(one.row): one.error for one in judged}
    print(
        line("of these, rows with another network: datasheet alone", [own[id(b.row)] for b in best])
    )
    print(line("  corrected by any other network", [c.error for one in found for c in one]))
    print(line("  corrected by the most alike", [b.error for b in best]))
    for source in sorted({b.row.source for b in best}):
        print(line(f"    {source}", [b.error for b in best if b.row.source == source]))
    inside = [abs(np.log1p(b.error)) <= 1.645 * b.spread for b in best]
    print(f"  inside the stated nine-in-ten band: {fmean(inside):.0%}")
    logs = np.abs(np.log1p([one.error for one in judged]))
    print(f"  nine of ten forecasts are within a factor of {np.exp(np.quantile(logs, 0.9)):.2f}")
    for fold in one_device_folds(left_out) if each else ():
        print(f"  Without {fold.left_out}, each factor was fitted to:")
        print_saw(fold.saw)
    if each:
        for one in sorted(judged, key=lambda one: -abs(one.error)):
            f, row = one.row.figure, one.row
            print(
                f"  {100 * one.error:+7.1f} %  {row.sheet.name}, {f.framework}, {f.canonical}, "
                f"{row.precision}, {row.software.layout}, {f.batch_per_device}, {row.source}"
            )
    return fmean(abs(one.error) for one in judged), fmean(abs(b.error) for b in best)


def main() -> int:
    """Fit, judge and print."""
    each = "--rows" in sys.argv[1:]
    rows, left = one_device_rows()
    values = OneDeviceFit(rows).fit(np.ones(len(rows), dtype=bool))
    print(f"{len(rows)} steps of one GPU. Fitted to all of them:")
    for name, value in values.items():
        seen = sum(name in row.ideal.composition(values) for row in rows)
        print(f"  {name:26} {value:10.3g}  used: {FITTED[name][0]:<9.3g} {seen:4d} rows")
    print("Not forecast:")
    for reason, those in sorted(left.items()):
        print(f"  {len(those):4d}  {reason}")
    source, other = judge("source", each)
    judge("machine", each)
    print(f"\nDatasheet alone {source:.1%}, goal {DATASHEET_GOAL:.0%}; ", end="")
    print(f"with another network {other:.1%}, goal {CORRECTED_GOAL:.0%}.")
    return int(source > DATASHEET_GOAL or other > CORRECTED_GOAL)


if __name__ == "__main__":
    sys.exit(main())
