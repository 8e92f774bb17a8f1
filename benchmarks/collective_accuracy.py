"""Error of predicted all-reduce times relative to measured ones.

Twice for each sweep: calibrated with eleven of its sizes (1, 2, 4 … 1,024 MiB) and evaluated on all
the others, and from the links of the topology only. Sweeps are files of nccl-tests' results, named
`…_Ngpu.csv`, with the size in bytes first and the time in nanoseconds fourth:

    python benchmarks/collective_accuracy.py FOLDER --machine dgx-a100

Without a folder it uses the sweep of eight A100 among the published figures, from the topology
only. Exit code 1 if an error, over all sweeps together, is above its goal; each is printed.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cubemesh.forecast.calibration import Calibration, Sweep, defaults
from cubemesh.forecast.communication import collective
from cubemesh.forecast.fabric import fabric
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.papers.published import figures

MIB = 1 << 20
CALIBRATED_WITH = tuple(MIB << i for i in range(11))
GOALS = {"calibrated": 0.02, "calibrated, to 32 MiB": 0.05, "topology alone": 0.15}

Points = Mapping[float, float]
"""Size in bytes → seconds."""


def read(folder: Path) -> dict[int, Points]:
    """The sweeps of a folder, by device count."""
    found = {}
    for path in sorted(folder.glob("*gpu.csv")):
        named = re.search(r"_(\d+)gpu", path.name)
        if named is None:
            continue
        with path.open(newline="") as file:
            lines = list(csv.reader(file))[1:]
        found[int(named[1])] = {float(line[0]): float(line[3]) * 1e-9 for line in lines}
    return found


def published() -> dict[int, Points]:
    """The carried sweep of eight A100 joined by NVSwitches, from 1 MiB to 1 GiB."""
    points = {}
    for f in figures():
        size = re.fullmatch(r"all-reduce (\d+) B", f.network)
        if f.system.startswith("1 node 8x A100") and size and f.unit == "us":
            points[float(size[1])] = f.value * 1e-6
    return {8: {s: t for s, t in points.items() if MIB <= s <= 1 << 30}}


def errors(
    points: Points, machine: str, devices: int, calibration: Calibration
) -> dict[float, float]:
    """Size → relative error of what is predicted, for the sizes the calibration has not seen."""
    on = fabric(load_system(machine), devices)
    seen = {size for sweep in calibration.sweeps for size in sweep.size_bytes}
    return {
        size: abs(collective(on, "all-reduce", size, calibration).seconds / seconds - 1)
        for size, seconds in points.items()
        if size not in seen
    }


def judged(machine: str, devices: int, points: Points) -> dict[str, float]:
    """Mean errors by what was known beforehand."""
    alone = errors(points, machine, devices, defaults())
    found = {"topology alone": mean(alone.values())}
    sizes = [size for size in CALIBRATED_WITH if size in points]
    if len(sizes) == len(CALIBRATED_WITH) and len(points) > 2 * len(sizes):
        sweep = Sweep(
            operation="all-reduce",
            devices=devices,
            size_bytes=tuple(sizes),
            seconds=tuple(points[size] for size in sizes),
            source="eleven of its own sizes",
        )
        known = errors(points, machine, devices, defaults().with_sweeps(sweep))
        found["calibrated"] = mean(known.values())
        found["calibrated, to 32 MiB"] = mean(e for s, e in known.items() if s <= 32 * MIB)
    return found


def mean(values: Iterable[float]) -> float:
    """Of relative errors."""
    listed = list(values)
    return sum(listed) / len(listed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors of each sweep; 1 where one is above its goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--machine", default="dgx-a100")
    given = parser.parse_args(arguments)
    sweeps = published() if given.folder is None else read(given.folder)
    if not sweeps:
        print(f"{given.folder}: no files named …_Ngpu.csv.", file=sys.stderr)
        return 2
    found: dict[str, list[float]] = {}
    for devices, points in sweeps.items():
        for name, error in judged(given.machine, devices, points).items():
            found.setdefault(name, []).append(error)
            print(f"{devices} devices, {len(points)} sizes, {name}: {100 * error:.2f} %")
    for name, each in found.items():
        print(f"all, {name}: {100 * mean(each):.2f} % (goal: {100 * GOALS[name]:.0f} % or less)")
    return int(any(mean(each) > GOALS[name] for name, each in found.items()))


if __name__ == "__main__":
    sys.exit(main())
