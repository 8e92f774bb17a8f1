"""One job on several hosts: an agent on each, started through ssh, whose events come back.

    worker ──ssh──▶ host a: `cubemesh.worker host`  ──fork──▶ agent ──fork──▶ ranks
      │  ◀── events, line by line ──────────────
      └────ssh──▶ host b: the same                  agents meet at the first host (c10d)

On the way in each host says what it is: Python, cubemesh and the framework must be the same on all.
Then its clock is read five times; the reading that came back fastest tells how far it is from this
host's, to half of its round trip. Events are told on this host's clock. Inside a Slurm allocation
hosts are reached by srun; `CUBEMESH_SSH` names another command.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cubemesh.model.outcome import Outcome, Status
from cubemesh.model.plain import to_plain
from cubemesh.worker.events import EventLog, events_path, read_events
from cubemesh.worker.job import Job

SSH_VARIABLE = "CUBEMESH_SSH"
"""Environment variable: the command that reaches a host, in place of ssh."""
PASSED = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "OMP_", "MKL_")
"""How variables begin that hosts get as they are here."""
READY_S = 300.0
"""How long a host may take to be reached and to import the framework."""
CLOSE_S = 5.0
"""How long a host may take to end its ranks."""
PINGS = 5


class HostFault(Exception):
    """A host cannot take part; the message names it and says why."""


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """What a host says of itself."""

    host: str
    address: str
    port: int
    software: Mapping[str, str]
    """Name → version: python, cubemesh, the framework's packages."""


class Host:
    """The other end of one ssh."""

    def __init__(self, name: str, folder: Path, environ: Mapping[str, str] = os.environ) -> None:
        self.name = name
        self._errors = folder / f"host-{name.replace('/', '_')}.txt"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                command(name, environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
            )
        self._unread = b""

    def say(self, **request: Any) -> None:
        """Send one line; HostFault where nobody reads it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self.fault("is gone") from None

    def hear(self, timeout_s: float | None) -> dict[str, Any]:
        """The next line; HostFault where none comes."""
        assert self._process.stdout is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not selector.select(left):
                    raise self.fault(f"said nothing within {timeout_s:g} s")
                text = os.read(self._process.stdout.fileno(), 65536)
                if not text:
                    raise self.fault("is gone")
                self._unread += text
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            heard = json.loads(line)
        except ValueError:
            heard = None
        if not isinstance(heard, dict):
            raise self.fault(f"said {line[:80].decode(errors='replace')!r}")
        return heard

    def offset_s(self) -> float:
        """Seconds to add to its clock to get this host's."""
        found = []
        for _ in range(PINGS):
            before = time.perf_counter()
            self.say(ping=True)
            theirs = float(self.hear(READY_S)["clock"])
            after = time.perf_counter()
            found.append((after - before, (before + after) / 2 - theirs))
        return min(found)[1]

    def fault(self, what: str) -> HostFault:
        """The error, with the last that ssh or the host printed."""
        self._process.poll()
        said = self._errors.read_text(errors="replace").strip().splitlines()
        return HostFault(f"host {self.name} {what}{': ' + said[-1] if said else ''}.")

    def hang_up(self) -> None:
        """Say no more: the host then ends whatever still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Until ssh has ended, by itself or by force."""
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def command(host: str, environ: Mapping[str, str]) -> list[str]:
    """What starts a worker on `host`: Python at the same place as here."""
    words = [sys.executable, "-P", "-m", "cubemesh.worker", "host"]
    if environ.get("PYTHONPATH"):
        words = ["env", f"PYTHONPATH={environ['PYTHONPATH']}", *words]
    usual = "ssh -o BatchMode=yes -o ConnectTimeout=15"
    if "SLURM_JOB_ID" in environ:
        usual = "srun --nodes=1 --ntasks=1 --overlap --unbuffered"
    reach = shlex.split(environ.get(SSH_VARIABLE) or usual)
    if Path(reach[0]).name == "srun":
        return [*reach, f"--nodelist={host}", *words]
    return [*reach, host, shlex.join(words)]


def launch(job: Job) -> dict[int, int]:
    """Run `job` on all its hosts; the exit codes of the ranks that failed. Why hosts cannot meet,
    or that one was lost, is told as the outcome of the run."""
    names, folder = job.spec.placement.hosts, Path(job.folder)
    hosts: list[Host] = []
    followed: _Followed | None = None
    try:
        hosts += [Host(name, folder) for name in names]
        greetings = _greetings(hosts, job)
        check_alike(names, greetings)
        followed = _Followed(hosts, folder, _start(hosts, greetings, job))
        return followed.to_the_end()
    except (HostFault, OSError) as fault:
        _tell(fault, job)
        return {} if followed is None else followed.failed
    finally:
        for host in hosts:
            host.hang_up()
        for host in hosts:
            host.wait()


def _tell(fault: Exception, job: Job) -> None:
    """Make the fault the outcome of every rank that has told none."""
    origin = time.perf_counter() if job.origin is None else job.origin
    for rank in range(job.spec.placement.devices):
        path = events_path(Path(job.folder), rank)
        if not any(event["event"] == "outcome" for event in read_events(path)):
            log = EventLog(path, rank, origin)
            log.outcome(Outcome(status=Status.CRASHED, message=str(fault), origin="runner"))
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
            meeting={
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

    def __init__(self, hosts: Sequence[Host], folder: Path, offsets: Sequence[float]) -> None:
        self._hosts, self._folder = hosts, folder
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
                self._write(int(heard["rank"]), heard["event"], offset)
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
