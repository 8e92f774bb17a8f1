"""Processes that save records, and the records they save.

`save` opens a store and saves records, printing the id of each once it is stored. `kill` forks such
processes, one after the other, and ends each with SIGKILL: every other at a random moment of the
first seconds, the rest at a random moment of the seconds after their first record, however slow the
machine; a `*` in the location becomes the number of the process. `spool` leaves records in the
spool, prints their ids and waits; `recover` takes in what waits.

`python saving.py STORE` saves a record where no file can be written.
"""

import os
import random
import resource
import signal
import sys
import time
from dataclasses import replace as replace
from typing import Any

from cubemesh.schema import (
    Figure,
    Outcome,
    Placement,
    ProgramSettings,
    RunKey,
    RunRecord,
    RunSpec,
    Series,
    Status,
    TrainSteps,
    Window,
)
from cubemesh.schema.record import new_run_id
from cubemesh.store import Store
from cubemesh.store.location import locate
from cubemesh.store.spool import Spool, Spooled


def make_record(
    number: int = 0,
    *,
    batch: int = 8,
    network: str = "little-cnn",
    framework: str = "null",
    status: Status = Status.OK,
    machine_id: str = "m1",
    software_id: str = "s1",
    code_version: str = "0.1.0",
    started_utc: str | None = None,
    **others: Any,
) -> RunRecord:
    """The record of a short run; `number` sets its attempt, its moment, and so its id."""
    spec = RunSpec(
        work=TrainSteps(network=network, batch_per_device=batch),
        placement=Placement(device="cpu"),
        program=ProgramSettings(framework=framework),
    )
    key = RunKey(
        spec_id=spec.spec_id,
        machine_id=machine_id,
        software_id=software_id,
        code_version=code_version,
    )
    started = started_utc or f"2026-01-01T{number // 3600:02d}:{number // 60 % 60:02d}:00+00:00"
    return RunRecord(
        run_id=new_run_id(key, f"{started}{others}", number),
        spec=spec,
        key=key,
        started_utc=started,
        elapsed_s=2.5,
        outcome=Outcome(status=status, facts={"exit_code": 0, "signal": None}),
        attempt=number + 1,
        windows=tuple(
            Window(start_s=0.1 * i, elapsed_s=0.1, steps=3, samples=3 * batch) for i in range(12)
        ),
        figures={"throughput_per_s": Figure(value=240.0, unit="samples/s", low=239.5, high=241.0)},
        series=("resident_bytes",),
        **others,
    )


def make_series(samples: int = 700, rank: int = 0) -> Series:
    """A series of ten samples a second."""
    return Series(
        name="resident_bytes",
        rank=rank,
        times_s=tuple(0.1 * i for i in range(samples)),
        values=tuple(float(1000 + i) for i in range(samples)),
    )


def save(location: str, name: str, count: int) -> None:
    with Store.open(location) as store:
        for number in range(count):
            record = make_record(number, machine_id=name)
            store.save(record, [make_series()])
            # A single write: whatever kills the process, a line comes whole or not at all.
            os.write(sys.stdout.fileno(), f"{record.run_id}\n".encode())


def kill(location: str, kills: int, longest_s: float) -> None:
    chance = random.Random(1)
    for number in range(kills):
        hear, say = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(say, sys.stdout.fileno())
            save(location.replace("*", str(number)), f"m{number}", 1_000_000)
            os._exit(0)
        os.close(say)
        said = os.read(hear, 1) if number % 2 else b""
        time.sleep(chance.uniform(0.0, longest_s))
        os.kill(child, signal.SIGKILL)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            sys.exit(f"saver {number} ended before it was killed")
        with open(hear, "rb") as rest:
            os.write(sys.stdout.fileno(), said + rest.read())


def spool(location: str, name: str, count: int) -> None:
    place = locate(location)
    for number in range(count):
        record = make_record(number, machine_id=name)
        Spool(place).write(Spooled(store=place.name, record=record, series=(make_series(),)))
        print(record.run_id, flush=True)
    signal.pause()


def nowhere(location: str) -> None:
    with Store.open(location) as store:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        store.save_or_spool(make_record(), [make_series(5)])
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def recover(location: str) -> None:
    with Store.open(location) as store:
        store.recover()


if __name__ == "__main__":
    nowhere(sys.argv[1])
