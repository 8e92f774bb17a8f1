"""Forkserver of the command line: processes of `cubemesh` without a second of imports each.

    tests ──arguments, environment, three file descriptors──▶ server ──fork──▶ cubemesh …

The server is an interpreter that has imported the command and computed nothing. Its forks are
processes of their own, with real signals, pipes and exit codes. A closed stream is None in `sys`,
as the interpreter sets it at its start.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

FILES = 3
"""stdin, stdout and stderr."""


class Forked:
    """A process of the command; used as a `subprocess.Popen`."""

    def __init__(self, server: Forkserver, pid: int, reads: Sequence[IO[str]]) -> None:
        self._server = server
        self.pid = pid
        self.stdout, self.stderr = reads

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._server.exit_code(self.pid, wait=False)

    def wait(self) -> int:
        """The exit code, as soon as it ended."""
        code = self._server.exit_code(self.pid, wait=True)
        assert code is not None
        return code

    @property
    def returncode(self) -> int | None:
        """As `poll`."""
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to it; its number stays its own until the server is asked for its end."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str, str]:
        """What is left of stdout and of stderr; waits for its end."""
        texts = ["", ""]

        def read_errors() -> None:
            texts[1] = self.stderr.read()

        reader = threading.Thread(target=read_errors)
        reader.start()
        texts[0] = self.stdout.read()
        reader.join()
        self.wait()
        self.stdout.close()
        self.stderr.close()
        return texts[0], texts[1]


class Forkserver:
    """The interpreter that has imported the command. `close` ends it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._codes: dict[int, int] = {}

    def start(
        self,
        *words: str,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
        environment: dict[str, str] | None = None,
        ignored: Sequence[int] = (),
        folder: str | None = None,
        limits: Mapping[int, int] | None = None,
    ) -> Forked:
        """`cubemesh` with these arguments, in a session of its own; it ignores the signals
        `ignored`. A stream is PIPE, a file descriptor, or None: it is closed. `limits` are soft
        ones of `resource`; `folder` is where it works, that of the tests if None."""
        given, reads, ours = [os.open(os.devnull, os.O_RDONLY)], [], []
        ours.append(given[0])
        for stream in (stdout, stderr):
            read, write = os.pipe()
            reads.append(os.fdopen(read, encoding="utf-8"))
            ours.append(write)
            given.append(write if stream in (subprocess.PIPE, None) else stream)
        request = {
            "words": words,
            "environment": {**os.environ, **(environment or {})},
            "closed": [n for n, stream in ((1, stdout), (2, stderr)) if stream is None],
            "ignored": list(map(int, ignored)),
            "folder": folder or os.getcwd(),
            "limits": list((limits or {}).items()),
        }
        socket.send_fds(self._socket, [json.dumps(request).encode()], given)
        for number in ours:
            os.close(number)
        return Forked(self, self._answer(), reads)

    def run(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """As `start`; waits for its end."""
        process = self.start(*words, **options)
        out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.wait(), out, err)

    def exit_code(self, pid: int, wait: bool) -> int | None:
        """The exit code of a fork; None while it runs."""
        if pid not in self._codes:
            self._socket.send(json.dumps({"pid": pid, "wait": wait}).encode())
            code = self._answer()
            if code is None:
                return None
            self._codes[pid] = code
        return self._codes[pid]

    def _answer(self):
        text = self._socket.recv(1 << 16)
        assert text, "the forkserver ended"
        return json.loads(text)

    def close(self) -> None:
        """End the server; its forks go on."""
        self._socket.close()
        self._process.wait()


def serve(requests: socket.socket) -> None:
    """Fork and reap until the tests close their end."""
    import typer.main

    import command_tree
    import cubemesh
    from cubemesh.cli import app, main

    for name in cubemesh.__all__:
        getattr(cubemesh, name)
    for module in ("cubemesh.views.summary", "cubemesh.web.server"):
        with suppress(ImportError):
            importlib.import_module(module)
    command_tree.build_once()
    typer.main.get_command(app)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page it looks at
    while True:
        text, files, _, _ = socket.recv_fds(requests, 1 << 20, FILES)
        if not text:
            return
        request = json.loads(text)
        if "pid" in request:
            ended, status = os.waitpid(request["pid"], 0 if request["wait"] else os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            requests.send(json.dumps(code).encode())
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            become(request, files)
            main()
        for number in files:
            os.close(number)
        requests.send(json.dumps(pid).encode())


def become(request: dict, files: Sequence[int]) -> None:
    """Be the process that was asked for, as if it had just been started."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number in request["closed"]:
        os.close(number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        is_open = number not in request["closed"]
        raw = io.FileIO(number, "w", closefd=False) if is_open else None
        stream = raw and io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", line_buffering=name == "stderr"
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # ignored if nohup started the tests
        ignored = number in request["ignored"]
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for number, soft in request["limits"]:
        resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
    sys.argv = ["cubemesh", *request["words"]]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
