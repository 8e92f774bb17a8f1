"""Several processes on one GPU that time in turns.

Compiling a program takes a core far longer than timing it takes the GPU. Processes that compile at
once and time one after the other use both: a process that times holds a lock and stops the others
(SIGSTOP), waits until the GPU is idle, and resumes them when it has timed nothing for
`IDLE_S`. What a stopped process had queued ends before the first timing. One that is inside a
compiler, which does not use the GPU, is not stopped: it waits for the turn's end when it has
compiled.

cuDNN times its algorithms at the first convolution of a shape, and PyTorch caches the fastest by
shape and `allow_tf32`, which has no effect on 16-bit numbers. It is set in a turn only, so that no
choice made while other processes used the GPU is used in a turn.

    turns = Turns(folder)
    turns.cover_kernels(2)     # also the trials of kernels and segments of cubemesh's programs
    with turns:
        …                      # times
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

IDLE_S = 0.05
"""Without a timing, before the others resume."""
QUIET_S = 3e-4
"""A launch and its end take less on an idle GPU."""
QUIET_LAUNCHES = 20
"""In a row, of an idle GPU."""
MOST_DRAIN_S = 5.0


class Turns:
    """The turn of this process."""

    def __init__(self, folder: Path) -> None:
        self._members = folder / "members"
        self._members.mkdir(parents=True, exist_ok=True)
        self._compiling = folder / f"compiling-{os.getpid()}"
        self._lock_file = open(folder / "lock", "a")  # noqa: SIM115
        self._own = threading.RLock()
        self._depth, self._holds, self._last = 0, False, 0.0
        self._ended = False
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)  # who times does not know this process yet
        (self._members / str(os.getpid())).touch()
        fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        self._probe = torch.zeros(1, device="cuda")
        threading.Thread(target=self._release_when_idle, daemon=True).start()

    def __enter__(self) -> None:
        with self._own:
            self._depth += 1
            torch.backends.cudnn.allow_tf32 = True
            if not self._holds:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX)
                self._holds = True
                self._signal(signal.SIGSTOP)
                self._drain()

    def __exit__(self, *_: object) -> None:
        with self._own:
            self._depth -= 1
            torch.backends.cudnn.allow_tf32 = self._depth > 0
            self._last = time.monotonic()

    def cover_kernels(self, threads: int) -> None:
        """Time kernels in turns: cubemesh's, before its programs are imported, and Inductor's.
        Compilers use so many threads."""
        events = importlib.import_module("cubemesh.kernels.cuda_events")
        own = events.time_ms

        def timed(run: Callable[[], object], *args: Any, **more: Any) -> float:
            run()  # compiles
            with self:
                found: float = own(run, *args, **more)
                return found

        events.time_ms = timed  # type: ignore[attr-defined]
        compilation = importlib.import_module("cubemesh.kernels.triton.compilation")
        compilation.MAX_THREADS = threads  # type: ignore[attr-defined]
        together = compilation.compiling_in_threads

        @contextlib.contextmanager
        def compiling_in_threads() -> Iterator[None]:
            with self.compiling(), together():
                yield

        compilation.compiling_in_threads = compiling_in_threads  # type: ignore[attr-defined]
        inductor = importlib.import_module("torch._inductor.compile_fx")
        compile_graph = inductor._compile_fx_inner

        @functools.wraps(compile_graph)
        def compile_fx_inner(*args: Any, **more: Any) -> Any:
            with self.compiling():
                return compile_graph(*args, **more)

        inductor._compile_fx_inner = compile_fx_inner  # type: ignore[attr-defined]
        heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
        tuner = heuristics.CachingAutotuner
        benchmark = tuner.benchmark_all_configs

        def in_turn(tuner: Any, *args: Any, **more: Any) -> Any:
            with self:
                return benchmark(tuner, *args, **more)

        tuner.benchmark_all_configs = in_turn

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """A block that does not use the GPU, in which others may time."""
        self._compiling.touch()
        try:
            yield
        finally:
            with self._own:
                if not self._holds:
                    fcntl.flock(self._lock_file, fcntl.LOCK_EX)  # who times does not stop this one
                self._compiling.unlink(missing_ok=True)
                if not self._holds:
                    fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def end(self) -> None:
        """Take a last turn, until this process has ended: the GPU frees its memory in it. The
        parent process then resumes the others (`resume`)."""
        self._ended = True
        self.__enter__()

    def _release(self) -> None:
        if self._holds:
            self._holds = False
            self._signal(signal.SIGCONT)
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def _release_when_idle(self) -> None:
        while not self._ended:
            time.sleep(IDLE_S / 2)
            with self._own:
                if self._depth == 0 and time.monotonic() - self._last > IDLE_S:
                    self._release()

    def _signal(self, number: signal.Signals) -> None:
        signal_members(self._members.parent, number, but=os.getpid())

    def _drain(self) -> None:
        torch.cuda.synchronize()
        end, quiet = time.monotonic() + MOST_DRAIN_S, 0
        while quiet < QUIET_LAUNCHES and time.monotonic() < end:
            time.sleep(1e-3)  # another process gets the GPU, if it has work for it
            start = time.perf_counter()
            self._probe.add_(1)
            torch.cuda.synchronize()
            quiet = quiet + 1 if time.perf_counter() - start < QUIET_S else 0


def signal_members(folder: Path, number: signal.Signals, but: int = 0) -> None:
    """Send a signal to every process that takes turns, `but` one; SIGSTOP to none that compiles."""
    for member in (folder / "members").iterdir():
        compiles = (folder / f"compiling-{member.name}").exists()
        if int(member.name) != but and not (compiles and number == signal.SIGSTOP):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(member.name), number)


def resume(folder: Path, ended: int) -> None:
    """Resume all, since a process ended."""
    for name in (f"members/{ended}", f"compiling-{ended}"):
        (folder / name).unlink(missing_ok=True)
    signal_members(folder, signal.SIGCONT)
