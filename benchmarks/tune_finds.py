"""Throughput of the setting that `cubemesh tune` finds relative to the best of the whole grid.

    1. tune      the network, within its minutes                       (as a user runs it)
    2. screen    every setting of the grid once, in a fresh process    (those that ran, and that
                 learn as stock does, by the rule of experiments/tune/convergence_check.py, remain)
    3. confirm   the tuned setting and those within 20 % of the fastest, `--rounds` times

The grid's best is the fastest by the screening and the confirming runs together, so it is biased
upwards: the largest of many noisy figures. Printed is the tuned setting's throughput over the
best's in the confirming runs, with Welch's interval over fresh processes.

    python benchmarks/tune_finds.py                       # LittleCNN, batch size 64, on this CPU

Exit code 1 if the whole interval is below 0.97.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from cubemesh.experiments.session import run_names
from cubemesh.experiments.tune import experiment as tune
from cubemesh.experiments.tune.convergence_check import Means, admission, means_of
from cubemesh.experiments.tune.search import SEEDS, Search
from cubemesh.experiments.tune.search_space import CPU_PRECISIONS, Configuration
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.machines import probe
from cubemesh.runs import Executor, Observer
from cubemesh.schema import Budget, RunRecord, RunSpec, TrainSteps
from cubemesh.schema.comparison import Ratio
from cubemesh.schema.serialization import from_plain
from cubemesh.store import Store
from cubemesh.store.run_statistics import ratio_of_runs, run_windows
from cubemesh.views import terminal
from cubemesh.views.progress import TerminalProgress

NEAR = 0.2
"""What is this much slower in one run is not measured again."""
GOAL = 0.97
BUDGET = Budget(steps=3, seconds=1.0, windows=10, warmup_seconds=2.0, time_limit_s=300.0)


@dataclass
class Cell:
    """A setting of the grid with its runs."""

    configuration: Configuration
    screening: RunRecord
    confirming: list[RunRecord]

    @property
    def rate(self) -> float:
        """Samples per second over all its runs."""
        windows = [w for r in (self.screening, *self.confirming) for w in run_windows(r)]
        return sum(w.samples for w in windows) / sum(w.elapsed_s for w in windows)


def grid(batch: int, frameworks: Iterable[str], threads: Sequence[int]) -> list[Configuration]:
    """Every setting of one device that is a CPU."""
    return [
        Configuration(
            framework=framework,
            precision=precision,
            layout=layout,
            compile_by=by,
            threads=count,
            batch_per_device=batch,
        )
        for framework in frameworks
        for by in (("network", "segment") if entry(framework).compiles else ("network",))
        for precision, layout, count in product(CPU_PRECISIONS, ("nchw", "nhwc"), (None, *threads))
    ]


def spec_of(
    configuration: Configuration, network: str, number: int, losses: int, seed: int = 0
) -> RunSpec:
    """Its run number `number`, 0 being the screening one."""
    work = TrainSteps(
        network=network,
        batch_per_device=configuration.batch_per_device,
        losses=0 if number else losses,
    )
    work = replace(work, seed=work.seed + seed)
    budget = replace(BUDGET, seconds=BUDGET.seconds + number / 10)
    return configuration.of(RunSpec(work=work, budget=budget))


def screened(
    executor: Executor, settings: Sequence[Configuration], args: argparse.Namespace
) -> list[Cell]:
    """The cells that ran and learn as the first does, or as it does from other seeds."""
    cells: list[Cell] = []
    seeds = [spec_of(settings[0], args.network, 0, args.losses, seed) for seed in range(SEEDS)]
    stock = [means_of(record) for record in executor.run(seeds)]
    spread: list[Means] = [means for means in stock if means is not None]
    for configuration in settings:
        (record,) = executor.run([spec_of(configuration, args.network, 0, args.losses)])
        if not record.ok:
            continue
        lower = not configuration.same_precision(settings[0])
        if admission(stock[0], means_of(record), spread, lower_precision=lower).admitted:
            cells.append(Cell(configuration, record, []))
    return cells


def confirm(executor: Executor, cells: Sequence[Cell], args: argparse.Namespace) -> None:
    """Measure each of `cells` again, interleaved."""
    for number in range(1, args.rounds + 1):
        for cell in cells:
            (record,) = executor.run([spec_of(cell.configuration, args.network, number, 0)])
            if record.ok:
                cell.confirming.append(record)


def ratio_to_best(best: Cell, found: Cell) -> Ratio:
    """The found setting's throughput over the best's, in the confirming runs."""
    sides = [[run_windows(r) for r in cell.confirming] for cell in (best, found)]
    return ratio_of_runs(sides[0], sides[1], None)


def result_of(best: Cell, found: Cell, stock: Configuration, tuning_s: float) -> dict[str, Any]:
    """The result as plain data."""
    same = best is found
    ratio = None if same else ratio_to_best(best, found)
    return {
        "found": found.configuration.words(stock),
        "best": best.configuration.words(stock),
        "tuning_s": round(tuning_s, 1),
        "found_per_s": found.rate,
        "best_per_s": best.rate,
        "ratio": 1.0 if ratio is None else ratio.value,
        "low": 1.0 if ratio is None else ratio.low,
        "high": 1.0 if ratio is None else ratio.high,
        "same": same,
    }


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="little-cnn")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=tune.MINUTES_ON_CPU)
    parser.add_argument("--frameworks", help="names; default: all installed ones that compute")
    parser.add_argument("--losses", type=int, default=tune.Settings().losses)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of confirmation, at least 2")
    parser.add_argument("--store", help="store all runs there; default: a temporary folder")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    args = parser.parse_args(given)
    if args.rounds < 2:
        parser.error("--rounds must be at least 2: a single run has no interval")
    return args


def tuned(
    args: argparse.Namespace, frameworks: Sequence[str], store: Store, watcher: Observer
) -> Search:
    """The search of a tuning, run as a user would."""
    settings = {
        "networks": args.network,
        "batch_sizes": args.batch,
        "minutes": args.minutes,
        "frameworks": ",".join(frameworks),
        "losses": args.losses,
        "device": "cpu",
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    (answered,) = run_names(["tune"], lines, scale=None, store=store, observer=watcher)
    asked = from_plain(tune.Settings, answered.experiment_run.settings)
    return tune.found(asked, answered.records)


def compared(args: argparse.Namespace, store: Store, watcher: Observer) -> dict[str, Any] | None:
    """Tune, screen, confirm; the result as plain data, None if no framework runs."""
    machine = probe()
    computing = [n for n, e in FRAMEWORKS.items() if e.read_script is None and e.installed]
    frameworks = args.frameworks.split(",") if args.frameworks else computing
    began = time.monotonic()
    search = tuned(args, frameworks, store, watcher)
    tuning_s = time.monotonic() - began
    if search.best is None or search.stock is None:
        return None
    usable = machine.cpu.usable_cores or 1
    threads = sorted({1, max(1, usable // 2)} - {usable})
    cells_of = grid(args.batch, frameworks, threads)
    every = list(dict.fromkeys([search.stock, *cells_of, search.best]))
    with Executor(store, machine=machine, observer=watcher) as executor:
        cells = screened(executor, every, args)
        found = next((c for c in cells if c.configuration == search.best), None)
        if found is None:
            raise SystemExit("the tuned settings failed, or their losses diverge")
        fastest = max(cell.rate for cell in cells)
        near = [c for c in cells if c is found or c.rate >= (1 - NEAR) * fastest]
        confirm(executor, near, args)
    best = max(near, key=lambda cell: cell.rate)
    for cell in sorted(near, key=lambda c: -c.rate):
        print(f"{cell.rate:12.1f} samples/s  {cell.configuration.words(search.stock)}")
    return result_of(best, found, search.stock, tuning_s) | {"settings": len(every)}


def main(given: list[str] | None = None) -> int:
    """Tune, measure the grid, print."""
    args = arguments(given)
    watcher = TerminalProgress(terminal.stderr_console())
    with tempfile.TemporaryDirectory() as folder:
        place = args.store or str(Path(folder) / "store.sqlite")
        with Store.open(place) as store, closing(watcher):
            result = compared(args, store, watcher)
    if result is None:
        print("unavailable: no framework runs here")
        return 2
    print(f"tuned in {result['tuning_s']:.0f} s: {result['found']}")
    print(f"the best of {result['settings']}: {result['best']}")
    interval = "" if result["same"] else f" ({result['low']:.3f} to {result['high']:.3f})"
    print(f"tuned / best: {result['ratio']:.3f}{interval}")
    if args.json:
        settings = {k: v for k, v in vars(args).items() if k not in ("json", "store")}
        Path(args.json).write_text(json.dumps({**settings, **result}, indent=1))
    return 1 if result["high"] < GOAL else 0


if __name__ == "__main__":
    sys.exit(main())
