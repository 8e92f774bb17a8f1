"""Statistics of repeated measurements: typical value, confidence interval, drift.

Step times are skewed, carry stragglers and resemble those before them. So medians and rank tests
are used where one far value would decide, and every interval and test of a run accounts for the
autocorrelation of its windows. A throughput is always all samples over all
seconds; a mean of rates would let short windows count as much as long ones. docs/statistics.md says
when each of these misleads.

Every function takes a one-dimensional sequence of finite numbers and raises ValueError for an
empty one.
"""

from cubemesh.statistics.intervals import (
    CONFIDENCE,
    FEWEST_FOR_INTERVAL,
    Interval,
    mean_interval,
    median_interval,
    nested_throughput_interval,
    percentile_interval,
    student_p,
    student_t,
    t_interval,
    throughput,
    throughput_interval,
    windows_half_width,
)
from cubemesh.statistics.multiple_comparisons import holm
from cubemesh.statistics.process_spread import Spread, pooled, spread_of
from cubemesh.statistics.trend import Drift, drift, is_steady
from cubemesh.statistics.typical import mad, mean, median, outliers, percentile, trimmed_mean

__all__ = [
    "CONFIDENCE",
    "FEWEST_FOR_INTERVAL",
    "Drift",
    "Interval",
    "Spread",
    "drift",
    "holm",
    "is_steady",
    "mad",
    "mean",
    "mean_interval",
    "median",
    "median_interval",
    "nested_throughput_interval",
    "outliers",
    "percentile",
    "percentile_interval",
    "pooled",
    "spread_of",
    "student_p",
    "student_t",
    "t_interval",
    "throughput",
    "throughput_interval",
    "trimmed_mean",
    "windows_half_width",
]
