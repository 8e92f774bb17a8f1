"""A training step of the user's own code: throughput, FLOPs, input wait, attribution.

    build ─ warm-up ─ measure ─ (profile) ─ check

`build` imports the code and calls its function, which returns the step, or the step and its
batches. `check` makes two more steps: the loss that one returns is read, if it returns one, and the
FLOPs of the other are counted. Whatever the code does ends this run alone.

A process that the code forks may not return into the measurement: it would go on as a second
worker. It ends where it returns, and the run with the reason.
"""

from __future__ import annotations

import inspect
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from cubemesh.frameworks.contract.program import (
    Diverged,
    OwnStepProgram,
    SupportsOwnSteps,
    monotonic_s,
)
from cubemesh.measure.attribution.profile_windows import StepProfiler
from cubemesh.measure.timing.step_timestamps import StampedSteps
from cubemesh.schema.machine import Unknown
from cubemesh.schema.record import Figure, Window
from cubemesh.schema.work import OwnStep
from cubemesh.user_code import UserCodeError, UserObject, attempt, fail, load
from cubemesh.worker.report import memory
from cubemesh.worker.run.inputs import HostClock
from cubemesh.worker.run.job_file import trace_file, trace_name
from cubemesh.worker.run.steps import is_attributed, own_thread
from cubemesh.worker.run.task import Task, start_meters, time_steps

FORKED_FILE = "forked"
"""File in the run's folder by which a forked process says that it returned from user code."""
STEPS_OF_PEAK = 2
"""Steps in which the peak memory of a CPU is read: the first may allocate state for the next."""


class UserStep:
    """The user's step in this process, with its batches. Errors of the code become UserCodeError;
    a refused allocation stays what it is."""

    def __init__(self, named: UserObject, task: Task) -> None:
        self._named = named
        self._is_out_of_memory = task.framework.is_out_of_memory
        self._pid = os.getpid()
        self._forked = Path(task.folder, FORKED_FILE)
        self.steps = 0
        self.waits: list[tuple[float, float]] = []
        """For each batch (reading of the clock, seconds waited)."""
        self._batches: Iterable[Any] | None = None
        self._following: Iterator[Any] = iter(())
        self._taken = 0
        made = self._guarded(lambda: self._make(task.device), "making the step")
        self._step = self._parts_of(made)

    @property
    def has_batches(self) -> bool:
        """Whether each step takes a batch."""
        return self._batches is not None

    def take(self) -> Any:
        """The next batch; None where the step takes none. After the last the first follows."""
        if self._batches is None:
            return None
        before = monotonic_s()
        batch = self._guarded(self._next, f"taking batch {self._taken + 1:,}")
        self.waits.append((before, monotonic_s() - before))
        return batch

    def call(self, batch: Any) -> Any:
        """One step; returns what the step returns."""
        self.steps += 1
        try:
            return self._step() if self._batches is None else self._step(batch)
        except BaseException as error:
            fail(self._named, f"step {self.steps:,}", error, self._is_out_of_memory)
        finally:
            self._end_fork()

    def queue(self, batch: Any) -> None:
        """One step, whose result is dropped."""
        self.call(batch)

    def __call__(self) -> None:
        """One step with the next batch."""
        self.call(self.take())

    def check_forks(self) -> None:
        """UserCodeError where a forked process returned from user code."""
        if self._forked.exists():
            raise UserCodeError(
                f"{self._named.short} forked a process that returned from the step; a forked "
                "process must end itself, with os._exit."
            )

    def _make(self, device: str) -> Any:
        maker = load(self._named, self._is_out_of_memory)
        if not callable(maker):
            raise UserCodeError(
                f"{self._named.short} is of type {type(maker).__name__}; it must be a function "
                "that returns a step."
            )
        takes_device = "device" in _parameters(maker)
        return maker(device=device) if takes_device else maker()

    def _parts_of(self, made: Any) -> Callable[..., Any]:
        step, batches = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not callable(step) or not (batches is None or isinstance(batches, Iterable)):
            kind = type(made).__name__
            raise UserCodeError(
                f"{self._named.short} returned an object of type {kind}; it must return a step "
                "that can be called, or a tuple of the step and an iterable of its batches."
            )
        self._batches = batches
        return cast(Callable[..., Any], step)

    def _next(self) -> Any:
        found = next(self._following, self)
        if found is self:
            self._following = iter(cast(Iterable[Any], self._batches))
            found = next(self._following, self)
        if found is self:
            had = (
                f"ended after {self._taken} and do not begin again" if self._taken else "are empty"
            )
            raise UserCodeError(
                f"The batches of {self._named.short} {had}; give an iterable that can be repeated, "
                "such as a list or a DataLoader."
            )
        self._taken += 1
        return found

    def _guarded(self, ask: Callable[[], Any], doing: str) -> Any:
        try:
            return attempt(self._named, doing, ask, self._is_out_of_memory)
        finally:
            self._end_fork()

    def _end_fork(self) -> None:
        """End this process if the code forked it."""
        if os.getpid() != self._pid:
            try:
                self._forked.touch()
            finally:
                os._exit(0)


def own_step(task: Task) -> None:
    """Measure a step of the user's own code."""
    work, log = cast(OwnStep, task.spec.work), task.log
    assert isinstance(task.framework, SupportsOwnSteps), "check_supported requires it"
    meters = start_meters(task)
    program = task.framework.build_own_step(task.device, task.threads)
    memory.release_freed_memory()
    before_bytes = memory.held_bytes()
    with log.phase("build"):
        step = UserStep(UserObject(name=work.step, folder=work.import_from), task)
        memory.reset_peak()
        for _ in range(STEPS_OF_PEAK):
            step()
        peak_bytes = memory.peak_held_bytes()
        operators = not is_attributed(task.spec) or _calls_operators(program, step)
        attributed = _attribute(task, program, step, operators)

    def synchronize() -> None:
        program.synchronize()
        step.check_forks()

    step.waits.clear()
    measured, telemetry = time_steps(
        task,
        meters,
        HostClock(synchronize, program.clock),
        step if attributed is None else attributed.steps,
        work.samples,
        attributed,
    )
    waits = list(step.waits)
    if attributed is not None:
        with log.phase("profile"):
            attributed.finish()
        if attributed.trace is not None:
            log.artifact(trace_name(0), trace_file(0))
    telemetry.log_energy(measured.windows, sum(w.samples for w in measured.windows))
    if step.has_batches:
        log.figure("input_wait_s", input_wait(waits, measured.windows))
    _log_peak_memory(task, program, before_bytes, peak_bytes)
    with log.phase("check"):
        _check(task, program, step, operators)
        step.check_forks()


def input_wait(waits: Iterable[tuple[float, float]], windows: tuple[Window, ...]) -> Figure:
    """Mean wait of a measured step for its batch; `waits` are (time, seconds)."""
    inside, steps = [], sum(w.steps for w in windows)
    starts = [w.start_s for w in windows]
    for at, seconds in waits:
        place = bisect_right(starts, at) - 1
        if place >= 0 and at < starts[place] + windows[place].elapsed_s:
            inside.append(seconds)
    return Figure(
        value=math.fsum(inside) / steps, unit="s", n=steps, method="timestamps around each batch"
    )


def _calls_operators(program: OwnStepProgram, step: UserStep) -> bool:
    """Whether a step calls operators that the framework's profiler records."""

    def run() -> None:
        step()
        program.synchronize()

    return bool(program.profile(run)().events)


def _attribute(
    task: Task, program: OwnStepProgram, step: UserStep, operators: bool
) -> StepProfiler | None:
    """The profiler of the steps; None where none is requested, or the step calls no `operators`,
    which is logged."""
    if not is_attributed(task.spec):
        return None
    if not operators:
        why = (
            f"the step called no operator of {task.spec.program.framework}, whose profiler gives "
            "the parts of a step"
        )
        task.log.unmeasured(Unknown(what="attribution", why=why))
        return None
    thread = own_thread(program.clock)
    return StepProfiler(
        program=program,
        steps=StampedSteps(
            take=step.take,
            place=lambda batch: batch,
            queue=step.queue,
            clock=program.clock,
            thread=None if thread is None else thread.read,
            runs_ahead=program.device != "cpu",
        ),
        samples_per_step=cast(OwnStep, task.spec.work).samples,
        log=task.log,
        fed=step.has_batches,
        operators=True,
        trace=os.path.join(task.folder, trace_file(0)) if task.spec.budget.trace else None,
    )


def _check(task: Task, program: OwnStepProgram, step: UserStep, operators: bool) -> None:
    """Two more steps: Diverged where one returns a loss that is not finite, and the FLOPs of the
    other, unless it calls no `operators`."""
    loss = scalar(step.call(step.take()))
    if loss is not None and not math.isfinite(loss):
        raise Diverged(
            f"the step returned {loss}: the steps were timed, but a loss that is not finite may "
            "take other paths through the code."
        )
    counted, method, why = 0.0, "", ""
    if operators:
        try:
            counted, method = program.count_flops(step)
        except UserCodeError as error:  # as no step before did
            why = f"the step failed under torch.utils.flop_counter: {error}"
    if counted:
        task.log.figure("step_flops", Figure(value=counted, unit="FLOP", method=method))
    else:
        why = why or (
            "the step dispatched no operator that torch.utils.flop_counter counts (products, "
            "convolutions, attention)"
        )
        task.log.unmeasured(Unknown(what="FLOPs", why=why))


def scalar(value: Any) -> float | None:
    """A number, or an array of one number, as a float; None for anything else."""
    if isinstance(value, int | float):
        return float(value)
    size = getattr(value, "numel", None) or getattr(value, "size", None)
    try:
        count = size() if callable(size) else size
        return float(value) if count == 1 else None
    except Exception:
        return None


def _log_peak_memory(
    task: Task, program: OwnStepProgram, before_bytes: int | None, peak_bytes: int | None
) -> None:
    """On a CPU the growth of the process up to its peak in the first steps, before the profiler
    takes memory."""
    counted = program.peak_memory_bytes()
    method = "the framework's own count"
    if counted is None:
        if before_bytes is None or peak_bytes is None:
            return
        counted = max(0, peak_bytes - before_bytes)
        method = (
            f"peak of the process in the first {STEPS_OF_PEAK} steps, less what it held before "
            "the code was imported"
        )
    task.log.figure("peak_memory_bytes", Figure(value=counted, unit="B", method=method))


def _parameters(function: Any) -> frozenset[str]:
    """Names of the parameters of a function; empty where it does not say."""
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()
