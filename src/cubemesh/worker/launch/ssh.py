"""How is another host reached, and spoken to? By ssh, with a JSON object a line in each direction.

Inside a Slurm allocation srun reaches it; `CUBEMESH_SSH` names another command. The other end is
remote.py.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SSH_VARIABLE = "CUBEMESH_SSH"
"""Environment variable: the command that reaches a host, in place of ssh."""
READY_S = 300.0
"""How long a host may take to be reached and to import the framework."""
CLOSE_S = 5.0
"""How long a host may take to end its ranks."""
PINGS = 5


class HostFault(Exception):
    """A host cannot take part; the message names it and says why."""


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
        except (BrokenPipeError, ValueError):  # the other end is closed, or this one
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
