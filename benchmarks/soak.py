"""Repeated runs of the test suite: on an idle machine, with a load, and on one core.

    python benchmarks/soak.py --runs 10 --busy 5 --load 8 --one-core 1 [-- PYTEST OPTIONS]

`--busy` of the runs run next to `--load` busy processes and `--one-core` of them are bound to
one core; the rest have neither. A test that fails in one of them depends on the speed of the
machine. Each result is saved when its run ends: the same command continues after an interruption,
and repeats nothing of the same commit. Writes soak.md and soak.json: date, machine, results of each
run, each failure with its condition, and the slowest tests. Exit code 1 if a test failed.

pytest-xdist starts as many processes as for `make test`; `--workers N` sets a number, for a machine
that others use too, and `--busy-workers N` that of the runs with a load, which take less long with
more.

The processes of the load end with this one, also when it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path

from cubemesh.machines import probe
from cubemesh.worker.report.limits import die_with_parent

ROOT = Path(__file__).parents[1]
IDLE, BUSY, ONE_CORE = "idle", "busy", "one core"
SLOWEST = 20
PATIENCE_S = 3600
"""Time limit of a test: it ends tests that hang, and must not end slow ones."""


@dataclass(frozen=True)
class Failure:
    """A test that failed in a run."""

    test: str
    message: str


@dataclass(frozen=True)
class Run:
    """One run of the suite."""

    number: int
    condition: str
    code: str
    """Identifies commit, changes and options: runs of the same are not repeated."""
    started: str
    wall_s: float
    exit_code: int
    passed: int
    failed: int
    skipped: int
    failures: tuple[Failure, ...]
    seconds: dict[str, float]
    """Of each test that ran, with its fixtures."""

    @property
    def ok(self) -> bool:
        """Whether all tests passed."""
        return self.exit_code == 0 and not self.failures


def conditions(runs: int, busy: int, one_core: int) -> list[str]:
    """The condition of each run; busy and idle runs alternate, those on one core are last."""
    if min(runs - busy - one_core, busy, one_core) < 0 or runs < 1:
        raise ValueError(
            f"--runs {runs} --busy {busy} --one-core {one_core}: runs must be at least 1 and the "
            "sum of the other two"
        )
    pairs = zip_longest([IDLE] * (runs - busy - one_core), [BUSY] * busy)
    found = [condition for pair in pairs for condition in pair if condition]
    return found + [ONE_CORE] * one_core


@contextlib.contextmanager
def load(processes: int) -> Iterator[list[int]]:
    """Busy processes, at most until this process ends; their ids."""
    words = [sys.executable, "-c", "while True: pass"]
    end_with_this = partial(die_with_parent, os.getpid())
    started = [subprocess.Popen(words, preexec_fn=end_with_this) for _ in range(processes)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """This process, and the processes it starts, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_suite(number: int, condition: str, args: argparse.Namespace, code: str) -> Run:
    """One run, with pytest's own output in run-NN.log."""
    cores = sorted(os.sched_getaffinity(0))
    bound = {cores[0]} if condition == ONE_CORE else set(cores)
    report = args.output / f"run-{number:02}.xml"
    report.unlink(missing_ok=True)
    wanted = args.workers
    if condition == BUSY and args.busy_workers is not None:
        wanted = args.busy_workers
    workers = "auto" if wanted is None else str(wanted)
    words = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--timeout"]
    words += [str(PATIENCE_S), "-p", "no:cacheprovider", f"--junitxml={report}", *args.options]
    end_with_this = partial(die_with_parent, os.getpid())
    started, start_s = datetime.now(UTC), time.monotonic()
    with (
        on_cores(bound),
        load(args.load if condition == BUSY else 0),
        open(args.output / f"run-{number:02}.log", "w") as log,
        subprocess.Popen(
            words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, preexec_fn=end_with_this
        ) as suite,
    ):
        try:
            exit_code = suite.wait()
        except BaseException:
            suite.terminate()
            raise
    failures, seconds, passed, skipped = read_report(report)
    if exit_code and not failures:
        failures = (Failure("", f"pytest ended with code {exit_code}; see run-{number:02}.log"),)
    return Run(
        number=number,
        condition=condition,
        code=code,
        started=started.isoformat(timespec="seconds"),
        wall_s=round(time.monotonic() - start_s, 1),
        exit_code=exit_code,
        passed=passed,
        failed=len(failures),
        skipped=skipped,
        failures=failures,
        seconds=seconds,
    )


def read_report(path: Path) -> tuple[tuple[Failure, ...], dict[str, float], int, int]:
    """Failures, seconds of each test, and how many passed and were skipped, of pytest's JUnit
    file; all are empty without one."""
    failures: list[Failure] = []
    seconds: dict[str, float] = {}
    passed = skipped = 0
    cases = ElementTree.parse(path).iter("testcase") if path.exists() else ()
    for case in cases:
        place = case.get("file") or case.get("classname", "").replace(".", "/")
        name = f"{place}::{case.get('name')}"
        found = [part for part in case if part.tag in ("failure", "error")]
        failures += [Failure(name, first_line(part.get("message", ""))) for part in found]
        if case.find("skipped") is not None:
            skipped += 1
            continue
        passed += not found
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0))
    return tuple(failures), seconds, passed, skipped


def first_line(text: str) -> str:
    """The first line, short enough for a table."""
    return text.strip().partition("\n")[0][:160].replace("|", "\\|")


def slowest(runs: list[Run]) -> list[tuple[str, float, dict[str, float]]]:
    """The slowest tests: name, median of all runs, and median of each condition, in seconds."""
    found = []
    for test in sorted({test for run in runs for test in run.seconds}):
        times = {c: [r.seconds[test] for r in runs if r.condition == c and test in r.seconds]
                 for c in (IDLE, BUSY, ONE_CORE)}  # fmt: skip
        all_times = [time_s for own in times.values() for time_s in own]
        medians = {c: statistics.median(own) for c, own in times.items() if own}
        found.append((test, statistics.median(all_times), medians))
    return sorted(found, key=lambda one: -one[1])[:SLOWEST]


def table(runs: list[Run], planned: int) -> str:
    """The results as Markdown."""
    machine = probe()
    lines = [
        f"# Test suite, {len(runs)} of {planned} runs",
        "",
        f"{runs[0].started[:10] if runs else ''}, {machine.cpu.model}, "
        f"{machine.cpu.usable_cores} cores, {platform.system()}, Python "
        f"{platform.python_version()}, commit {runs[0].code.partition(' ')[0] if runs else ''}",
        "",
        "| run | condition | passed | failed | skipped | wall time (s) |",
        "|---|---|---|---|---|---|",
        *(
            f"| {r.number} | {r.condition} | {r.passed} | {r.failed} | {r.skipped} | {r.wall_s:,} |"
            for r in runs
        ),
        "",
        "## Failures",
        "",
    ]
    failed = sorted({f.test for r in runs for f in r.failures})
    if failed:
        lines += ["| test | failed under | message |", "|---|---|---|"]
    for test in failed:
        own = [(r, f) for r in runs for f in r.failures if f.test == test]
        under = ", ".join(f"{r.condition} (run {r.number})" for r, _ in own)
        lines.append(f"| {test or 'none'} | {under} | {own[0][1].message} |")
    lines += [] if failed else ["None."]
    lines += ["", "## Slowest tests", "", "Median in seconds, with fixtures.", ""]
    lines += [f"| test | all runs | {IDLE} | {BUSY} | {ONE_CORE} |", "|---|---|---|---|---|"]
    for test, median_s, medians in slowest(runs):
        cells = [f"{medians[c]:.1f}" if c in medians else "" for c in (IDLE, BUSY, ONE_CORE)]
        lines.append(f"| {test} | {median_s:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def version(options: list[str], output: Path) -> str:
    """Commit and a digest of uncommitted changes outside `output`, pytest's options and the
    interpreter."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout

    others = ["--", "."]
    if output.is_relative_to(ROOT):
        others.append(f":(exclude){output.relative_to(ROOT)}")
    changes = git("diff", "HEAD", *others) + git("status", "--porcelain", *others)
    text = "\0".join([changes, sys.executable, *options])
    commit = git("rev-parse", "--short", "HEAD").strip() or "unknown"
    return f"{commit} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def saved(path: Path) -> Run | None:
    """The stored result of a run; None without one."""
    try:
        fields = json.loads(path.read_text())
        failures = tuple(Failure(**one) for one in fields.pop("failures"))
        return Run(failures=failures, **fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write(path: Path, text: str) -> None:
    """The whole file or what was there before."""
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text)
    new.replace(path)


def main(words: list[str] | None = None) -> int:
    """Run what is not stored yet; 1 if a test failed in any run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default, text in (
        ("--runs", 10, "runs of the suite"),
        ("--busy", 5, "of them with the load"),
        ("--one-core", 1, "of them on one core"),
        ("--load", 8, "busy processes of the load"),
    ):
        parser.add_argument(
            name, type=int, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    for option, text in (
        ("--workers", "processes of pytest-xdist (default: auto)"),
        ("--busy-workers", "the same of the runs with the load (default: --workers)"),
    ):
        parser.add_argument(option, type=int, metavar="N", help=text)
    parser.add_argument("--output", type=Path, default=ROOT / ".soak", help="folder of the results")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    args = parser.parse_args(words)
    try:
        planned = conditions(args.runs, args.busy, args.one_core)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args.output = args.output.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    code = version(args.options, args.output)
    runs: list[Run] = []
    for number, condition in enumerate(planned, 1):
        path = args.output / f"run-{number:02}.json"
        run = saved(path)
        if run is None or (run.code, run.condition) != (code, condition):
            print(f"run {number} of {args.runs}, {condition} ...", file=sys.stderr, flush=True)
            run = run_suite(number, condition, args, code)
            write(path, json.dumps(asdict(run), indent=1))
        runs.append(run)
        print(f"run {number}: {run.passed} passed, {run.failed} failed, {run.skipped} skipped, "
              f"{run.wall_s:,} s ({condition})", file=sys.stderr, flush=True)  # fmt: skip
        document = {"runs": [asdict(r) for r in runs], "slowest": slowest(runs)}
        write(args.output / "soak.json", json.dumps(document, indent=1))
        write(args.output / "soak.md", table(runs, args.runs))
    print((args.output / "soak.md").read_text(), end="")
    return 0 if all(run.ok for run in runs) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
