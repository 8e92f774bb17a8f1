"""One job on several hosts: an agent on each, started through ssh, whose events come back.

    worker ──ssh──▶ host a: `cubemesh.worker host`  ──fork──▶ agent ──fork──▶ ranks
      │  ◀── events, line by line ──────────────
      └────ssh──▶ host b: the same                  agents meet at the first host (c10d)

On the way in each host says what it is: Python, cubemesh and the framework must be the same on all.
Then its clock is read five times; the reading that came back fastest tells how far it is from this
host's, to half of its round trip. Events are told on this host's clock. SIGUSR1, by which the
runner asks a worker for stacks, asks all hosts for those of their ranks.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.schema.outcome import Outcome, Status
from cubemesh.schema.serialization import to_plain
from cubemesh.worker.launch.ssh import READY_S, Host, HostFault
from cubemesh.worker.report.events import EventLog, events_path, read_events
from cubemesh.worker.run.job import Job

PASSED = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "OMP_", "MKL_")
"""How variables begin that hosts get as they are here."""


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """What a host says of itself."""

    host: str
    address: str
    port: int
    software: Mapping[str, str]
    """Name → version: python, cubemesh, the framework's packages."""


def launch(job: Job) -> dict[int, int]:
    """Run `job` on all its hosts; the exit codes of the ranks that failed. Why hosts cannot meet,
    or that one was lost, is told as the outcome of the run."""
    names, folder = job.spec.placement.hosts, Path(job.folder)
    if not entry(job.spec.program.framework).across_hosts:
        _tell(Outcome(status=Status.UNSUPPORTED, message=_one_host(job)), job)
        return {}
    hosts: list[Host] = []
    followed: _Followed | None = None
    signal.signal(signal.SIGUSR1, lambda number, frame: _ask_for_stacks(hosts if followed else ()))
    try:
        hosts += [Host(name, folder) for name in names]
        greetings = _greetings(hosts, job)
        check_alike(names, greetings)
        followed = _Followed(hosts, job, _start(hosts, greetings, job))
        return followed.to_the_end()
    except (HostFault, OSError) as fault:
        _tell(Outcome(status=Status.CRASHED, message=str(fault), origin="runner"), job)
        return {} if followed is None else followed.failed
    finally:
        for host in hosts:
            host.hang_up()
        for host in hosts:
            host.wait()


def _one_host(job: Job) -> str:
    """Why a framework is refused, and which are not."""
    able = ", ".join(name for name, line in FRAMEWORKS.items() if line.across_hosts)
    return (
        f"hosts={','.join(job.spec.placement.hosts)}: {job.spec.program.framework} runs on the "
        f"devices of one host. Leave hosts out, or set framework to one of {able}."
    )


def _ask_for_stacks(hosts: Sequence[Host]) -> None:
    """Each host then has its ranks write where they stand; one that is gone stays silent."""
    for host in hosts:
        with suppress(HostFault):
            host.say(stacks=True)


def _tell(outcome: Outcome, job: Job) -> None:
    """Make it the outcome of every rank that has told none."""
    origin = time.perf_counter() if job.origin is None else job.origin
    for rank in range(job.spec.placement.devices):
        path = events_path(Path(job.folder), rank)
        if not any(event["event"] == "outcome" for event in read_events(path)):
            log = EventLog(path, rank, origin)
            log.outcome(outcome)
            log.close()


def _greetings(hosts: Sequence[Host], job: Job) -> list[Greeting]:
    passed = {k: v for k, v in os.environ.items() if k.startswith(PASSED)}
    for number, host in enumerate(hosts):
        other = hosts[1 if number == 0 else 0].name.rpartition("@")[2]
        host.say(environment=passed, framework=job.spec.program.framework, toward=other)
    found = []
    for host in hosts:
        heard = host.hear(READY_S)
        if "here" not in heard:
            raise HostFault(f"host {host.name}: {heard.get('fault', heard)}")
        found.append(Greeting(**heard["here"]))
    return found


def check_alike(names: Sequence[str], greetings: Sequence[Greeting]) -> None:
    """HostFault where the software of a host differs from the first's."""
    first = greetings[0].software
    for name, greeting in zip(names, greetings, strict=True):
        for what in sorted({*first, *greeting.software}):
            here, there = first.get(what, "none"), greeting.software.get(what, "none")
            if here != there:
                raise HostFault(
                    f"host {names[0]} has {what} {here} and host {name} has {there}: what runs on "
                    "several hosts must be the same on all. Install the same version."
                )


def _start(hosts: Sequence[Host], greetings: Sequence[Greeting], job: Job) -> list[float]:
    """Send every host its job; how far each clock is from this host's."""
    name = uuid.uuid4().hex
    endpoint = f"{greetings[0].address}:{greetings[0].port}"
    offsets = [host.offset_s() for host in hosts]
    origin = time.perf_counter() if job.origin is None else job.origin
    for number, (host, greeting, offset) in enumerate(zip(hosts, greetings, offsets, strict=True)):
        host.say(
            job=to_plain(replace(job, origin=origin - offset)),
            rendezvous={
                "name": name,
                "hosts": len(hosts),
                "endpoint": endpoint,
                "is_first": number == 0,
                "address": greeting.address,
            },
        )
    return offsets


class _Followed:
    """Events of all hosts as they come, into the run's folder."""

    def __init__(self, hosts: Sequence[Host], job: Job, offsets: Sequence[float]) -> None:
        self._hosts, self._job, self._folder = hosts, job, Path(job.folder)
        self._offsets = [offset - offsets[0] for offset in offsets]
        self._faults: list[Exception] = []
        self.failed: dict[int, int] = {}
        self._ended = threading.Event()
        self._left = len(hosts)
        self._lock = threading.Lock()

    def to_the_end(self) -> dict[int, int]:
        """Until every host has ended, or one has failed: then the others are hung up on."""
        threads = [
            threading.Thread(target=self._follow, args=pair, daemon=True)
            for pair in zip(self._hosts, self._offsets, strict=True)
        ]
        for thread in threads:
            thread.start()
        self._ended.wait()
        if self.failed or self._faults:  # a moment for what the others still have to say
            time.sleep(2.0)
        if self._faults and not self.failed:
            raise self._faults[0]
        return self.failed

    def _follow(self, host: Host, offset: float) -> None:
        try:
            while True:
                heard = host.hear(None)
                if "exits" in heard:
                    break
                rank = int(heard["rank"])
                if "stacks" in heard:
                    replace(self._job, rank=rank).stacks_path.write_text(heard["stacks"])
                else:
                    self._write(rank, heard["event"], offset)
            for rank, text in heard["outputs"].items():
                (self._folder / f"output-{int(rank)}.txt").write_text(text)
            self.failed |= {int(rank): int(code) for rank, code in heard["exits"].items()}
        except (HostFault, OSError, KeyError, ValueError, TypeError) as fault:
            self._faults.append(fault)
        with self._lock:
            self._left -= 1
            if not self._left or self.failed or self._faults:
                self._ended.set()

    def _write(self, rank: int, event: dict[str, Any], offset: float) -> None:
        if event.get("event") == "rank":
            event = {**event, "clock_offset_s": offset}
        with open(events_path(self._folder, rank), "ab") as file:
            file.write(json.dumps(event).encode() + b"\n")
