"""Forkserver of an agent: jobs begin at once, forked from a process that has imported them.

    agent ──{"job": 1, "assignment": …, "environment": …}, log──▶ server ──fork──▶ child
          ──{"job": 1, "signal": 15}──▶
          ◀──{"job": 1, "exit": status}, {"job": 1, "failed": reason}──

One JSON object a message, over a Unix socket. The URL of a store may hold a password: it is in a
message, never on a command line. The server opens no store and starts no thread, because neither a
connection to a database nor a thread survives a fork; so `cubemesh agent` forks it before it opens
its store, and any other program starts an interpreter for it.

The kernel kills the server when its agent ends, and the children when the server ends. Server and
children lead sessions of their own, so Ctrl-C in the terminal reaches only the agent. The server
blocks the signals that end programs; a child takes them as soon as it can handle them.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import IO, Any, NoReturn, Self

from cubemesh.jobs import child
from cubemesh.worker.report.limits import die_with_parent, name_process

MESSAGE_BYTES = 1 << 17
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(kw_only=True)
class JobProcess:
    """A child as its agent knows it."""

    number: int
    exit_code: int | None = None
    """Negative for a signal; None while it runs."""
    failure: str = ""
    """Why it could not be forked."""


@dataclass(kw_only=True)
class JobServer:
    """The agent's end of the protocol above; `spawn` or `fork` starts a server, `close` ends it."""

    connection: socket.socket
    end: Callable[[], None]
    """Kills the server and waits for its end."""
    alive: bool = True
    _running: dict[int, JobProcess] = field(default_factory=dict)
    _started: int = 0

    @classmethod
    def spawn(cls) -> Self:
        """A server in an interpreter of its own."""
        ours, theirs = _sockets()
        with theirs:
            given = [str(theirs.fileno()), str(os.getpid())]
            with _blocked():
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "cubemesh.jobs.forkserver", *given],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )

        def end() -> None:
            process.kill()
            process.wait()

        return cls(connection=ours, end=end)

    @classmethod
    def fork(cls) -> Self:
        """A server that shares the imports of this process, which must have opened no store and
        started no thread."""
        ours, theirs = _sockets()
        parent = os.getpid()
        with _blocked():
            pid = os.fork()
            if pid == 0:
                try:
                    ours.close()
                    os.setsid()
                    _redirect(0, os.devnull, os.O_RDONLY)
                    _redirect(1, os.devnull, os.O_WRONLY)
                    serve(theirs, parent)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
        theirs.close()

        def end() -> None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

        return cls(connection=ours, end=end)

    def start(
        self, given: child.Assignment, environment: Mapping[str, str], log: IO[bytes]
    ) -> JobProcess:
        """Have a child forked for the job; `environment` is added to that of the agent, `log` gets
        its output. OSError if the server has ended."""
        self._started += 1
        process = JobProcess(number=self._started)
        request = {
            "job": process.number,
            "assignment": asdict(given),
            "environment": dict(environment),
        }
        socket.send_fds(self.connection, [json.dumps(request).encode()], [log.fileno()])
        self._running[process.number] = process
        return process

    def send_signal(self, process: JobProcess, number: int) -> None:
        """Send a signal to a child, unless it has ended."""
        if process.exit_code is None:
            with contextlib.suppress(ConnectionError):  # its end is noticed
                self._send(job=process.number, signal=number)

    def poll(self) -> None:
        """Note which children have ended; all, if the server has."""
        while self.alive:
            try:
                text = self.connection.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                text = b""
            if not text:
                self.alive = False
                break
            reply = json.loads(text)
            process = self._running.pop(reply["job"])
            process.failure = reply.get("failed", "")
            process.exit_code = reply.get("exit", 1)
        for process in self._running.values():
            process.exit_code = -signal.SIGKILL
        self._running.clear()

    def close(self) -> None:
        """End the server, and with it every child."""
        self.alive = False
        if self.connection.fileno() >= 0:
            self.end()
            self.connection.close()

    def _send(self, **request: Any) -> None:
        self.connection.send(json.dumps(request).encode())


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block the signals that end programs; a process started meanwhile blocks them too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _sockets() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def serve(agent: socket.socket, parent: int) -> None:
    """Fork and reap children until the agent, process `parent`, closes its end."""
    die_with_parent(parent)
    name_process("cubemesh-jobs")
    gc.freeze()  # a collection in a child would copy every page it looks at
    _Server(agent).serve()


class _Server:
    """The server's end."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._pid = os.getpid()
        self._children: dict[int, int] = {}
        # SIGCHLD only has to end the wait: its number arrives in this pipe.
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._agent, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fd for key, _ in selector.select()]
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._reap()
                if self._agent.fileno() in ready:
                    text, logs, _, _ = socket.recv_fds(self._agent, MESSAGE_BYTES, 1)
                    if not text:
                        return
                    self._handle(json.loads(text), logs)

    def _handle(self, request: dict[str, Any], logs: list[int]) -> None:
        if "assignment" in request:
            self._fork(request, logs[0])
            os.close(logs[0])
            return
        for pid, job in self._children.items():
            if job == request["job"]:  # not yet reaped, so the number is still this child's
                os.kill(pid, request["signal"])

    def _fork(self, request: dict[str, Any], log: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._reply(job=request["job"], failed=error.strerror)
            return
        if pid == 0:
            self._become_child(request, log)
        self._children[pid] = request["job"]

    def _become_child(self, request: dict[str, Any], log: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._agent.close()
            os.close(self._woken)
            os.close(self._wake)
            _log_into(log)
            os.environ.update(request["environment"])
            given = child.Assignment(**request["assignment"])
            sys.argv = ["cubemesh-job", str(given.job_id)]  # what a device's lock names
            die_with_parent(self._pid)
            child.handle_signals()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            code = child.run(given)
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
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                job = self._children.pop(pid)
                self._reply(job=job, exit=os.waitstatus_to_exitcode(status))

    def _reply(self, **reply: Any) -> None:
        self._agent.send(json.dumps(reply).encode())


def _log_into(log: int) -> None:
    """Write what this process prints into the file `log`."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(log, number)
        stream = io.TextIOWrapper(
            io.FileIO(number, "w", closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.close(log)


def _redirect(number: int, path: str, flags: int) -> None:
    opened = os.open(path, flags)
    os.dup2(opened, number)
    os.close(opened)


if __name__ == "__main__":
    from cubemesh.jobs import forkserver  # not __main__, where Python warns of each fork

    forkserver.serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
