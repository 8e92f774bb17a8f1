"""Error of transformers' forecasts relative to published training rates on many devices.

The layout, micro-batch, precision and style of each published row are given; nothing of the row is
measured. Each source, then each style of program, is left out in turn: all factors are fitted to
the other rows and judged on it (papers/validation/transformers.py). Prints the factors fitted to
all rows, the errors, and the memory forecasts where a source states the peak.

    python benchmarks/transformer_accuracy.py [--rows]

`--rows` prints every row with its error, the largest first. Half a minute on one core. Exit code 1
where the factors in forecast/transformers/factors.py are not those of the fit, or the mean error on
at most 512 devices with the source left out exceeds 8 %.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np

from cubemesh.forecast.transformers.factors import FITTED, fitted_values
from cubemesh.papers.validation.transformers import (
    LeftOut,
    TransformerRow,
    calibrated,
    errors,
    fit,
    left_out,
    transformer_rows,
)

GOAL = 0.08
MOST_DEVICES = 512
Judged = Sequence[tuple[TransformerRow, float]]


def summary(name: str, judged: Judged) -> float:
    """Print bias, mean and 90th percentile of errors; the mean."""
    found = np.array([error for _, error in judged])
    size = np.abs(found)
    line = f"{100 * found.mean():+8.1f}{100 * size.mean():8.1f}{100 * np.quantile(size, 0.9):8.1f}"
    print(f"  {name:<58}{len(found):5d}{line}")
    return float(size.mean())


def by_source(judged: Judged) -> None:
    """Print a line for each table of a source, and one for all."""
    for source in dict.fromkeys(row.figure.source for row, _ in judged):
        summary(source, [one for one in judged if one[0].figure.source == source])
    summary("all", judged)


def small(row: TransformerRow) -> bool:
    """Whether it is of the number of devices that the goal is for."""
    return row.figure.devices <= MOST_DEVICES


def judged_without(by: LeftOut, heading: str) -> Judged:
    """Print errors with each source or style left out, and what its factors were fitted to."""
    print(f"Each {by} judged by factors fitted to the others\n{heading}")
    folds = left_out(by)
    judged = [one for fold in folds for one in fold.judged]
    for fold in folds:
        summary(fold.left_out, fold.judged)
        counts = Counter(row.figure.source for row in fold.saw)
        print("    fitted to", ", ".join(f"{count} {name}" for name, count in counts.items()))
    by_source(judged)
    summary(f"at most {MOST_DEVICES} devices", [one for one in judged if small(one[0])])
    summary("more", [one for one in judged if not small(one[0])])
    return judged


def line(row: TransformerRow, error: float) -> str:
    """A row in words."""
    figure = row.figure
    layers = f":{row.plan.recompute_layers}" if row.plan.recompute_layers else ""
    return (
        f"{100 * error:+6.1f} %  {figure.devices:5d} × {figure.device}, {figure.network}, "
        f"{figure.sequence_length}, {figure.layout}, {figure.micro_batch} of "
        f"{figure.global_batch}, {figure.precision}, {row.plan.recompute}{layers}, "
        f"{figure.style}: {figure.source}"
    )


def main() -> int:
    """Fit, judge, print."""
    each = "--rows" in sys.argv[1:]
    rows = transformer_rows()
    seen = [row for row in rows if row.fitted]
    values = fit(seen)
    print(f"Factors fitted to {len(seen)} rows of {len({r.group for r in seen})} sources")
    same = True
    for name, value in values.items():
        stored = fitted_values()[name]
        same &= abs(value - stored) <= 1e-3 * stored
        print(f"  {name:<24}{value:9.4f}  (prior {FITTED[name].prior:g}, in use {stored:g})")
    heading = f"  {'error of the step time':<58} rows  bias %  mean %   p90 %"
    print(f"On the rows that they were fitted to\n{heading}")
    by_source(list(zip(seen, errors(seen, values).tolist(), strict=True)))
    judged = judged_without("source", heading)
    mean = np.mean([abs(error) for row, error in judged if small(row)])
    judged_without("style", heading)
    print(
        f"Calibrated with the fewest devices of the same layout, by the factors in use\n{heading}"
    )
    on_more = calibrated()
    summary("calibrated", on_more)
    plain = [row for row, _ in on_more]
    found = errors(plain, fitted_values()).tolist()
    summary("the same rows, not calibrated", list(zip(plain, found, strict=True)))
    distances = np.abs(np.log1p([error for _, error in judged]))
    print(f"Nine in ten are within × {np.exp(np.quantile(distances, 0.9)):.2f}")
    print("Memory of a device (GiB): published, forecast")
    for row in (row for row in rows if row.figure.memory_gib is not None):
        figure = row.figure
        both = f"{figure.memory_gib:6.1f}{row.memory_gib:8.1f}"
        print(f"  {both}  {figure.network}, {figure.layout}, {figure.style}: {figure.source}")
    if each:
        for row, error in sorted(judged, key=lambda one: -abs(one[1])):
            print(line(row, error))
    return 0 if same and mean <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
