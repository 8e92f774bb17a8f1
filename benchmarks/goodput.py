"""Goodput of a real training whose worker is killed with SIGKILL at scripted times.

    python benchmarks/goodput.py --fault-every 120,300 --minutes 6
    python benchmarks/goodput.py --fault-every 20 --minutes 2 --json goodput.json

For each time between faults a training of so many minutes, as a first short one estimates them,
with checkpoints by Daly's rule. The worker is killed each time when so many seconds have passed
since the start or the last fault. Printed: faults, elapsed time, and its shares: useful (windows
whose steps are in the final weights), repeated, starts, the rest (checkpoints, reading losses); and
the forecast of the useful share from the measured cost of a checkpoint and of a start.
The exit code is 1 if a training does not complete.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from cubemesh.experiments.train.goodput import goodput_of
from cubemesh.schema import RunRecord, Train
from cubemesh.store import Store
from cubemesh.training.checkpoint import steps_in
from cubemesh.training.checkpoint_interval import goodput

LOOK_S = 0.05


def start(
    folder: Path, epochs: int, fault_every_s: float, given: argparse.Namespace
) -> subprocess.Popen[bytes]:
    """A training with checkpoints in `folder`."""
    words = [
        "train",
        given.network,
        "--epochs",
        str(epochs),
        "--restarts",
        "1000000",
        "--wait",
        "1h",
    ]
    words += ["--checkpoints", str(folder / "checkpoints"), "--store", str(folder / "s.sqlite")]
    words += ["--fault-every", f"{fault_every_s}s", "--set", "device=cpu", "--set", "threads=1"]
    for line in given.set:
        words += ["--set", line]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-m", "cubemesh", *words], stdout=quiet, stderr=quiet, env=os.environ
    )


def worker_of(command: psutil.Process) -> psutil.Process | None:
    """The process that trains: the newest one that the command's forkserver forked."""
    try:
        workers = [worker for server in command.children() for worker in server.children()]
        return max(workers, key=lambda process: process.create_time(), default=None)
    except psutil.Error:
        return None


def train(
    folder: Path, epochs: int, fault_every_s: float | None, given: argparse.Namespace
) -> Sequence[RunRecord]:
    """The attempts of a training, in order, whose worker is killed each `fault_every_s`."""
    process = start(folder, epochs, fault_every_s or 3600.0, given)
    command, fault = psutil.Process(process.pid), time.monotonic()
    while process.poll() is None:
        time.sleep(LOOK_S)
        if fault_every_s is None or time.monotonic() < fault + fault_every_s:
            continue
        worker = worker_of(command)
        if worker is not None and steps_in(folder / "checkpoints"):  # else it would not resume
            worker.kill()
            fault = time.monotonic()
    with Store.open(str(folder / "s.sqlite"), read_only=True) as store:
        return sorted(store.records(), key=lambda record: record.started_utc)


def epoch_s(records: Sequence[RunRecord]) -> float:
    """Seconds of an epoch of a training without faults, its first step left out."""
    (record,) = records
    assert isinstance(record.spec.work, Train)
    own = [w for w in record.windows if w.phase != "warm-up"]
    return (own[-1].start_s + own[-1].elapsed_s - own[0].start_s) / record.spec.work.epochs


def row(fault_every_s: float, records: Sequence[RunRecord]) -> dict[str, Any]:
    """The measured shares of a training, and the forecast."""
    found, last = goodput_of(records), records[-1]
    if found is None or not last.ok:
        raise SystemExit(f"the training did not complete: {last.outcome.message}")
    faults = len(records) - 1
    cost_s, interval_s = last.figure("checkpoint_cost_s"), last.figure("checkpoint_interval_s")
    assert cost_s is not None
    write_s, rule_s = last.figure("checkpoint_write_s"), last.figure("checkpoint_rule_s")
    restart_s = found.start_s / len(records)
    expected = goodput(
        interval_s or rule_s or 1.0, cost_s, fault_every_s, restart_s, write_s or 0.0
    )
    return {
        "fault_every_s": fault_every_s,
        "faults": faults,
        "elapsed_s": found.elapsed_s,
        "useful": found.share,
        "repeated": found.repeated_s / found.elapsed_s,
        "starts": found.start_s / found.elapsed_s,
        "forecast": expected,
        "interval_s": interval_s,
        "rule_s": rule_s,
        "cost_s": cost_s,
        "write_s": write_s,
        "restart_s": restart_s,
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="little-cnn")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--fault-every", default="120,300,1200", help="seconds, separated by commas"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of each training")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    return parser.parse_args()


def main() -> None:
    """Train, kill and print."""
    given = arguments()
    rows = []
    with tempfile.TemporaryDirectory(prefix="cubemesh-goodput-") as temporary:
        calibrated = Path(temporary, "calibration")
        calibrated.mkdir()
        each_s = epoch_s(train(calibrated, 5, None, given))
        epochs = max(2, round(60 * given.minutes / each_s))
        print(f"{platform.node()}, {datetime.now(UTC):%Y-%m-%d}, {epochs} epochs of {each_s:.2f} s")
        for fault_every_s in map(float, given.fault_every.split(",")):
            folder = Path(temporary, f"{fault_every_s:g}")
            folder.mkdir()
            found = row(fault_every_s, train(folder, epochs, fault_every_s, given))
            rows.append(found)
            print(
                f"a fault every {fault_every_s:g} s: {found['faults']} faults in "
                f"{found['elapsed_s']:.0f} s, useful {found['useful']:.1%} (forecast "
                f"{found['forecast']:.1%}), repeated {found['repeated']:.1%}, starts "
                f"{found['starts']:.1%}; interval {found['interval_s'] or 0:.2f} s, rule "
                f"{found['rule_s']:.2f} s, cost {1000 * found['cost_s']:.0f} ms, write "
                f"{1000 * found['write_s']:.0f} ms, restart {found['restart_s']:.1f} s",
                flush=True,
            )
    if given.json:
        Path(given.json).write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
