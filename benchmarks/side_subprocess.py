"""Programs that train in processes of their own and are interleaved as if they were in one.

Framework packages, memory allocation and spinning threads belong to a process; sides that differ in
them cannot share one. Each side here runs in `side_worker.py`, which computes on request and waits
otherwise; for ab_comparison.py it is a side like any other.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from ab_comparison import Side
from side_worker import SideSpec

SCRIPT = Path(__file__).with_name("side_worker.py")
SOURCE = Path(__file__).parents[1] / "src"
MAX_MESSAGE = 160
"""Characters of the message of a process that failed to build."""


class BuildFailed(Exception):
    """A process that ended before it was ready, with its last output."""


class SideProcess:
    """A side in a process of its own. Built when `__init__` returns; raises BuildFailed."""

    def __init__(self, wanted: SideSpec, python: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [python, str(SCRIPT), json.dumps(asdict(wanted))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        self._steps = 0
        self._processor_s = 0.0
        self._answer()

    def side(self, clock: str = "wall") -> Side:
        """Steps are counted, and run when they are waited for. The clock `processor` advances by
        the processor time they take, of all threads together: on a machine that others use, that
        is what says something, of one thread."""
        watch = time.perf_counter if clock == "wall" else lambda: self._processor_s
        return Side(step=self._count, synchronize=self._run, clock=watch)

    def _count(self) -> None:
        self._steps += 1

    def _run(self) -> None:
        assert self._process.stdin is not None
        if self._steps:
            self._process.stdin.write(f"{self._steps}\n")
            self._steps = 0
            self._processor_s += float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            lines = [text for text in self._log.read().splitlines() if text.strip()]
            self.close()
            raise BuildFailed(
                lines[-1].strip()[:MAX_MESSAGE] if lines else "it ended without output"
            )
        return line

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
        self._log.close()
