"""Error of forecasts relative to published training rates on several devices.

Every forecast is calibrated with the published rate of one device of the same source, system,
network, framework, precision and batch size, has the gradient style of its framework and year, and
peer access where its source gives it, and is compared with the rate of several devices
(papers/validation/rows.py). Each source, then each machine, is left out in turn: nine factors and
the band are fitted to the rates of two to eight devices of the others, and judged on it
(papers/validation/fitting.py), with a baseline: a constant efficiency for each number of devices,
of the same other rows. The same factors forecast every row with nothing given, those of unknown
style or input too. For each factor the rows that it was fitted to are printed. Rows that cannot be
forecast are listed with the reason. Last, forecasts without any calibration are compared with the
published one-device rates.

    python benchmarks/prediction_accuracy.py [--rows]

`--rows` prints every row with its error, the largest first, and every row that a factor has seen.
Half a minute on one core. Exit code 1 unless the model with the source left out halves the
baseline's mean error.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from cubemesh.papers.validation.fitting import (
    Fold,
    fit_data,
    local,
    published_left_out,
    source,
)
from cubemesh.papers.validation.rows import (
    Row,
    RowForecast,
    mean_and_ninth,
    rows,
)


def mean(values: Iterable[float]) -> float:
    """Of one value at least."""
    listed = list(values)
    return sum(listed) / len(listed)


def constant(seen: Sequence[Row]) -> Callable[[Row], float]:
    """The baseline: the mean efficiency of `seen` rows at each number of devices, or at the nearest
    number in `seen`."""
    by_count = defaultdict(list)
    for row in seen:
        by_count[row.devices].append(row.efficiency)

    def of(row: Row) -> float:
        return mean(by_count[min(by_count, key=lambda count: abs(count - row.devices))])

    return of


def summary(name: str, errors: Sequence[float], within: float | None = None) -> float:
    """Print the errors of a way to predict efficiency; their mean."""
    mean_error, ninth = mean_and_ninth(errors)
    share = "" if within is None else f"{100 * within:8.0f} %"
    print(f"  {name:<66}{100 * mean_error:6.2f} %{100 * ninth:8.2f} %{len(errors):6d}{share}")
    return mean_error


def print_fold(fold: Fold) -> list[float]:
    """Print errors of the model and the baseline on what is left out; errors of the baseline."""
    aside = {one.row for one in fold.judged}
    local_rows = [row for row in fit_data().rows if row.one_machine and row.devices <= 8]
    seen = [row for row in local_rows if row not in aside]
    of = constant(seen)
    errors = [of(one.row) / one.row.efficiency - 1 for one in fold.judged]
    if fold.judged:
        summary(f"model without {fold.left_out}", *_errors(fold.judged))
        summary("  constant efficiency", errors)
    summary(f"  nothing given, without {fold.left_out}", *_errors(fold.unknown))
    chosen = ", ".join(f"{name} {value:g}" for name, value in fold.values.items())
    print(f"    {chosen}")
    return errors


def _errors(judged: Sequence[RowForecast]) -> tuple[list[float], float]:
    return [one.error for one in judged], mean(one.within for one in judged)


def print_seen(saw: Mapping[str, Sequence[Row]], each: bool) -> None:
    """Print the rows that each factor was fitted to, by source and machine or one by one."""
    for name, seen in saw.items():
        print(f"  {name}: {len(seen)} rows")
        if each:
            lines = [_line(row) for row in seen]
        else:
            counts = Counter(f"{source(row)}: {row.family}" for row in seen)
            lines = [f"{count:4d}  {where}" for where, count in sorted(counts.items())]
        for line in lines:
            print(f"    {line}")


def _line(row: Row) -> str:
    batch = row.figure.batch_per_device or "batch size not stated"
    return (
        f"{row.devices:3d} × {row.family}, {row.network}, {row.figure.precision}, {batch}, "
        f"{row.way}, {source(row)}"
    )


def main() -> int:
    """Fit, judge and print; 1 where the model does not halve the baseline."""
    each = "--rows" in sys.argv[1:]
    data = fit_data()
    seen = local(data.rows)
    values = data.fit(seen)
    print("Fitted to all machines:", ", ".join(f"{name} {v:g}" for name, v in values.items()))
    print_seen(data.saw(seen), each)
    inside = np.abs(data.errors(values))[seen]
    summary("model on the rows that it was fitted to", inside.tolist())
    ratios = {}
    for left_out in ("source", "machine"):
        print(f"Leave-one-{left_out}-out")
        print(f"  {'error of':<68}mean  90th percentile  rows  in band")
        folds = published_left_out(left_out)
        base = [error for fold in folds for error in print_fold(fold)]
        judged = [one for fold in folds for one in fold.judged]
        error = summary("model, all", *_errors(judged))
        ratios[left_out] = error / summary("constant efficiency, all", base)
        for kind in sorted({one.row.kind for one in judged}):
            alike = [one for one in judged if one.row.kind == kind]
            summary(f"model, {kind} networks", *_errors(alike))
        beyond = [one for one in judged if not one.row.one_machine]
        summary("model, beyond one machine", *_errors(beyond))
        for style in sorted({one.row.style for one in judged}):
            summary(f"model, {style}", *_errors([o for o in judged if o.row.style == style]))
        unknown = [one for fold in folds for one in fold.unknown]
        summary("nothing given, all", *_errors(unknown))
        for fold in folds if each else ():
            print(f"Without {fold.left_out}, each factor was fitted to:")
            print_seen(fold.saw, each=False)
    print("Not forecast:")
    for reason, figures_left in sorted(rows()[1].items()):
        where = Counter(f.source for f in figures_left)
        print(f"  {len(figures_left):4d}  {reason} ({', '.join(sorted(where))})")
    if each:
        _print_rows([one for fold in published_left_out("source") for one in fold.judged])
    for left_out, ratio in ratios.items():
        print(f"With the {left_out} left out the error is {ratio:.2f} of the baseline's; goal 0.5.")
    return int(ratios["source"] > 0.5)


def _print_rows(judged: Sequence[RowForecast]) -> None:
    print("Every row with its source left out: published and forecast efficiency, error")
    for one in sorted(judged, key=lambda one: -abs(one.error)):
        print(
            f"  {one.row.efficiency:.3f} {one.forecast:.3f} {100 * one.error:+6.1f} % "
            f"{_line(one.row)}"
        )


if __name__ == "__main__":
    sys.exit(main())
