"""Launcher for several hosts: an agent on each, started through ssh, whose events come back.

    worker ──ssh──▶ host a: `cubemesh.worker host`  ──fork──▶ agent ──fork──▶ ranks
      │  ◀── events, line by line ──────────────
      └────ssh──▶ host b: the same

Each host first reports its software: Python, cubemesh and the framework must be the same on all.
Then its clock is read five times; the reading with the shortest round trip gives its offset, to
half of that round trip. Events are converted to this host's clock; traces come when the ranks have
ended. The ranks' key-value store, in which they exchange addresses, is here: its messages travel in
the same connections, so that it needs no port and only the hosts reach it. SIGUSR1, by which the
runner requests stacks from a worker, is passed to all hosts.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.frameworks.contract.kv_store import KVStore, Message
from cubemesh.schema.outcome import Outcome, Status
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_list
from cubemesh.untrusted import clean, quoted
from cubemesh.worker.launch.host_replies import OUTPUT_CHARACTERS, Greeting
from cubemesh.worker.launch.ssh import READY_S, HostFault, RemoteHost
from cubemesh.worker.report.event_schema import MOST_BYTES
from cubemesh.worker.report.events import EventLog, events_path, read_events
from cubemesh.worker.run.job_file import Job, trace_file

FIRST_EVENT_S = 300.0
"""Longest time from a host's job to the first event of its ranks, which import their framework
before."""
PASSED = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "OMP_", "MKL_")
"""Prefixes of environment variables that are copied to the hosts."""


def launch(job: Job) -> dict[int, int]:
    """Run `job` on all its hosts; exit codes of the failed ranks. An error of a host becomes the
    outcome of the run."""
    names = job.spec.placement.hosts
    if not entry(job.spec.program.framework).across_hosts:
        _log_outcome(Outcome(status=Status.UNSUPPORTED, message=_one_host(job)), job)
        return {}
    hosts: list[RemoteHost] = []
    followed: _EventCollector | None = None
    signal.signal(signal.SIGUSR1, lambda number, frame: _request_stacks(hosts if followed else ()))
    try:
        hosts += map(RemoteHost, names)
        greetings = _greetings(hosts, job)
        check_alike(names, greetings)
        followed = _EventCollector(hosts, job, _start(hosts, job))
        return followed.to_the_end()
    except (HostFault, OSError, UsageError) as fault:
        _log_outcome(Outcome(status=Status.CRASHED, message=str(fault), origin="runner"), job)
        return {} if followed is None else followed.failed
    finally:
        for host in hosts:
            host.close()
        for host in hosts:
            host.wait()


def _one_host(job: Job) -> str:
    """Message for a framework that runs on one host."""
    able = ", ".join(name for name, line in FRAMEWORKS.items() if line.across_hosts)
    return (
        f"hosts={','.join(job.spec.placement.hosts)}: {job.spec.program.framework} runs on one "
        f"host. Leave hosts out, or set framework to one of {able}."
    )


def _request_stacks(hosts: Sequence[RemoteHost]) -> None:
    """Request the stacks of all hosts' ranks; lost hosts are skipped."""
    for host in hosts:
        with suppress(HostFault):
            host.send(stacks=True)


def _answer(host: RemoteHost, message: Message) -> None:
    """Send an answer of the store to a host; a lost host is skipped."""
    with suppress(HostFault):
        host.send(store=message)


def _log_outcome(outcome: Outcome, job: Job) -> None:
    """Log the outcome for every rank that has none."""
    origin = time.perf_counter() if job.origin is None else job.origin
    for rank in range(job.spec.placement.devices):
        path = events_path(Path(job.folder), rank)
        if not any(event["event"] == "outcome" for event in read_events(path)):
            log = EventLog(path, rank, origin)
            log.outcome(outcome)
            log.close()


def _greetings(hosts: Sequence[RemoteHost], job: Job) -> list[Greeting]:
    passed = {k: v for k, v in os.environ.items() if k.startswith(PASSED)}
    for number, host in enumerate(hosts):
        other = hosts[1 if number == 0 else 0].name.rpartition("@")[2]
        host.send(environment=passed, framework=job.spec.program.framework, toward=other)
    found = []
    for host in hosts:
        reply = host.receive(READY_S)
        if reply.here is None:
            raise HostFault(f"host {host.name}: {clean(reply.fault or 'did not greet', 1000)}")
        found.append(reply.here)
    return found


def check_alike(names: Sequence[str], greetings: Sequence[Greeting]) -> None:
    """HostFault where a host's software differs from the first host's."""
    first = greetings[0].software
    for name, greeting in zip(names, greetings, strict=True):
        for what in sorted({*first, *greeting.software}):
            here, there = first.get(what, "none"), greeting.software.get(what, "none")
            if here != there:
                raise HostFault(
                    f"host {names[0]} has {what} {here} and host {name} has {there}. Install the "
                    "same version on all hosts."
                )


def _start(hosts: Sequence[RemoteHost], job: Job) -> list[float]:
    """Send every host its job; the offset of each host's clock."""
    offsets = [host.offset_s() for host in hosts]
    origin = time.perf_counter() if job.origin is None else job.origin
    for number, (host, offset) in enumerate(zip(hosts, offsets, strict=True)):
        host.send(
            job=to_plain(replace(job, origin=origin - offset)),
            rendezvous={"hosts": len(hosts), "number": number},
        )
    return offsets


class _EventCollector:
    """Writes the events of all hosts into the run's folder as they come, and serves the store."""

    def __init__(self, hosts: Sequence[RemoteHost], job: Job, offsets: Sequence[float]) -> None:
        self._hosts, self._job, self._folder = hosts, job, Path(job.folder)
        self._owners: dict[int, str] = {}
        self._written: dict[int, int] = {}
        self._with_outcome: set[int] = set()
        self._offsets = [offset - offsets[0] for offset in offsets]
        self._store = KVStore()
        self._faults: list[Exception] = []
        self.failed: dict[int, int] = {}
        self._ended = threading.Event()
        self._left = len(hosts)
        self._lock = threading.Lock()

    def to_the_end(self) -> dict[int, int]:
        """Wait until every host has ended, or one has failed."""
        threads = [
            threading.Thread(target=self._follow, args=pair, daemon=True)
            for pair in zip(self._hosts, self._offsets, strict=True)
        ]
        for thread in threads:
            thread.start()
        self._ended.wait()
        if self.failed or self._faults:  # a moment for the others' last events
            time.sleep(2.0)
        if self._faults and not self.failed:
            raise self._faults[0]
        return self.failed

    def _follow(self, host: RemoteHost, offset: float) -> None:
        # Once its ranks have a heartbeat, the runner notices where it ends.
        limit_s: float | None = FIRST_EVENT_S
        try:
            while True:
                reply = host.receive(limit_s)
                if reply.event is not None:
                    limit_s = None
                if reply.exits is not None:
                    break
                if reply.store is not None:
                    self._serve(host, reply.store)
                    continue
                if reply.rank is None:
                    raise host.fault("did not report on a rank")
                rank = self._own(host, reply.rank)
                if reply.stacks is not None:
                    replace(self._job, rank=rank).stacks_path.write_text(reply.stacks, "utf-8")
                elif reply.trace is not None:
                    self._write_trace(host, rank, reply.trace)
                else:
                    self._write(host, rank, reply.event or {}, offset)
            for number, text in (reply.outputs or {}).items():
                path = replace(self._job, rank=self._own(host, number)).output_path
                path.write_text(text[-OUTPUT_CHARACTERS:], "utf-8")
            codes = {self._own(host, n): code for n, code in reply.exits.items()}
            self._check_ended(host, codes)
            self.failed |= codes
        except (HostFault, OSError) as fault:
            self._faults.append(fault)
        finally:  # whatever happens: the run must not wait for this host
            with self._lock:
                self._left -= 1
                if not self._left or self.failed or self._faults:
                    self._ended.set()

    def _check_ended(self, host: RemoteHost, codes: Mapping[int, int]) -> None:
        """HostFault where a rank of a host that has ended reported no outcome and did not fail."""
        each = self._job.spec.placement.devices // len(self._hosts)
        first = each * self._hosts.index(host)
        silent = [
            rank
            for rank in range(first, first + each)
            if rank not in codes and rank not in self._with_outcome
        ]
        if silent:
            ranks = format_list([f"rank {rank}" for rank in silent])
            raise host.fault(f"ended without an outcome of {ranks}")

    def _serve(self, host: RemoteHost, request: Mapping[str, Any]) -> None:
        try:
            self._store.handle(request, partial(_answer, host))
        except ValueError as error:
            raise host.fault(f"sent an invalid message: {error}") from None

    def _own(self, host: RemoteHost, number: int | str) -> int:
        """The number of a rank of this host; HostFault for another's or none."""
        known = {str(n): n for n in range(self._job.spec.placement.devices)}
        rank = known.get(str(number))
        if rank is None:
            raise host.fault(f"reported on rank {quoted(number)}, which does not exist")
        owner = self._owners.setdefault(rank, host.name)
        if owner != host.name:
            raise host.fault(f"reported on rank {rank}, as host {owner} did")
        return rank

    def _write(self, host: RemoteHost, rank: int, event: Mapping[str, Any], offset: float) -> None:
        """Append an event to the rank's event file, whose reader checks it."""
        if event.get("event") == "outcome":
            self._with_outcome.add(rank)
        if event.get("event") == "rank":
            event = {**event, "clock_offset_s": offset}
        self._append(
            host, rank, events_path(self._folder, rank), json.dumps(event).encode() + b"\n"
        )

    def _write_trace(self, host: RemoteHost, rank: int, part: str) -> None:
        try:
            content = base64.b64decode(part, validate=True)
        except ValueError:
            raise host.fault(f"sent a trace of rank {rank} that is not base64") from None
        self._append(host, rank, self._folder / trace_file(rank), content)

    def _append(self, host: RemoteHost, rank: int, path: Path, content: bytes) -> None:
        self._written[rank] = self._written.get(rank, 0) + len(content)
        if self._written[rank] > MOST_BYTES:
            raise host.fault(f"reported more than {MOST_BYTES >> 30} GiB of rank {rank}")
        with open(path, "ab") as file:
            file.write(content)
