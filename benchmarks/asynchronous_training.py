"""Accuracy, staleness and speed of asynchronous training.

1. Digits are learned over paired seeds, synchronously (all-reduce) and asynchronously: the mean gap
   in accuracy with its standard error, and whether it is within two of them.
2. From the server's version counters of those runs: the mean staleness relative to N − 1, and the
   fraction of updates that follow one of another worker.
3. One worker sleeps in each of its steps: samples/s of every worker.

    python benchmarks/asynchronous_training.py
    python benchmarks/asynchronous_training.py --device cuda --devices 4 --json asynchronous.json

Exit code 1 if the mean staleness differs from N − 1 by more than 0.1, if workers do not alternate,
or if a slow worker costs another one more than a quarter of its speed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cubemesh import networks
from cubemesh.data import open_for
from cubemesh.data.feed import Feed
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch import build, join, launch
from cubemesh.machines import probe
from cubemesh.measure.timing.timer import FreeRunning, Lockstep, measure
from cubemesh.parallel import strategies
from cubemesh.runs import Executor
from cubemesh.schema import (
    Budget,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Train,
    TrainSteps,
)
from cubemesh.store import Store
from in_memory_log import InMemoryLog

SYNCHRONOUS = "all-reduce"
ASYNCHRONOUS = ("asynchronous", "asynchronous-aware")
SLEEPS_STEPS = 3
"""A slowed worker sleeps as long as so many of its steps take: a quarter of its speed is left."""
STALE_WITHIN = 0.1
KEPT = 0.75
"""Fraction of its speed that a worker keeps with a slow one that it does not wait for."""


def training(given: argparse.Namespace, sync: str, seed: int) -> RunSpec:
    """One training of digits."""
    return RunSpec(
        work=Train(
            network="little-cnn",
            data="digits",
            batch_per_device=given.batch,
            epochs=given.epochs,
            optimizer="rmsprop",
            learning_rate=1e-4,
            seed=seed,
        ),
        placement=Placement(device=given.device, devices=given.devices),
        program=ProgramSettings(sync=sync),
    )


def learned(given: argparse.Namespace) -> dict[str, list[RunRecord]]:
    """The records of all trainings, by strategy, seed after seed, interleaved."""
    names = (SYNCHRONOUS, *ASYNCHRONOUS)
    specs = [training(given, name, seed) for seed in range(given.seeds) for name in names]
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(f"{folder}/store.sqlite") as store,
        Executor(store, machine=probe()) as executor,
    ):
        records = list(executor.run(specs))
    for record in records:
        if not record.ok:
            sys.exit(f"{record.spec.program.sync}: {record.outcome.message}")
    return {name: records[n :: len(names)] for n, name in enumerate(names)}


def gap(ones: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """(mean, standard error) of others − ones, pair by pair."""
    differences = [b - a for a, b in zip(ones, others, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences), error


def tell_learned(records: dict[str, list[RunRecord]], devices: int) -> tuple[dict[str, Any], bool]:
    """Print accuracy, staleness and turns; as data, and whether they are as they should be."""
    reached = {name: [r.figures["accuracy"].value for r in rs] for name, rs in records.items()}
    results: dict[str, Any] = {SYNCHRONOUS: {"accuracy": reached[SYNCHRONOUS]}}
    print(f"{SYNCHRONOUS}: accuracy {statistics.fmean(reached[SYNCHRONOUS]):.4f}")
    good = True
    for name in ASYNCHRONOUS:
        mean, error = gap(reached[SYNCHRONOUS], reached[name])
        within = abs(mean) <= 2 * error
        figures = [r.figures for r in records[name]]
        stale = statistics.fmean(f["staleness"].value for f in figures)
        turns = statistics.fmean(f["updates_taking_turns"].value for f in figures)
        good = good and abs(stale - (devices - 1)) <= STALE_WITHIN and turns > 0
        print(
            f"{name}: accuracy {statistics.fmean(reached[name]):.4f}, {mean:+.4f} ± {error:.4f} "
            f"(standard error of {len(figures)} pairs) from {SYNCHRONOUS}: "
            f"{'within' if within else 'NOT within'} two standard errors; mean staleness "
            f"{stale:.3f} (N − 1 is {devices - 1}), {100 * turns:.0f} % of updates follow another "
            "worker's"
        )
        results[name] = {
            "accuracy": reached[name],
            "gap": mean,
            "gap_standard_error": error,
            "within_two": within,
            "staleness": stale,
            "taking_turns": turns,
        }
    return results, good


def slowed_rank(job: str) -> None:
    """A rank of the third part: measures itself, with or without a sleeping rank."""
    given = json.loads(Path(job).read_text())
    rank, ranks = int(os.environ["RANK"]), given["devices"]
    device = f"cuda:{rank}" if given["device"] == "cuda" else "cpu"
    if device == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        each = len(cores) // ranks
        os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])
    group = join(device, 120.0)
    network = networks.build("little-cnn")
    work = TrainSteps(network="little-cnn", batch_per_device=given["batch"])
    samples = given["batch"] * ranks
    source = open_for(network, "synthetic", None, "train", seed=0, samples_needed=samples)
    sync = strategies.make(given["sync"], group)
    program = build(
        BuildRequest(
            network=network,
            work=work,
            placement=Placement(),
            program=ProgramSettings(sync=given["sync"]),
            sync=sync,
            device=device,
            threads=len(os.sched_getaffinity(0)) if device == "cpu" else 1,
            group=group,
        )
    )
    program.load(network.draw(0))
    placed = program.place(next(iter(Feed(source, given["batch"], 0, rank=rank, ranks=ranks))))
    sleep_s = given["sleep_s"] if rank == ranks - 1 else 0.0

    def step() -> None:
        program.train_step(placed)
        if sleep_s:
            time.sleep(sleep_s)

    free_running = strategies.strategy(given["sync"]).free_running
    windows = measure(
        step,
        program.synchronize,
        program.clock,
        samples_per_step=given["batch"],
        budget=Budget(seconds=given["seconds"]),
        log=InMemoryLog(),
        pace=FreeRunning(rank, group.poll_flag)
        if free_running
        else Lockstep(group.broadcast_object),
    ).windows
    rate = sum(w.samples for w in windows) / sum(w.elapsed_s for w in windows)
    Path(f"{job}-{rank}").write_text(json.dumps(rate))
    program.close()
    group.close()


def rates(given: argparse.Namespace, sync: str, sleep_s: float) -> list[float]:
    """Samples a second of each rank; the last sleeps so long in each of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job")
        own = {name: getattr(given, name) for name in ("device", "devices", "batch", "seconds")}
        job.write_text(json.dumps({**own, "sync": sync, "sleep_s": sleep_s}))
        failed = launch(slowed_rank, str(job), given.devices)
        if failed:
            sys.exit(f"{sync}: ranks failed: {failed}")
        return [json.loads(Path(f"{job}-{rank}").read_text()) for rank in range(given.devices)]


def tell_slowed(given: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Print what a sleeping worker does to each exchange; as data, and whether the others keep
    their speed where they do not wait for it."""
    results, good = {}, True
    for sync in (SYNCHRONOUS, ASYNCHRONOUS[0]):
        equal = rates(given, sync, 0.0)
        sleep_s = SLEEPS_STEPS * given.batch / equal[-1]
        slowed = rates(given, sync, sleep_s)
        if sync in ASYNCHRONOUS:
            good = good and all(b >= KEPT * a for a, b in zip(equal[:-1], slowed, strict=False))
        words = ", ".join(f"{a:.0f} → {b:.0f}" for a, b in zip(equal, slowed, strict=True))
        share = sum(slowed) / sum(equal)
        print(
            f"{sync}, the last of {given.devices} workers sleeping {1e3 * sleep_s:.1f} ms in a "
            f"step: samples/s of each {words}; together {sum(equal):.0f} → {sum(slowed):.0f} "
            f"({100 * share:.0f} %)"
        )
        results[sync] = {"sleep_s": sleep_s, "equal": equal, "slowed": slowed}
    return results, good


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all three; 1 where one is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="of each device")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each timing")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    slowed, free = tell_slowed(given)
    found, counted = tell_learned(learned(given), given.devices)
    if given.json:
        given.json.write_text(json.dumps({"slowed": slowed, "learned": found}, indent=1))
    return 0 if free and counted else 1


if __name__ == "__main__":
    sys.exit(main())
