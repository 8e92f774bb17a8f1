"""Estimate the prior for the spread between fresh processes from repeated runs in stores.

    python benchmarks/process_spread.py [STORE ...]       # default: benchmarks/records/*.sqlite

A group is the runs of one spec on one machine with one version of the software, each in a process
of its own; its value is the variance s² of their ln(throughput), with d degrees of freedom, one
fewer than runs. Variances of groups of one kind (store/spread_prior.py) are taken as draws of a
scaled inverse χ², so that s²/s₀² has an F distribution with d and d₀ degrees of freedom (Smyth,
Statistical Applications in Genetics and Molecular Biology 3, 2004); s₀² and d₀ are those of
greatest likelihood (Wright & Simon, Bioinformatics 19, 2003). A kind has a prior if it has at least
10 groups of at least 2 machines, and if of every group the interval around the first run, from the
prior of the *other* machines alone, contains the later runs in nine of ten cases.

Printed are the groups, that check, and s₀ and d₀ with their range over 200 bootstrap samples of the
groups.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.schema import RunRecord, TrainSteps
from cubemesh.statistics import CONFIDENCE, student_t
from cubemesh.store.run_statistics import run_windows
from cubemesh.store.spread_prior import SpreadKind, spread_kind
from stored_runs import stored_runs

RECORDS = Path(__file__).parent / "records"
FEWEST_GROUPS, FEWEST_MACHINES, FEWEST_INSIDE = 10, 2, 0.9
RESOLUTION = 0.001
"""Spreads below 0.1 % count as 0.1 %: no answer distinguishes them, and their logarithms, which
have no lower bound, would decide d₀."""
FREEDOMS = np.exp(np.linspace(math.log(0.2), math.log(100.0), 125))
"""The d₀ that are tried, each 5 % above the one before."""


@dataclass(frozen=True)
class Repeats:
    """Runs of one spec on one machine."""

    kind: SpreadKind
    machine: str
    what: str
    logs: tuple[float, ...]
    """ln(throughput) of each, in the order they ran."""

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the variance."""
        return len(self.logs) - 1

    @property
    def variance(self) -> float:
        """The variance, at least that of the resolution."""
        return max(float(np.var(self.logs, ddof=1)), RESOLUTION**2)


@dataclass(frozen=True)
class Prior:
    """s₀ and d₀ of a kind."""

    spread: float
    freedom: float


def repeats(paths: Iterable[Path]) -> list[Repeats]:
    """The groups of all stores with two runs or more."""
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for path in paths:
        with stored_runs(path) as store:
            for record in store.records(outcome="ok"):
                key = record.key
                if record.measured:
                    same = (key.spec_id, key.machine_id, key.software_id, key.code_version)
                    groups.setdefault((path.stem, *same), []).append(record)
    found = []
    for (_, _, machine, *_), runs in groups.items():
        if len(runs) > 1 and (kind := spread_kind(runs)) is not None:
            found.append(Repeats(kind, machine, _what(runs[0]), tuple(map(_log_rate, runs))))
    return found


def _what(record: RunRecord) -> str:
    spec, rank = record.spec, record.ranks[0]
    assert isinstance(spec.work, TrainSteps)
    size = f" at {spec.work.image_size}" if spec.work.image_size else ""
    program = f"{spec.program.framework}, {spec.program.precision}, on {spec.program.data_location}"
    device = rank.device_name or rank.device
    return f"{spec.work.network}{size}, batch size {spec.batch_per_device}, {program}, {device}"


def _log_rate(record: RunRecord) -> float:
    windows = run_windows(record)
    return math.log(sum(w.samples for w in windows) / math.fsum(w.elapsed_s for w in windows))


def fit(groups: Sequence[Repeats]) -> Prior:
    """The s₀ and d₀ of greatest likelihood."""
    variances = np.array([g.variance for g in groups])
    freedoms = np.array([g.freedom for g in groups], dtype=np.float64)
    best = (-math.inf, 0.0, 0.0)
    for freedom in FREEDOMS:
        scales = np.exp(np.linspace(*np.log([variances.min(), variances.max()]), 400))
        fits = likelihood(variances, freedoms, scales, freedom)
        place = int(fits.argmax())
        best = max(best, (float(fits[place]), float(scales[place]), float(freedom)))
    return Prior(math.sqrt(best[1]), best[2])


def likelihood(
    variances: NDArray[np.float64],
    freedoms: NDArray[np.float64],
    scales: NDArray[np.float64],
    freedom: float,
) -> NDArray[np.float64]:
    """ln of the likelihood of each scale s₀², up to a constant: of variances over s₀² that have an
    F distribution with their own degrees of freedom and d₀ = `freedom`."""
    constant = sum(
        count * (math.lgamma((d + freedom) / 2) + d / 2 * math.log(d / freedom))
        for d, count in zip(*np.unique(freedoms, return_counts=True), strict=True)
    )
    constant -= len(freedoms) * math.lgamma(freedom / 2)
    constant += freedoms @ np.log(variances) / 2
    tails = np.log1p(freedoms / freedom * variances / scales[:, np.newaxis])
    tails *= (freedoms + freedom) / 2
    return np.asarray(constant - freedoms.sum() / 2 * np.log(scales) - tails.sum(axis=1))


def predicted(groups: Sequence[Repeats]) -> tuple[int, int]:
    """Of the later runs of all groups, those inside the interval around the first run, from the
    prior of the other machines; and their number."""
    inside = total = 0
    for machine in {group.machine for group in groups}:
        prior = fit([g for g in groups if g.machine != machine])
        half = student_t(CONFIDENCE, max(1.0, prior.freedom)) * prior.spread * math.sqrt(2)
        for group in (g for g in groups if g.machine == machine):
            inside += sum(abs(log - group.logs[0]) <= half for log in group.logs[1:])
            total += group.freedom
    return inside, total


def unsupported(groups: Sequence[Repeats]) -> str:
    """Why these groups of one kind give no prior; empty if they do."""
    machines = len({group.machine for group in groups})
    if len(groups) < FEWEST_GROUPS or machines < FEWEST_MACHINES:
        return f"it needs {FEWEST_GROUPS} groups of {FEWEST_MACHINES} machines"
    inside, total = predicted(groups)
    if inside < FEWEST_INSIDE * total:
        return f"the other machines' prior contains {inside} of {total} repeats"
    return ""


def report(groups: Sequence[Repeats]) -> Iterator[str]:
    """The lines of the output."""
    for kind in SpreadKind:
        own = [group for group in groups if group.kind is kind]
        yield f"Workloads {kind.value}"
        for g in sorted(own, key=lambda g: (g.machine, g.what)):
            spread = _percent(float(np.std(g.logs, ddof=1)))
            yield f"| {g.machine[:6]} | {g.what} | {len(g.logs)} | {spread}"
        count = f"{len(own)} groups of {len({group.machine for group in own})} machines"
        if why := unsupported(own):
            yield f"{count}, no prior: {why}."
            continue
        prior, rng = fit(own), np.random.default_rng(0)
        again = [fit([own[i] for i in rng.integers(len(own), size=len(own))]) for _ in range(200)]
        spreads = np.quantile([p.spread for p in again], (0.05, 0.95))
        freedoms = np.quantile([p.freedom for p in again], (0.05, 0.95))
        inside, total = predicted(own)
        yield (
            f"{count}: s0 {_percent(prior.spread)} ({_percent(spreads[0])} to "
            f"{_percent(spreads[1])}), d0 {prior.freedom:.2f} ({freedoms[0]:.2f} to "
            f"{freedoms[1]:.2f}); the other machines' prior contains {inside} of {total} repeats."
        )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def main() -> None:
    """Print the groups and the priors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", type=Path)
    given = parser.parse_args().stores
    for line in report(repeats(given or sorted(RECORDS.glob("*.sqlite")))):
        print(line, flush=True)


if __name__ == "__main__":
    main()
