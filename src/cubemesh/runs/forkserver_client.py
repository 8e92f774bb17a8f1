"""Client of a forkserver: starts it, requests workers from it and receives their exit codes.

worker/forkserver.py is the other end and describes the protocol.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cubemesh
from cubemesh.runs.devices import CUDA_ORDER
from cubemesh.runs.interpreters import source_environment
from cubemesh.runs.stopped import StoppedTime
from cubemesh.untrusted import parse_json, quoted
from cubemesh.worker.run.job_file import RUNS_FOLDER_VARIABLE

FORK_S = 60.0
"""Time limit for a fork; a machine that swaps is slow."""

MOST_REPLY_BYTES = 1 << 20
"""Most bytes of a reply."""

SLICE_S = 0.5
"""Interval of checking, while a reply is awaited, whether the server is stopped."""

CLOSE_S = 2.0
"""Time limit for a server to end by itself; one that still imports does not respond."""


class ServerDied(Exception):
    """The server has ended, and with it every worker; `exit_code` is negative for a signal.
    `limit_s` is the time limit, where the runner ended it because it did not respond, `stopped_s`
    how long it had been stopped (SIGSTOP), where it ended it for that."""

    def __init__(
        self, exit_code: int, log: str, limit_s: float | None, stopped_s: float = 0.0
    ) -> None:
        super().__init__(f"the forkserver ended with {exit_code}")
        self.exit_code = exit_code
        self.log = log
        self.limit_s = limit_s
        self.stopped_s = stopped_s


class Forkserver:
    """The server process of one framework. It leads its own session, so that Ctrl-C in the terminal
    reaches only the runner. `python` is its interpreter; None is the runner's own."""

    def __init__(self, framework: str, folder: Path, python: str | None = None) -> None:
        self.framework = framework
        self._log_path = folder / f"server-{framework}.txt"
        environment = _environment(folder, os.environ)
        if python is not None:
            environment = source_environment(folder, environment)
        command = [python or sys.executable, "-P", "-m", "cubemesh.worker", "serve"]
        command += ["--framework", framework, "--parent", str(os.getpid())]
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        self.stopped = StoppedTime(self._process.pid)
        self._unread = b""
        self._replies: deque[Any] = deque()
        self._ready = False

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def start(self, limit_s: float, stopped_s: float = math.inf) -> None:
        """Wait until the framework is imported, at most `limit_s`, and at most `stopped_s` while
        the server is stopped. Raises ServerDied."""
        if not self._ready:
            if self._reply(limit_s, stopped_s) is None:
                raise self._ended(limit_s)
            self._ready = True

    def run(self, job: Path, stopped_s: float = math.inf) -> int:
        """Fork a worker for the job in a file; its process id. The server must be ready, and is
        waited for at most `stopped_s` while it is stopped. Raises ServerDied."""
        self._send(run=str(job))
        reply = self._reply(FORK_S, stopped_s)
        if reply is None:
            raise self._ended(FORK_S)
        return self._integer(reply, "pid")

    def exit_code(self, timeout_s: float) -> int | None:
        """Exit code of the worker (negative: the signal), or None if it still runs after
        `timeout_s`. Raises ServerDied."""
        reply = self._reply(timeout_s)
        return None if reply is None else self._integer(reply, "exit")

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a worker; SIGKILL also goes to everything it started."""
        self._send(signal=number, pid=pid)

    def close(self) -> None:
        """End the server and every worker, by force if it does not respond."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _integer(self, reply: Any, name: str) -> int:
        """A field of a reply. A server without it, with which something interfered, is ended."""
        value = reply.get(name) if isinstance(reply, dict) else None
        if not isinstance(value, int):
            raise self._ended(why=f"the server replied {quoted(reply)}, without {name}")
        return value

    def _reply(self, timeout_s: float, stopped_s: float = math.inf) -> Any:
        """One reply; None after `timeout_s`. A server that is stopped for `stopped_s` is ended."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not self._replies:
                left_s = max(0.0, deadline - time.monotonic())
                if not selector.select(min(left_s, SLICE_S)):
                    if left_s <= SLICE_S:
                        return None
                    if (for_s := self.stopped.seconds()) > stopped_s:
                        raise self._ended(stopped_s=for_s)
                    continue
                text = os.read(self._process.stdout.fileno(), 65536)
                if not text:
                    raise self._died()
                *lines, self._unread = (self._unread + text).split(b"\n")
                if len(self._unread) > MOST_REPLY_BYTES:
                    raise self._ended(why="the server sent a reply without end")
                try:
                    self._replies.extend(parse_json(line) for line in lines)
                except ValueError as error:
                    raise self._ended(why=f"the server sent a reply, but {error}") from None
        return self._replies.popleft()

    def _send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._died() from None

    def _ended(
        self, limit_s: float | None = None, why: str = "", stopped_s: float = 0.0
    ) -> ServerDied:
        """End a server that does not reply, or not as it should, and its workers."""
        self._process.kill()
        return self._died(limit_s, why, stopped_s)

    def _died(
        self, limit_s: float | None = None, why: str = "", stopped_s: float = 0.0
    ) -> ServerDied:
        log = self._log_path.read_text(errors="replace")
        return ServerDied(self._process.wait(), f"{log}{why}", limit_s, stopped_s)


def _environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The runner's environment, with this cubemesh on the path."""
    own = {**CUDA_ORDER, **environ, RUNS_FOLDER_VARIABLE: str(folder)}
    source = Path(cubemesh.__file__).parent.parent
    if not {"site-packages", "dist-packages"} & set(source.parts):
        # A source tree. An installed package is found anyway, and its folder put before the
        # standard library would shadow it.
        own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), environ.get("PYTHONPATH")]))
    return own
