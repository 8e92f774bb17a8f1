"""Agent of a multi-host run on another host: starts this host's ranks and streams their events.

Started through ssh, it reads requests from stdin and replies on stdout, a JSON object a line
(multi_host_launcher.py is the other end): first what this host is, then its clock as often as
requested, then one job, whose events it passes on as they come, the stacks of its ranks on request,
and their traces when they have ended. The ranks' key-value store is at the other end too, and its
messages go the same way. When stdin ends, the connection is lost, and everything started ends.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from cubemesh import __version__
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.kv_store import Message, MessageReader, send_message
from cubemesh.frameworks.contract.rendezvous import Rendezvous, SupportsDistributed
from cubemesh.measure.telemetry.gpu_set import gpu_of, read_gpus, visible
from cubemesh.schema.machine import Gpu
from cubemesh.schema.serialization import from_plain
from cubemesh.untrusted import open_plain_file
from cubemesh.worker.forkserver import (
    forward_stack_request,
    frozen_imports,
    prepare,
    redirect,
    work_as_rank,
)
from cubemesh.worker.launch.host_replies import (
    MOST_TRACE_BYTES,
    OUTPUT_CHARACTERS,
    TRACE_PART_BYTES,
)
from cubemesh.worker.launch.ranks import EXITS_FILE, parse_exit_codes, write_exit_codes
from cubemesh.worker.report import limits
from cubemesh.worker.report.events import EventReader
from cubemesh.worker.run.job_file import Job, trace_file

POLL_S = 0.05
CPUINFO = Path("/proc/cpuinfo")
INTERFACES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""Environment variable → its value for an interface; with = NCCL takes an exact name."""


class HostAgent:
    """Runs one job."""

    def __init__(self) -> None:
        # A framework that prints must not print into the protocol.
        self._requests, self._replies = os.dup(0), os.dup(1)
        redirect(0, os.devnull, os.O_RDONLY)
        os.dup2(2, 1)
        self._reader = MessageReader(self._requests)
        self._received: deque[Message] = deque()

    def serve(self) -> int:
        """0 when the job has ended; 1 without a job."""
        first = self._receive()
        if first is None:
            return 1
        os.environ.update(first["environment"])
        try:
            interface = interface_of(address_toward(first["toward"]))
            with frozen_imports():
                framework = entry(first["framework"]).load()
                framework.preload()
        except (OSError, ImportError) as error:
            self._reply(fault=f"{type(error).__name__}: {error}")
            return 1
        for name, form in INTERFACES.items():
            os.environ.setdefault(name, form.format(interface))
        self._reply(here=_greeting(first["framework"]))
        while (request := self._receive()) is not None:
            if "job" in request:
                self._run(request, framework)
                return 0
            self._reply(clock=time.perf_counter())
        return 1

    def _run(self, request: dict[str, Any], framework: Any) -> None:
        folder = Path(tempfile.mkdtemp(prefix="cubemesh-"))
        try:
            job = from_plain(Job, request["job"])
            gpus = () if job.spec.placement.device == "cpu" else visible(read_gpus(), os.environ)
            job = dataclasses.replace(
                job,
                folder=str(folder),
                usable_cores=len(os.sched_getaffinity(0)),
                gpu_memory_bytes=gpus[0].memory_bytes if gpus else None,
                gpu_uuid=gpus[0].uuid if gpus else None,
                gpu_uuids=tuple(gpu.uuid for gpu in gpus),
            )
            job.write()
            store, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                store.close()
                _become_agent(job, framework, Rendezvous(**request["rendezvous"], store=theirs))
            theirs.close()
            with store:
                self._pass_on(pid, folder, gpus, store)
            self._reply(exits=_exits(folder), outputs=_outputs(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _pass_on(self, pid: int, folder: Path, gpus: Sequence[Gpu], store: socket.socket) -> None:
        """Pass on events, stacks and messages of the store until the agent ends; kill it when the
        connection is lost."""
        readers: dict[int, EventReader] = {}
        sent: dict[Path, str] = {}
        looked = 0.0
        alive = True
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(store, selectors.EVENT_READ, MessageReader(store.fileno()))
            while alive:
                for ready, _ in selector.select(POLL_S):
                    if ready.fileobj is store:
                        try:
                            for message in ready.data.read():
                                self._reply(store=message)
                        except (EOFError, OSError):  # the agent has ended
                            selector.unregister(store)
                    elif not self._read():
                        os.killpg(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                        raise SystemExit(1)
                while self._received:
                    request = self._received.popleft()
                    if "store" in request:
                        with contextlib.suppress(OSError):  # the agent has ended
                            send_message(store, request["store"])
                    else:
                        os.kill(pid, signal.SIGUSR1)  # the only other request now is for stacks
                if time.monotonic() < looked + POLL_S:
                    continue
                looked = time.monotonic()
                alive = os.waitpid(pid, os.WNOHANG) == (0, 0)
                for path in folder.glob("events-*.jsonl"):
                    readers.setdefault(_rank_of(path), EventReader(path, _rank_of(path)))
                for rank, reader in readers.items():
                    for event in reader.read():
                        self._reply(rank=rank, event=with_names(event, gpus))
                for path in folder.glob("stacks-*.txt"):
                    text = path.read_text(errors="replace")
                    if text != sent.get(path, ""):
                        sent[path] = text
                        self._reply(rank=_rank_of(path), stacks=text)
        for rank, reader in readers.items():
            warning = reader.refusals(f"rank {rank}")
            if warning is not None:
                self._reply(rank=rank, event=warning)
            self._send_trace(folder, rank)

    def _send_trace(self, folder: Path, rank: int) -> None:
        """Send a rank's trace, if there is one and it is not too large."""
        try:
            file = open_plain_file(folder, trace_file(rank))
        except ValueError:
            return
        with file:
            if os.fstat(file.fileno()).st_size <= MOST_TRACE_BYTES:
                while part := file.read(TRACE_PART_BYTES):
                    self._reply(rank=rank, trace=base64.b64encode(part).decode())

    def _receive(self) -> Message | None:
        """The next request; None where the connection is lost."""
        while not self._received:
            if not self._read():
                return None
        return self._received.popleft()

    def _read(self) -> bool:
        """Read requests; False where the connection is lost."""
        try:
            self._received += self._reader.read()
        except EOFError:
            return False
        return True

    def _reply(self, **reply: Any) -> None:
        line = json.dumps(reply).encode() + b"\n"
        while line:
            line = line[os.write(self._replies, line) :]


def _become_agent(job: Job, framework: SupportsDistributed, rendezvous: Rendezvous) -> NoReturn:
    """Run the framework's agent for this host's ranks in the forked child; does not return."""
    code = 1
    try:
        os.setpgid(0, 0)
        limits.die_with_parent(os.getppid())
        signal.signal(signal.SIGUSR1, forward_stack_request)
        prepare(job.agent_output_path)
        ranks = job.spec.placement.devices // rendezvous.hosts
        failed = framework.launch(work_as_rank, str(job.path), ranks, rendezvous)
        write_exit_codes(job, failed)
        code = 0
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _rank_of(path: Path) -> int:
    """Rank of a file such as `events-3.jsonl`."""
    return int(path.stem.rpartition("-")[2])


def with_names(event: dict[str, Any], gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Adds the product name of the device to a rank's event: only this host knows it."""
    if event["event"] != "rank":
        return event
    gpu = gpu_of(event["device"], gpus)
    if gpu is not None:
        return {**event, "device_name": gpu.name, "device_uuid": gpu.uuid}
    is_gpu = event["device"].startswith("cuda")
    return event if is_gpu else {**event, "device_name": processor_name()}


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """Processor model; empty where the kernel does not report it."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == "model name"), "")


def address_toward(host: str) -> str:
    """This host's address on the route to another; OSError without a route."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing: the kernel looks up the route
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Network interface with this address; OSError without one."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == address for a in addresses):
            return name
    raise OSError(f"no network interface has the address {address}")


def _greeting(framework: str) -> dict[str, Any]:
    software = {"Python": platform.python_version(), "cubemesh": __version__}
    for package in entry(framework).packages:
        try:
            software[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # of a framework's package names, one is installed
    return {"host": socket.gethostname(), "software": software}


def _exits(folder: Path) -> dict[int, int]:
    """Exit codes of this host's failed ranks; where the agent died, of all that had started."""
    try:
        return parse_exit_codes((folder / EXITS_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return dict.fromkeys(map(_rank_of, folder.glob("events-*.jsonl")), 1)


def _outputs(folder: Path) -> dict[str, str]:
    """Last output of each rank."""
    return {
        path.stem.rpartition("-")[2]: path.read_text(errors="replace")[-OUTPUT_CHARACTERS:]
        for path in folder.glob("output-*.txt")
        if path.stem.rpartition("-")[2].isdecimal()
    }
