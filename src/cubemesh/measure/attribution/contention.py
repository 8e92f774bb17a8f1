"""Contention: what had the processors of this run while its step was ready to run.

The run-queue delay of the step's thread is measured in each step (`run_queue.py`). Who ran
meanwhile is known from CPU times on the processors that this run may use, between two windows:

    neighbours   other programs: the processors' busy time, less this process and its children
    input        the threads of this run that prepare batches
    runtime      its other threads, such as gloo's; more compute threads than processors

The delay is divided in proportion to these CPU times. Of a step with several compute threads, the
other ones' delays count too: the step waits for the last of them. Their delays are taken as
independent in time, so fractions d last 1 − (1 − d₁)(1 − d₂)… together. Time stolen by a
hypervisor is divided over the busy processors in proportion to their CPU time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cubemesh.measure.telemetry.host import HostReader, Reader, Reading
from cubemesh.measure.telemetry.run_queue import ThreadTime, threads_of_process


@dataclass(frozen=True, kw_only=True)
class Competition:
    """CPU seconds by who used them, and what the step lost besides its own thread's delay, in an
    interval of `elapsed_s`."""

    elapsed_s: float
    neighbours_s: float = 0.0
    input_s: float = 0.0
    runtime_s: float = 0.0
    stolen_s: float = 0.0
    """Stolen from the step's threads."""
    workers_s: float = 0.0
    """Lost to delays of the step's other compute threads."""

    def over(self, elapsed_s: float) -> Competition:
        """The same at the same rates, over another interval."""
        times = elapsed_s / self.elapsed_s if self.elapsed_s > 0 else 0.0
        return Competition(
            elapsed_s=elapsed_s,
            neighbours_s=times * self.neighbours_s,
            input_s=times * self.input_s,
            runtime_s=times * self.runtime_s,
            stolen_s=times * self.stolen_s,
            workers_s=times * self.workers_s,
        )


def total(found: Sequence[Competition]) -> Competition:
    """Of several intervals together."""
    return Competition(
        elapsed_s=math.fsum(c.elapsed_s for c in found),
        neighbours_s=math.fsum(c.neighbours_s for c in found),
        input_s=math.fsum(c.input_s for c in found),
        runtime_s=math.fsum(c.runtime_s for c in found),
        stolen_s=math.fsum(c.stolen_s for c in found),
        workers_s=math.fsum(c.workers_s for c in found),
    )


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counters of the machine and of this process at one moment."""

    host: Reading
    threads: Mapping[int, ThreadTime]
    helpers: frozenset[int]
    """Threads that prepare batches or sample telemetry: Python's own, but the step's."""


class CompetitionReader:
    """Reads what competed with the step since the last reading. Make and call it in the step's
    thread; `threads` is the number of compute threads, `fed` whether others prepare batches."""

    def __init__(
        self,
        threads: int,
        *,
        fed: bool,
        host: Reader | None = None,
        threads_of: Callable[[], Mapping[int, ThreadTime]] = threads_of_process,
    ) -> None:
        self._threads, self._fed = threads, fed
        self._host, self._threads_of = host or HostReader(), threads_of
        self._own = threading.get_native_id()
        self._last = self._now()

    def read(self) -> Competition:
        """Since the last call."""
        before, self._last = self._last, self._now()
        return competition(
            before,
            self._last,
            own=self._own,
            threads=self._threads,
            cores=self._host.cores,
            fed=self._fed,
        )

    def _now(self) -> Counters:
        python = {t.native_id for t in threading.enumerate() if t.native_id is not None}
        return Counters(
            host=self._host.read(),
            threads=self._threads_of(),
            helpers=frozenset(python - {self._own}),
        )


def competition(
    before: Counters, after: Counters, *, own: int, threads: int, cores: int, fed: bool
) -> Competition:
    """What competed with thread `own` and its `threads` − 1 workers between two moments. Workers
    are the busiest threads that are not Python's."""
    elapsed_s = after.host.time_s - before.host.time_s
    never = ThreadTime(0.0, 0.0)
    spent = {}
    for number, time in after.threads.items():
        then = before.threads.get(number, never)
        spent[number] = ThreadTime(time.ran_s - then.ran_s, time.delayed_s - then.delayed_s)
    native = [number for number in spent if number not in after.helpers and number != own]
    native.sort(key=lambda number: -spent[number].ran_s)
    workers, rest = native[: threads - 1], native[threads - 1 :]
    helping_s = math.fsum(spent[n].ran_s for n in spent if n in after.helpers)
    runtime_s = math.fsum(spent[number].ran_s for number in rest)
    working_s = math.fsum(spent[number].ran_s for number in workers)
    if threads > cores:
        runtime_s += working_s
    if not fed:
        helping_s, runtime_s = 0.0, runtime_s + helping_s
    busy_s = after.host.cores_busy_s - before.host.cores_busy_s
    stolen_s = after.host.stolen_s - before.host.stolen_s
    tree_s = after.host.tree_cpu_s - before.host.tree_cpu_s
    ran_s = busy_s - stolen_s
    stepped_s = spent.get(own, never).ran_s + working_s
    return Competition(
        elapsed_s=elapsed_s,
        neighbours_s=max(0.0, ran_s - tree_s),
        input_s=helping_s,
        runtime_s=runtime_s,
        stolen_s=stolen_s * min(1.0, stepped_s / ran_s) if ran_s > 0 else 0.0,
        workers_s=_lost_to_workers(
            [spent[n].delayed_s for n in workers],
            spent.get(own, never).delayed_s,
            elapsed_s,
        ),
    )


def _lost_to_workers(delays: Sequence[float], own_s: float, elapsed_s: float) -> float:
    """Seconds in which a worker is delayed and the own thread is not."""
    if elapsed_s <= 0:
        return 0.0
    running = [1 - min(1.0, delay_s / elapsed_s) for delay_s in (own_s, *delays)]
    return elapsed_s * (running[0] - math.prod(running))


def divided(delay_s: float, by: Competition) -> tuple[float, float, float]:
    """A delay in seconds divided over (neighbours, input, runtime); all to neighbours where nothing
    was seen to run."""
    spent = (by.neighbours_s, by.input_s, by.runtime_s)
    together = math.fsum(spent)
    if together <= 0:
        return delay_s, 0.0, 0.0
    neighbours, fed, runtime = (delay_s * one / together for one in spent)
    return neighbours, fed, runtime
