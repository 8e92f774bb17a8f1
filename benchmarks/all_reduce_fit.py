"""Fit of the all-reduce model to measured sweeps, each source judged by a fit to the others.

The time of n GPUs for S bytes over rings of L bytes per second (forecast/communication.py)

    t = start + 2 (n - 1) hop + (2 (n - 1) / (n share) + fill) S / L

is linear in start, hop, 1 / share and fill. Rates are fitted to sizes of 128 MiB or more, where the
latency is small, latencies to the smaller ones from 1 MiB, in turn, each with the least mean
relative error (iteratively reweighted least squares) and shares of 1 at most. Only sizes that are
a power of two are fitted. Start and hop are common to NVLink 2 and 3; fill is 0 without NVSwitches.
Where the rows have one number of GPUs only, hop is NCCL's and fill common to NVSwitches. The table
compares with NCCL's own constants ("before"):

    python benchmarks/all_reduce_fit.py
    python benchmarks/all_reduce_fit.py --sweeps dgx-a100=FOLDER --sweeps dgx1-v100=FOLDER

Sources: the published A100 sweeps and H200 records that the repository carries, a V100 table, and
folders of `collective_accuracy.py`, all of which count as one source.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from collective_accuracy import MIB, read
from cubemesh.forecast.calibration import Calibration, defaults
from cubemesh.forecast.communication import collective
from cubemesh.forecast.fabric import Fabric, Mesh, fabric
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.papers.published import figures
from cubemesh.schema.collective import Collective
from stored_runs import stored_runs

SIZES = tuple(MIB << i for i in range(11))
LARGE = 128 * MIB
RECORDS = Path(__file__).parent / "records"
H200 = ("2026-11-21-four-h200-scaling", "2026-11-22-two-h200-rates")
V100_US = (89.27, 119.6, 147.4, 203.8, 324.1, 550.8, 992.7, 1818.8)
"""1 to 128 MiB on eight V100-SXM2-16GB of a cloud's hybrid cube mesh: nccl-tests in a blog's post
of 2019-09-26, "NCCL" (deep_learning/NCCL)."""
MESHES: tuple[Mesh, ...] = ("nvlink2", "nvlink3", "nvlink4")
NCCL_HOP_S = defaults()["ring_hop_nvlink_s"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured time."""

    source: str
    machine: str
    devices: int
    size: float
    seconds: float


def joined(row: Row) -> Fabric:
    """What joins the GPUs of a row."""
    return _joined(row.machine, row.devices)


@cache
def _joined(machine: str, devices: int) -> Fabric:
    return fabric(load_system(machine), devices)


def rows_of(source: str, machine: str, sweeps: Mapping[int, Mapping[float, float]]) -> list[Row]:
    """The rows of sweeps by number of devices, from 1 MiB to 1 GiB."""
    return [
        Row(source=source, machine=machine, devices=n, size=size, seconds=points[size])
        for n, points in sweeps.items()
        for size in sorted(points)
        if SIZES[0] <= size <= SIZES[-1]
    ]


def carried() -> list[Row]:
    """Those of the repository."""
    found: dict[str, dict[float, float]] = {}
    for f in figures():
        size = re.fullmatch(r"all-reduce (\d+) B", f.network)
        if size and f.unit == "us" and f.devices == 8:
            found.setdefault(f.source, {})[float(size[1])] = f.value * 1e-6
    rows = [row for name, points in found.items() for row in rows_of(name, "dgx-a100", {8: points})]
    v100 = dict(zip(SIZES, (us * 1e-6 for us in V100_US), strict=False))
    rows += rows_of("blog of 2019, 8 V100", "dgx1-v100", {8: v100})
    for name in H200:
        with stored_runs(RECORDS / f"{name}.sqlite") as store:
            sweeps = {
                run.spec.placement.devices: {p.size_bytes: p.time_s for p in run.sweep}
                for run in store.records()
                if isinstance(run.spec.work, Collective)
                and run.spec.work.collective == "all-reduce"
            }
        rows += rows_of(name, "hgx-h200", sweeps)
    return rows


def fit(rows: Sequence[Row]) -> dict[str, float]:
    """The factors fitted to rows of one or more meshes."""
    rows = [row for row in rows if row.size in SIZES and joined(row).mesh]
    counts = {mesh: {r.devices for r in rows if joined(r).mesh == mesh} for mesh in MESHES[1:]}
    one_fill = any(len(found) == 1 for found in counts.values())
    names: list[str] = []
    table, seconds, large = [], [], []
    for row in rows:
        on = joined(row)
        assert on.mesh is not None
        assert on.nvlink_bytes_per_s is not None
        late = "new" if on.mesh == "nvlink4" else "old"
        steps = 2 * (row.devices - 1)
        line_s = row.size / on.nvlink_bytes_per_s
        terms = {f"start {late}": 1.0, f"hop {late}": steps, on.mesh: steps / row.devices * line_s}
        if on.mesh != "nvlink2":
            terms["fill" if one_fill else f"fill {on.mesh}"] = line_s
        names += [name for name in terms if name not in names]
        table.append(terms)
        seconds.append(row.seconds)
        large.append(row.size >= LARGE)
    a = np.array([[terms.get(name, 0.0) for name in names] for terms in table])
    t, big = np.array(seconds), np.array(large)
    latency = np.array([name.startswith(("start", "hop")) for name in names])
    least = np.array([1.0 if name in MESHES else 0.0 for name in names])
    x = least.copy()
    free = latency.copy()
    for late in ("old", "new"):
        hop, used = f"hop {late}", {r["hop " + late] for r in table if "hop " + late in r}
        if len(used) == 1:
            x[names.index(hop)], free[names.index(hop)] = NCCL_HOP_S, False
    for _ in range(20):
        x[~latency] = _least(a, t, x, ~latency, big, least)
        x[free] = _least(a, t, x, free, ~big, least)
    return dict(zip(names, x.tolist(), strict=True))


def _least(
    a: np.ndarray,
    t: np.ndarray,
    x: np.ndarray,
    which: np.ndarray,
    rows: np.ndarray,
    least: np.ndarray,
) -> np.ndarray:
    """Values, each `least` or more, of some unknowns, with the least mean relative error on some
    rows."""
    known = (a[rows][:, ~which] @ x[~which] + a[rows][:, which] @ least[which]) / t[rows]
    matrix, wanted = a[rows][:, which] / t[rows][:, None], 1 - known
    weights, keep = np.ones(len(wanted)), np.ones(int(which.sum()), dtype=bool)
    found = np.zeros(int(which.sum()))
    for _ in range(60):
        root = np.sqrt(weights)[:, None]
        found[:] = 0.0
        found[keep] = np.linalg.lstsq(
            matrix[:, keep] * root, wanted * np.sqrt(weights), rcond=None
        )[0]
        keep &= found > 0
        found[~keep] = 0.0
        weights = 1 / np.maximum(np.abs(matrix @ found - wanted), 1e-3)
    return found + least[which]


def calibration(found: Mapping[str, float], source: str) -> Calibration:
    """The defaults with what was found."""
    known = defaults()
    for mesh in MESHES:
        late = "new" if mesh == "nvlink4" else "old"
        values = {
            f"{mesh}_start_s": found.get(f"start {late}"),
            f"{mesh}_hop_s": found.get(f"hop {late}"),
            f"{mesh}_share": 1 / found[mesh] if mesh in found else None,
            f"{mesh}_fill": 0.0
            if mesh == "nvlink2"
            else found.get("fill", found.get(f"fill {mesh}")),
        }
        for name, value in values.items():
            if value is not None:
                known = known.with_factor(name, value, "fitted", source)
    return known


def error(row: Row, known: Calibration, *, nccl: bool = False) -> float:
    """Relative error of a forecast, or of one with NCCL's constants."""
    on = replace(joined(row), mesh=None) if nccl else joined(row)
    return collective(on, "all-reduce", row.size, known).seconds / row.seconds - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what each fit saw and found, and the errors of the source that it did not see."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", action="append", default=[], metavar="MACHINE=FOLDER")
    given = parser.parse_args(arguments)
    rows = carried()
    for text in given.sweeps:
        machine, _, folder = text.partition("=")
        rows += rows_of("folders", machine, read(Path(folder)))
    sources = list(dict.fromkeys(row.source for row in rows))
    for left_out in sources:
        seen = [row for row in rows if row.source != left_out]
        report(left_out, seen, [row for row in rows if row.source == left_out])
    print("\nFitted to all sources:")
    show(fit(rows), rows)
    return 0


def report(left_out: str, seen: Sequence[Row], judged: Sequence[Row]) -> None:
    """What a fit saw and found, and its errors on other rows."""
    print(f"\nJudged on: {left_out}")
    found = fit(seen)
    show(found, seen)
    known = calibration(found, f"all but {left_out}")
    for machine, devices in dict.fromkeys((row.machine, row.devices) for row in judged):
        own = [row for row in judged if (row.machine, row.devices) == (machine, devices)]
        doubling = [row for row in own if row.size in SIZES]
        for name, some in (
            (f"{len(own)} sizes", own),
            ("doubling", doubling),
            ("doubling from 16 MiB", [row for row in doubling if row.size >= 16 * MIB]),
        ):
            before = summary(error(row, known, nccl=True) for row in some)
            after = summary(error(row, known) for row in some)
            print(f"  {machine} {devices}, {name}: before {before}, after {after}")


def show(found: Mapping[str, float], seen: Iterable[Row]) -> None:
    """Print the factors and the rows behind them."""
    counts: dict[tuple[str, str], int] = {}
    for row in seen:
        mesh = joined(row).mesh
        if mesh and row.size in SIZES:
            key = (mesh, row.source)
            counts[key] = counts.get(key, 0) + 1
    for (mesh, source), count in sorted(counts.items()):
        print(f"  {mesh} saw {count} rows of {source}")
    for mesh in MESHES:
        if mesh in found:
            print(f"  {mesh} share {1 / found[mesh]:.4f}")
    print("  " + ", ".join(f"{k} {v:.4g}" for k, v in found.items() if k not in MESHES))


def summary(errors: Iterable[float]) -> str:
    """Mean and ninth decile of their sizes."""
    sizes = np.abs(list(errors))
    return f"{100 * sizes.mean():.1f} % (p90 {100 * np.quantile(sizes, 0.9):.1f} %)"


if __name__ == "__main__":
    raise SystemExit(main())
