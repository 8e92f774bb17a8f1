"""Servers of workers that are forked, not started: without the imports of cubemesh and a framework.

    tests ──command, environment, files──▶ template of a framework ──fork, fork──▶ server ──▶ worker

A template is an interpreter that has imported what a server of its framework imports
(`cubemesh.worker.forkserver`), and computed nothing. A server is a process of its own, and a child
of the tests as it is if they start it: the process between the two ends at once, and the tests
adopt what it leaves. Modules use it by `pytestmark = pytest.mark.usefixtures("forked_servers")`; a
server with another interpreter or other variables than the tests had at first is started.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from cubemesh.runs.devices import CUDA_ORDER

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
OWN = (
    *("XDG_", "CUBEMESH_RUNS_FOLDER", "PYTEST_", "PY_COLORS", "COLUMNS"),
    *("HOME", "USERPROFILE", "PWD", "OLDPWD"),
)
"""Variables, or their beginnings, that no import reads: they may differ from test to test."""


class Template:
    """The interpreter whose forks are servers of one framework."""

    def __init__(self, framework: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), framework],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, command: list[str], environment: dict[str, str], log: int) -> Any:
        """A server, as `subprocess.Popen` of its command line has it."""
        (stdin, requests), (replies, stdout) = os.pipe(), os.pipe()
        text = json.dumps({"words": command, "environment": environment, "folder": os.getcwd()})
        _adopt(True)
        try:
            self._socket.send(text.encode())
            socket.send_fds(self._socket, [b"files"], [stdin, stdout, log])
            answer = self._socket.recv(100)
        finally:
            _adopt(False)
            os.close(stdin)
            os.close(stdout)
        assert answer, "the template ended"
        return _process(command, int(answer), requests, replies)

    def close(self) -> None:
        """End it; its forks go on."""
        self._socket.close()
        self._process.wait()


def _adopt(adopting: bool) -> None:
    """Whether this process becomes the parent of processes whose parent ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(SUBREAPER, int(adopting), 0, 0, 0) == 0


def _process(command: list[str], pid: int, requests: int, replies: int) -> subprocess.Popen[bytes]:
    """The child `pid` as a Popen."""
    process: Any = subprocess.Popen.__new__(subprocess.Popen)
    process.args, process.pid, process.returncode = command, pid, None
    process.stdin, process.stdout, process.stderr = (
        os.fdopen(requests, "wb", buffering=0),
        os.fdopen(replies, "rb", buffering=0),
        None,
    )
    process._child_created, process._waitpid_lock = True, threading.Lock()
    process._sigint_wait_secs, process._input = 0.25, None
    process._communication_started, process.text_mode = False, False
    return process


class Templates:
    """A template of each framework, made when its first server is asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._made = stack, dict[str, Template]()
        self._variables = _read_by_imports({**CUDA_ORDER, "PYTHONPATH": "", **os.environ})

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """As `subprocess.Popen` for the command line of a server."""
        environment = options["env"]
        source, _, path = environment.get("PYTHONPATH", "").partition(os.pathsep)
        path = "" if path == source else path
        same = _read_by_imports({**environment, "PYTHONPATH": path}) == self._variables
        if command[0] != sys.executable or not same:
            return subprocess.Popen(command, **options)
        framework = command[command.index("--framework") + 1]
        if framework not in self._made:
            self._made[framework] = template = Template(framework)
            self._stack.callback(template.close)
        return self._made[framework].start(command, environment, options["stderr"].fileno())


def _read_by_imports(environment: Any) -> dict[str, str]:
    return {k: v for k, v in environment.items() if not k.startswith(OWN)}


@pytest.fixture(scope="session")
def templates() -> Iterator[Templates]:
    """Templates of servers; only asked for by `forked_servers`."""
    with ExitStack() as stack:
        yield Templates(stack)


@pytest.fixture(scope="module")
def forked_servers(templates: Templates) -> Iterator[None]:
    """Servers that this module's tests start in their own process are forks of templates."""
    from cubemesh.runs import forkserver_client

    own = SimpleNamespace(**{name: getattr(subprocess, name) for name in subprocess.__all__})
    own.Popen = templates.popen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver_client, "subprocess", own)
        yield


def serve(requests: socket.socket, framework: str) -> None:
    """Import what a server imports; then fork until the tests close their end."""
    from cubemesh.frameworks import entry
    from cubemesh.measure.telemetry import nvml
    from cubemesh.worker.__main__ import main
    from cubemesh.worker.forkserver import frozen_imports

    with frozen_imports():
        nvml.preload()
        entry(framework).load().preload()
    while text := requests.recv(1 << 20):
        _, files, _, _ = socket.recv_fds(requests, 100, 3)
        if not (between := os.fork()):
            if os.fork():
                os._exit(0)
            become(json.loads(text), files, requests)
            sys.exit(main(sys.argv[1:]))
        os.waitpid(between, 0)
        for number in files:
            os.close(number)


def become(request: dict, files: list[int], requests: socket.socket) -> None:
    """Be the server that was asked for, as if it had just been started."""
    words = request["words"]
    parent = int(words[words.index("--parent") + 1])
    while os.getppid() != parent:
        time.sleep(0)  # the process between the two ends
    os.sched_setaffinity(0, os.sched_getaffinity(parent))
    os.setsid()
    requests.send(str(os.getpid()).encode())
    requests.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:0] = [request["environment"]["PYTHONPATH"].partition(os.pathsep)[0]]
    sys.argv = ["cubemesh.worker", *words[words.index("serve") :]]


if __name__ == "__main__":
    sys.path.pop(0)  # as with `-P`
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
