"""SSH connection to another host, with a JSON object a line in each direction.

In a Slurm allocation srun is used; `CUBEMESH_SSH` sets another command. The other end is
host_agent.py.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.untrusted import clean, quoted
from cubemesh.worker.launch.host_replies import MOST_BYTES, HostReply, parse_reply

SSH_VARIABLE = "CUBEMESH_SSH"
"""Environment variable: the command that connects to a host, instead of ssh."""
READY_S = 300.0
"""Time limit for connecting to a host and importing the framework there."""
CLOSE_S = 5.0
"""Time limit for a host to end its ranks."""
PINGS = 5
ERROR_BYTES = 1 << 16
"""Bytes at the end of ssh's errors that are kept, to search them for the last line."""
PIPE_BYTES = 1 << 20
"""Most bytes that a pipe holds."""
ERROR_CHARACTERS = 500
"""Most characters of that line."""


class HostFault(Exception):
    """A host failed; the message has its name and the reason."""


class RemoteHost:
    """Connection to one host."""

    def __init__(self, name: str, environ: Mapping[str, str] = os.environ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command(name, environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._replies, self._errors = self._process.stdout, self._process.stderr
        os.set_blocking(self._errors.fileno(), False)
        self._unread, self._last_errors = bytearray(), b""
        self._lock = threading.Lock()

    def send(self, **request: Any) -> None:
        """Send one request, from any thread; HostFault where the connection is lost."""
        assert self._process.stdin is not None
        line = json.dumps(request).encode() + b"\n"
        try:
            with self._lock:
                while line:
                    line = line[self._process.stdin.write(line) :]
        except (BrokenPipeError, ValueError):  # the other end is closed, or this one
            raise self.fault("lost the connection") from None

    def receive(self, timeout_s: float | None) -> HostReply:
        """The next reply; HostFault without one."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            selector.register(self._errors, selectors.EVENT_READ)
            searched = 0
            while (end := self._unread.find(b"\n", searched)) < 0:
                searched = len(self._unread)
                if searched > MOST_BYTES:
                    raise self.fault(f"sent a reply of more than {MOST_BYTES >> 20} MiB")
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(left)}
                if self._errors in ready and not self._read_errors():
                    selector.unregister(self._errors)
                if self._replies not in ready:
                    if left == 0.0:
                        raise self.fault(f"did not reply within {timeout_s:g} s")
                    continue
                text = os.read(self._replies.fileno(), 65536)
                if not text:
                    raise self.fault("lost the connection")
                self._unread += text
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        try:
            return parse_reply(line)
        except ValueError as error:
            reason = clean(str(error), 200)
            raise self.fault(
                f"replied {quoted(line.decode(errors='replace'))} ({reason})"
            ) from None

    def offset_s(self) -> float:
        """Seconds to add to its clock to get this host's clock."""
        found = []
        for _ in range(PINGS):
            before = time.perf_counter()
            self.send(ping=True)
            theirs = self.receive(READY_S).clock
            if theirs is None:
                raise self.fault("did not report its clock")
            after = time.perf_counter()
            found.append((after - before, (before + after) / 2 - theirs))
        return min(found)[1]

    def fault(self, what: str) -> HostFault:
        """The error, with the last output of ssh or the host."""
        self._process.poll()
        self._read_errors()
        output = self._last_errors.decode(errors="replace").strip().splitlines()
        said = f": {clean(output[-1], ERROR_CHARACTERS)}" if output else ""
        return HostFault(f"host {self.name} {what}{said}.")

    def _read_errors(self) -> bool:
        """Read what ssh and the host have written on stderr, and keep the end; False once that is
        closed."""
        try:
            text = os.read(self._errors.fileno(), PIPE_BYTES)
        except BlockingIOError:
            return True
        self._last_errors = (self._last_errors + text)[-ERROR_BYTES:]
        return bool(text)

    def close(self) -> None:
        """Close the connection: the host then ends its ranks."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Wait until ssh has ended; kill it after `CLOSE_S`."""
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def command(host: str, environ: Mapping[str, str]) -> list[str]:
    """Command that starts a worker on `host`, with Python at the same path as here."""
    words = [sys.executable, "-P", "-m", "cubemesh.worker", "host"]
    if environ.get("PYTHONPATH"):
        words = ["env", f"PYTHONPATH={environ['PYTHONPATH']}", *words]
    reach = connection_command(environ)
    if Path(reach[0]).name == "srun":
        return [*reach, f"--nodelist={host}", *words]
    return [*reach, host, shlex.join(words)]


def connection_command(environ: Mapping[str, str]) -> list[str]:
    """Command that connects to a host; UsageError for an invalid `CUBEMESH_SSH`."""
    usual = "ssh -o BatchMode=yes -o ConnectTimeout=15"
    if "SLURM_JOB_ID" in environ:
        usual = "srun --nodes=1 --ntasks=1 --overlap --unbuffered"
    text = environ.get(SSH_VARIABLE) or usual
    try:
        words = shlex.split(text)
    except ValueError as error:
        words, why = [], f"{error}".lower()
    else:
        why = "it is blank"
    if not words:
        raise UsageError(
            f"{SSH_VARIABLE}={text!r} is not a command: {why}. Set it to a command such as "
            "'ssh -p 2222', or unset it to use ssh."
        )
    return words
