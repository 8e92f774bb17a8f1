"""Processes that tests fork instead of starting an interpreter, which would import for a second.

    tests ──words, variables, folder, cores, streams──▶ template ──fork──▶ process

A template has imported what its forks need, and computed nothing. `become` gives a fork what
a new interpreter would have. Who needs a process takes one of these:

    forks.Forked              a function, in a fork of the process that tests
    script_server.run_script  a script, or code, that needs PyTorch or cubemesh
    forkserver (fixture)      `cubemesh …` (cli_forkserver; for a shell: command_on_path)
    forked_servers (fixture)  the servers and describing processes that an executor starts
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

REQUEST_BYTES = 1 << 20
FILES = 3
"""stdin, stdout and stderr."""


class Forked:
    """A process that calls a function, its prints in a pipe."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            os.dup2(write, 1)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = sys.__stderr__  # not what pytest captures
            end_after(function, *arguments)
        os.close(write)
        self.stdout = os.fdopen(read)

    def wait(self) -> int:
        """The exit code, negative for a signal, as soon as it ended."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def communicate(self) -> tuple[str, int]:
        """What it prints until its end, and its exit code."""
        with self.stdout:
            text = self.stdout.read()
        return text, self.wait()


class Template:
    """A process that forks on request, as the tests have it. `close` ends it; its forks go on."""

    def __init__(self, connection: socket.socket, wait: Callable[[], object]) -> None:
        self._connection, self._wait = connection, wait
        self._asking = threading.Lock()

    @classmethod
    def start(cls, file: str, *words: str) -> Self:
        """An interpreter that runs a file of tests/support with `words`, after the number of the
        socket of its requests; see `connection_of_script`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, file, str(theirs.fileno()), *words],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return cls(ours, process.wait)

    @classmethod
    def fork(cls, serve: Callable[[socket.socket], object]) -> Self:
        """A fork of this process, which serves the requests."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        if (pid := os.fork()) == 0:
            ours.close()
            end_after(serve, theirs)
        theirs.close()
        return cls(ours, lambda: os.waitpid(pid, 0))

    def ask(self, request: dict[str, Any], files: Sequence[int] = ()) -> Any:
        """Send a request with file descriptors, and wait for the answer."""
        with self._asking:
            socket.send_fds(self._connection, [json.dumps(request).encode()], list(files))
            answer = self._connection.recv(REQUEST_BYTES)
        assert answer, "the template ended"
        return json.loads(answer)

    def close(self) -> None:
        with suppress(OSError):  # closing alone does not end it while a thread still receives
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._wait()


def connection_of_script() -> socket.socket:
    """The socket of the requests of a template that is a script."""
    return socket.socket(fileno=int(sys.argv[1]))


def requests(connection: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Each request to a template, with its files, until the tests close their end."""
    while True:
        text, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES, FILES)
        if not text:
            return
        yield json.loads(text), files
        for number in files:
            os.close(number)


def answer(connection: socket.socket, value: Any) -> None:
    connection.send(json.dumps(value).encode())


def freeze() -> None:
    """Before forks: a garbage collection in one would copy every page it looks at."""
    gc.collect()
    gc.freeze()


def process_request(
    words: Sequence[str],
    environment: dict[str, str] | None = None,
    folder: str | None = None,
    **others: Any,
) -> dict[str, Any]:
    """What `become` gives a process: arguments, all variables, working folder (those of this
    process if None) and cores. Others: `own_session` (default: true), `closed` streams, `ignored`
    signals, soft `limits` of resources."""
    return {
        "words": [*words],
        "environment": dict(os.environ if environment is None else environment),
        "folder": folder or os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        **others,
    }


def become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Be the process of a request, as if an interpreter had just been started with `files` as
    stdin, stdout and stderr."""
    faulthandler.disable()
    if request.get("own_session", True):
        os.setsid()
    _default_signals(request.get("ignored", ()))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    _streams(request.get("closed", ()))
    os.environ.clear()
    os.environ.update(request["environment"])
    _show_variables()
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    for number, soft in request.get("limits", ()):
        resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
    sys.argv = request["words"]


def _default_signals(ignored: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # ignored if nohup started the tests
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


def _show_variables() -> None:
    """Have /proc/PID/environ list the variables of this process, those of cubemesh first, as far as
    there is room: the kernel reads the memory that the variables of the template had."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    text = b""
    for name, value in sorted(os.environb.items(), key=lambda v: not v[0].startswith(b"CUBEMESH_")):
        line = name + b"=" + value + b"\0"
        if len(text) + len(line) <= end - start:
            text += line
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _streams(closed: Sequence[int]) -> None:
    """stdout and stderr as the interpreter sets them: None where they are closed."""
    for number in closed:
        os.close(number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = None if number in closed else io.FileIO(number, "w", closefd=False)
        stream = raw and io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", line_buffering=name == "stderr"
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def end_after(function: Callable[..., object], *arguments: Any) -> NoReturn:
    """Call a function in a fork, and end it with the exit code that a script would have."""
    code = 1
    try:
        function(*arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        finally:
            os._exit(code)
