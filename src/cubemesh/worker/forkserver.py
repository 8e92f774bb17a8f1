"""Forkserver: workers start in milliseconds, forked from a process that has imported the framework.

    runner ──{"run": JOB.json}──▶ server ──fork──▶ worker
           ──{"signal": 9, "pid": 77}──▶
           ◀──{"ready": seconds}, {"pid": 77, "job": …}, {"exit": status, "pid": 77}──

One JSON object a line, over the server's stdin and stdout. The server only imports: it computes
nothing, uses no GPU and starts no thread, because neither a CUDA context nor a thread survives a
fork. (A framework whose import alone starts threads must leave that import out of its `preload()`;
its workers then import it themselves.) If the import fails, the workers fail in the same way and
report it.

The kernel kills the server when the runner dies and the workers when the server dies. Each worker
leads a process group of its own: everything it started ends with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil

from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.rendezvous import SupportsDistributed
from cubemesh.measure.telemetry import nvml
from cubemesh.schema.outcome import Status
from cubemesh.worker.launch import multi_host_launcher as hosts
from cubemesh.worker.launch import ranks
from cubemesh.worker.report import limits
from cubemesh.worker.report.events import DISK_FULL, NO_ROOM
from cubemesh.worker.run.job_file import read_job
from cubemesh.worker.run.run_job import run_job

LAZY = ("numpy.ma", "numpy.random")
"""Modules that NumPy imports at the first median and the first random number of a process."""


def serve(framework: str, parent: int) -> None:
    """Serve workers for `framework` until stdin ends; `parent` is the runner's process id."""
    limits.die_with_parent(parent)
    limits.name_process("cubemesh-server")
    Server(framework).serve()


class Server:
    """The server end of the protocol above."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self._pid = os.getpid()
        self._workers: set[int] = set()
        # A framework that prints as it is imported must not print into the protocol.
        self._requests = os.dup(0)
        self._replies = os.dup(1)
        redirect(0, os.devnull, os.O_RDONLY)
        os.dup2(2, 1)
        # SIGCHLD only has to end the wait: its number arrives in this pipe.
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Preload, reply, then fork and reap until the runner closes its end."""
        start = time.perf_counter()
        self._preload()
        self._reply(ready=round(time.perf_counter() - start, 4))
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            unread = b""
            while True:
                ready = [key.fd for key, _ in selector.select()]
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._reap()
                if self._requests in ready:
                    text = os.read(self._requests, 65536)
                    if not text:
                        break
                    *lines, unread = (unread + text).split(b"\n")
                    for line in lines:
                        self._handle(json.loads(line))
        for pid in self._workers:
            _kill_group(pid)

    def _preload(self) -> None:
        with frozen_imports():
            try:
                for name in LAZY:
                    importlib.import_module(name)
                nvml.preload()
                entry(self._framework).load().preload()
            except Exception:
                traceback.print_exc()  # into the server's log; the worker reports it

    def _handle(self, request: dict[str, Any]) -> None:
        if "run" in request:
            self._fork(request["run"])
        elif request["pid"] in self._workers:
            # Not yet reaped, so the number still belongs to this worker and no other process.
            if request["signal"] == signal.SIGKILL:
                _kill_group(request["pid"])
            else:
                os.kill(request["pid"], request["signal"])

    def _fork(self, job: str) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(job)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the worker does it too: the first wins
        self._workers.add(pid)
        self._reply(pid=pid, job=job)

    def _become_worker(self, job: str) -> NoReturn:
        """Run the job in the forked child; does not return."""
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            for inherited in (self._requests, self._replies, self._woken, self._wake):
                os.close(inherited)
            limits.die_with_parent(self._pid)
            code = work(Path(job))
        except BaseException:
            traceback.print_exc()
        finally:
            # Not sys.exit: the server's stack below is not this process's.
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def _reap(self) -> None:
        for pid in list(self._workers):
            # Look without reaping first: while the worker is a zombie its group's number is not
            # reused, so everything it started can be killed safely.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            self._workers.remove(pid)
            self._reply(exit=os.waitstatus_to_exitcode(status), pid=pid)

    def _reply(self, **reply: Any) -> None:
        os.write(self._replies, json.dumps(reply).encode() + b"\n")


@contextlib.contextmanager
def frozen_imports() -> Iterator[None]:
    """Import without garbage collections, which take a fifth of the import of PyTorch and free
    1 MB; then freeze what there is: a collection in a worker would copy every page it looks at."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def work(job_path: Path) -> int:
    """Run the job in a file in this process, with its output in the run's folder; 0 if its outcome
    was written.

    A job on several devices starts as many processes here, unless a launcher has started this one
    as a rank; the exit code of a rank is 0 only if its outcome is ok. `NO_ROOM` where the disk of
    the run's folder is full.
    """
    try:
        return _work(job_path)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        return NO_ROOM


def _work(job_path: Path) -> int:
    job, own = read_job(job_path), ranks.rank_from_env()
    ranks.keep_to_loopback(job, own)
    ranks.dump_nccl_graphs(job, own)
    if own.ranks == 1 and job.spec.placement.hosts:
        prepare(job.agent_output_path)
        ranks.write_exit_codes(job, hosts.launch(job))
        return 0
    if own.ranks == 1 and ranks.can_launch(job):
        framework = entry(job.spec.program.framework).load()
        if isinstance(framework, SupportsDistributed):
            prepare(job.agent_output_path)
            signal.signal(signal.SIGUSR1, forward_stack_request)
            failed = framework.launch(work_as_rank, str(job.path), job.spec.placement.devices)
            ranks.write_exit_codes(job, failed)
            return 0
    job = ranks.as_rank(job)
    prepare(job.output_path)
    with _stack_dumps(job.stacks_path):
        outcome = run_job(job)
    return 0 if own.ranks == 1 or outcome.status is Status.OK else ranks.FAILED


def forward_stack_request(number: int, frame: object) -> None:
    """Signal handler of the agent: pass the request for stacks to its ranks."""
    for rank in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank.pid, number)


def work_as_rank(job_path: str) -> None:
    """Run a rank, forked from the agent."""
    limits.die_with_parent(os.getppid())
    # The agent's handler, inherited, would turn the signal by which it ends the ranks when one of
    # them fails into an exception, and each rank would report that as its own outcome.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = work(Path(job_path))
    with contextlib.suppress(OSError):  # the disk is full
        sys.stdout.flush()
    if code:  # a rank that is done returns: the agent waits for that
        os._exit(code)


def prepare(output: Path) -> None:
    """Name and limit this process, and redirect its output to a file."""
    limits.name_process("cubemesh-worker")
    limits.no_core_dump()
    limits.first_to_be_killed()
    redirect(1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(1, 2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed worker's output is complete


@contextlib.contextmanager
def _stack_dumps(stacks_path: Path) -> Iterator[None]:
    """A fatal signal prints every thread's stack into the output; SIGUSR1 writes them into
    `stacks_path` and the process continues. Both work while native code holds the interpreter."""
    faulthandler.enable(file=2)
    with open(stacks_path, "ab") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        try:
            yield
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def redirect(fd: int, path: str | Path, flags: int) -> None:
    """Redirect `fd` to the file at `path`."""
    opened = os.open(path, flags, 0o644)
    os.dup2(opened, fd)
    os.close(opened)


def _kill_group(pid: int) -> None:
    """Kill a worker that is not yet reaped, and everything it started."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
