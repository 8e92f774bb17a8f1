"""Statistics of repeated measurements: typical value, confidence interval, drift.

Step times are skewed and carry stragglers, so what is used here is robust: medians, resampling and
rank tests, none of which assume a normal distribution. A throughput is always all samples over all
seconds; a mean of rates would let short windows count as much as long ones. docs/statistics.md says
when each of these misleads.

Every function takes a one-dimensional sequence of finite numbers and raises ValueError for an
empty one.
"""

from cubemesh.statistics.intervals import (
    FEWEST_FOR_INTERVAL,
    Interval,
    bootstrap_interval,
    draws_interval,
    nested_throughput_interval,
    student_t,
    t_interval,
    throughput,
    throughput_draws,
    throughput_interval,
)
from cubemesh.statistics.trend import Drift, drift, is_steady
from cubemesh.statistics.typical import mad, mean, median, outliers, percentile, trimmed_mean

__all__ = [
    "FEWEST_FOR_INTERVAL",
    "Drift",
    "Interval",
    "bootstrap_interval",
    "draws_interval",
    "drift",
    "is_steady",
    "mad",
    "mean",
    "median",
    "nested_throughput_interval",
    "outliers",
    "percentile",
    "student_t",
    "t_interval",
    "throughput",
    "throughput_draws",
    "throughput_interval",
    "trimmed_mean",
]
