"""Time, memory and size of `cubemesh report` for stores of 10, 100 and 1,000 runs.

Each store is made of one experiment run of `minibatch` with the null framework: its records are
stored again with other ids, dates and window times, each with telemetry of so many points. The
report of each is computed and written in a process of its own, which loads the libraries first.
Printed for each: the number of runs, seconds of loading, of the report and of its processor time,
peak RSS, and size of the page. `--cold` empties the cache of the chart library before each.

    python benchmarks/report_scale.py
    python benchmarks/report_scale.py --runs 1000 --points 10000 --series 4 --json scale.json
    python benchmarks/report_scale.py --runs 1000 --profile      # functions by own time

The goal for 1,000 runs of 10,000 points: 3 s after loading, 300 MB, and 5 MB.
"""

from __future__ import annotations

import argparse
import cProfile
import datetime
import json
import math
import os
import pstats
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

GOAL = {"seconds": 3.0, "peak_bytes": 300e6, "page_bytes": 5e6}
EVERY_S = 0.5
"""Between two points of a series."""
NAMES = ("cpu_utilization_percent", "host_cpu_percent", "resident_bytes", "memory_used_bytes")
_CHILD = "--in-this-process"


def make_store(path: Path, runs: int, points: int, series: int) -> None:
    """A store at `path` of one experiment run with so many runs, each with so many points in so
    many series."""
    import cubemesh
    from cubemesh.store import Store

    with tempfile.TemporaryDirectory() as folder:
        small = str(Path(folder) / "small.sqlite")
        cubemesh.run("minibatch", framework="null", store=small, quick=True)
        with Store.open(small, read_only=True) as source:
            (run,) = source.experiment_runs()
            seen, machine = source.records(run.run_ids), source.machine(run.machine_id)
    assert machine is not None
    draw = random.Random(0)
    begin = datetime.datetime.fromisoformat(run.started_utc)
    with Store.open(str(path)) as store:
        store.save_machine(machine)
        ids = []
        for i in range(runs):
            like = seen[i % len(seen)]
            windows = [replace(w, elapsed_s=w.elapsed_s * _noise(draw)) for w in like.windows]
            record = replace(
                like,
                run_id=f"{draw.getrandbits(48):012x}",
                windows=tuple(windows),
                series=NAMES[:series],
                started_utc=(begin + datetime.timedelta(minutes=i)).isoformat(),
                key=replace(like.key, repeat=i // len(seen)),
            )
            ids.append(record.run_id)
            store.save(record, telemetry(draw, points // series, series))
        store.save_experiment_run(replace(run, run_ids=tuple(ids)))


def telemetry(draw: random.Random, points: int, series: int) -> Iterator[Any]:
    """Series of so many points each: two that are noise, two that wander."""
    from cubemesh.schema import Series

    times = tuple(EVERY_S * i + 0.01 * draw.random() for i in range(points))
    for number, name in enumerate(NAMES[:series]):
        if number < 2:
            values = [draw.uniform(20, 100) for _ in times]
        else:
            values, level = [], 2e9
            for _ in times:
                level += draw.uniform(-1e7, 1.1e7)
                values.append(level)
        yield Series(name=name, times_s=times, values=tuple(values))


def _noise(draw: random.Random) -> float:
    return math.exp(draw.gauss(0, 0.02))


def measure(store: Path, page: Path, *, profile: bool) -> dict[str, float]:
    """Compute and write the report in this process; what it cost."""
    started = time.perf_counter()
    from cubemesh.api.report import report
    from cubemesh.views.report.render import write_report

    loaded, used = time.perf_counter(), time.process_time()
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    found = report(store=store)
    write_report(page, found)
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    return {
        "loading_s": loaded - started,
        "seconds": time.perf_counter() - loaded,
        "processor_s": time.process_time() - used,
        "peak_bytes": peak_rss_bytes(),
        "page_bytes": page.stat().st_size,
        "runs": len(found.records),
    }


def peak_rss_bytes() -> int:
    """The highest resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM: this needs Linux")


def in_a_process(
    store: Path, page: Path, cache: Path, *, profile: bool = False
) -> dict[str, float]:
    """As `measure`, in a new process with this folder of caches."""
    command = [sys.executable, __file__, _CHILD, str(store), str(page)]
    done = subprocess.run(
        [*command, *(["--profile"] if profile else [])],
        env=os.environ | {"XDG_CACHE_HOME": str(cache.resolve())},
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default="10,100,1000", help="numbers of runs")
    parser.add_argument("--points", type=int, default=10_000, help="of telemetry, in each run")
    parser.add_argument("--series", type=int, default=4, choices=range(1, 1 + len(NAMES)))
    parser.add_argument("--folder", type=Path, help="keep the stores and pages there")
    parser.add_argument("--cold", action="store_true", help="with an empty cache")
    parser.add_argument("--profile", action="store_true", help="print functions by own time")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    parser.add_argument(_CHILD, nargs=2, type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Make the stores, measure and print; the exit code is always 0."""
    args = arguments()
    if args.in_this_process:
        print(json.dumps(measure(*args.in_this_process, profile=args.profile)))
        return
    rows = []
    heads = ("loading", "report", "processor", "peak RSS", "page")
    print(f"{'runs':>6}", *(f"{head:>9}" for head in heads), sep="  ")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for runs in map(int, args.runs.split(",")):
            store = folder / f"{runs}-runs-{args.points}-{args.series}.sqlite"
            if not store.exists():
                make_store(store, runs, args.points, args.series)
            cache = folder / "cache"
            if args.cold:
                shutil.rmtree(cache, ignore_errors=True)
            elif not cache.exists():
                in_a_process(store, folder / f"{runs}.html", cache)
            found = in_a_process(store, folder / f"{runs}.html", cache, profile=args.profile)
            missed = [name for name, most in GOAL.items() if found[name] > most]
            print(
                f"{found['runs']:6}  {found['loading_s']:7.2f} s  {found['seconds']:7.2f} s  "
                f"{found['processor_s']:7.2f} s  "
                f"{found['peak_bytes'] / 1e6:6.0f} MB  {found['page_bytes'] / 1e6:6.2f} MB  "
                f"{'misses the goal for ' + ', '.join(missed) if missed else 'reaches the goals'}",
                flush=True,
            )
            rows.append(found)
    if args.json:
        Path(args.json).write_text(
            json.dumps({"schema": 1, "points": args.points, "series": args.series, "rows": rows})
        )


if __name__ == "__main__":
    main()
