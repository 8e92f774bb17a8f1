"""Measurement of a training step in the caller's own process, or of two, interleaved.

    import cubemesh
    batches = iter(loader)
    print(cubemesh.measure(lambda: train(next(batches)), samples=64))

Warm-up, windows, intervals, warnings, telemetry and energy are those of every run
(measure/timing/timer.py). A window ends with a wait for the GPU, if PyTorch uses one in this
process, or for the arrays that the last step returned, if they are JAX's. Within a window nothing
but the steps runs in this thread; benchmarks/own_step_overhead.py measures what that costs.
"""

from __future__ import annotations

import datetime
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.machines import probe
from cubemesh.measure.figures import figures
from cubemesh.measure.log import Log
from cubemesh.measure.telemetry.gpu_processes import GpuProcessWatch
from cubemesh.measure.telemetry.gpu_set import visible
from cubemesh.measure.telemetry.telemetry import Telemetry, open_meters
from cubemesh.measure.timing import timer
from cubemesh.measure.timing.interleaved_ab import (
    ALONE,
    SECOND_PROGRAM,
    InterleavedResult,
    Side,
    alternate,
)
from cubemesh.measure.validity import window_warnings
from cubemesh.runs.assemble import assemble
from cubemesh.runs.code_version import code_version
from cubemesh.runs.exit_status import WorkerExit
from cubemesh.schema import (
    Budget,
    Figure,
    Machine,
    Outcome,
    OwnStep,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Status,
    Warning,
)
from cubemesh.schema.comparison import Ratio
from cubemesh.schema.record import AGAINST, RunKey
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_interval, format_quantity
from cubemesh.user_code import UserObject
from cubemesh.user_code import digest as digest_of_code
from cubemesh.worker.run.task import log_machine_warnings

Step = Callable[[], Any]
_LIBRARIES = {"torch": "pytorch", "jax": "jax", "tensorflow": "tensorflow"}
"""Imported module → the framework that a record names."""


@dataclass(frozen=True, kw_only=True, repr=False)
class StepMeasurement:
    """The measurement of one step. Printed, it is two or three lines and its warnings."""

    record: RunRecord
    """As that of every run: windows, figures, telemetry, warnings."""
    stored: bool = False
    """Whether the record is in the store."""

    @property
    def throughput(self) -> Figure:
        """Samples per second, with its 95 % interval."""
        return self.record.figures["throughput_per_s"]

    @property
    def step_s(self) -> Figure:
        """Median over the windows of the seconds of a step, with its 95 % interval."""
        return self.record.figures["step_s"]

    @property
    def warnings(self) -> tuple[Warning, ...]:
        """What limits the figures."""
        return self.record.warnings

    def __repr__(self) -> str:
        work, windows = self.record.spec.work, self.record.measured
        assert isinstance(work, OwnStep)
        steps = sum(w.steps for w in windows)
        lines = [
            f"{work.step}: {_rate_text(self.throughput, work.samples)}",
            f"  {_step_text(self.step_s)} (median of {len(windows)} windows, {steps:,} steps)",
        ]
        if shown := _energy_text(self.record):
            lines.append(f"  {shown}")
        return "\n".join([*lines, *_warning_lines(self.warnings)])


@dataclass(frozen=True, kw_only=True, repr=False)
class InterleavedMeasurement:
    """Two steps measured interleaved, the second compared with the first."""

    names: tuple[str, str]
    samples: int
    throughputs: tuple[Figure, Figure]
    """Samples per second of each, with 95 % intervals."""
    steps_s: tuple[Figure, Figure]
    """Median over the windows of the seconds of a step."""
    ratio: Ratio
    """The second throughput over the first, with its interval and verdict."""
    warnings: tuple[Warning, ...]

    def __repr__(self) -> str:
        first, second = self.names
        width = max(map(len, self.names))
        lines = [
            f"{name:<{width}}  {_rate_text(rate, self.samples)}, {_step_text(step_s)}"
            for name, rate, step_s in zip(self.names, self.throughputs, self.steps_s, strict=True)
        ]
        ratio = format_interval(self.ratio.value, self.ratio.low, self.ratio.high, "×")
        why = f" ({self.ratio.why})" if self.ratio.why else ""
        lines.append(f"{second} / {first}  {ratio}: {self.ratio.verdict.value}{why}")
        return "\n".join([*lines, *_warning_lines(self.warnings)])


def measure(
    step: Step,
    *,
    samples: int = 1,
    name: str | None = None,
    steps: int = 20,
    seconds: float = 2.0,
    windows: int = 12,
    warmup_seconds: float = 20.0,
    target_ci: float | None = None,
    max_seconds: float = 60.0,
    store: AnyStore = None,
) -> StepMeasurement:
    """Measure `step`, a function without arguments that trains on `samples` samples: it is called
    until its time is steady, then in windows until there are `steps` steps, `seconds` seconds and
    `windows` windows, and with `target_ci` (0.01 is ± 1 %) until the 95 % interval of the
    throughput is that narrow, at most `max_seconds`.

    `name` is what the result calls it; the default is its file and name. `store`, a path, URL or
    open store, stores the record; without it nothing is stored. In processes of torch.distributed
    all ranks must call it, and rank 0 decides when it ends; samples are those of this process.

    What the step raises is raised here. UsageError for an invalid argument, and where the step's
    batches end (StopIteration).
    """
    samples = _checked(step, samples)
    budget = Budget(
        steps=steps,
        seconds=seconds,
        windows=windows,
        warmup_seconds=warmup_seconds,
        target_ci=target_ci,
        max_seconds=max_seconds,
    )
    machine, device = probe(), _device()
    started_utc = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    log = EventList(time.perf_counter())
    log.started(device)
    queue = _Queue(step)
    with _telemetry(log, machine, device) as telemetry:
        try:
            measured = timer.measure(
                queue.step,
                queue.synchronize,
                time.perf_counter,
                samples_per_step=samples,
                budget=budget,
                log=log,
                pace=timer.Lockstep(_agreement()),
            )
        except StopIteration as error:
            raise _ended(log) from error
    log_machine_warnings(telemetry, GpuProcessWatch(None), log, measured.started, measured.ended)
    telemetry.log_utilization(measured.started, measured.ended)
    telemetry.log_energy(measured.windows, sum(w.samples for w in measured.windows))
    log.emit("outcome", outcome=Outcome(status=Status.OK))
    work = OwnStep(step=name or _name(step), samples=samples, by="caller")
    spec = RunSpec(work=work, program=ProgramSettings(framework=_framework()), budget=budget)
    key = _key(spec, machine, step)
    if store is None:
        return StepMeasurement(record=_assembled(spec, key, log, started_utc, 1, machine)[0])
    with open_store(store) as opened:
        attempt = opened.attempts(key) + 1
        record, series = _assembled(spec, key, log, started_utc, attempt, machine)
        opened.save_machine(machine)
        opened.save(record, series)
    return StepMeasurement(record=record, stored=True)


def measure_interleaved(
    steps: Mapping[str, Step | Sequence[Step]],
    *,
    samples: int = 1,
    seconds: float = 2.0,
    windows: int = 12,
    warmup_seconds: float = 20.0,
    target_ci: float | None = None,
    max_seconds: float = 60.0,
) -> InterleavedMeasurement:
    """Compare two steps, `{"eager": f, "compiled": g}`: short windows of both alternate, so that
    what else the machine does affects both alike, and the ratio of their throughputs has an
    interval.

    Equal steps can differ by a percent, by the memory addresses of their arrays. So no difference
    is reported from one instance of each; give several, built one after another, as lists of one
    length: `{"eager": [make() for _ in range(4)], …}`. Each side is measured for `seconds` and
    `windows`, and with `target_ci` until the interval of the ratio is that narrow.
    """
    sides = {name: [s] if callable(s) else list(s) for name, s in steps.items()}
    if len(sides) != 2 or len({len(s) for s in sides.values()}) != 1 or not all(sides.values()):
        raise UsageError(
            "measure_interleaved compares two steps: give {name: step, name: step}, or lists of as "
            "many instances of each."
        )
    for instances in sides.values():
        for step in instances:
            samples = _checked(step, samples)
    budget = Budget(
        steps=1,
        seconds=seconds,
        windows=windows,
        warmup_seconds=warmup_seconds,
        target_ci=target_ci,
        max_seconds=max_seconds,
    )
    machine, device = probe(), _device()
    log = EventList(time.perf_counter())
    first, second = sides.values()
    pairs = [
        (_side(a, samples, device), _side(b, samples, device))
        for a, b in zip(first, second, strict=True)
    ]
    with _telemetry(log, machine, device) as telemetry:
        try:
            found = alternate(pairs, budget=budget, log=log)
        except StopIteration as error:
            raise _ended(log) from error
    log_machine_warnings(telemetry, GpuProcessWatch(None), log, found.started, found.ended)
    return _compared(tuple(sides), samples, found, log)


class EventList(Log):
    """The events of a measurement, as those of a worker's event file."""

    def __init__(self, origin: float) -> None:
        self.origin = origin
        self.events: list[dict[str, Any]] = []
        self.warnings: list[Warning] = []

    def emit(self, event: str, **fields: Any) -> None:
        """Keep one event; progress is dropped."""
        if event == "progress":
            return
        if event == "warning":
            self.warnings.append(fields["warning"])
        plain = {name: to_plain(value) for name, value in fields.items()}
        self.events.append({"event": event, "t": round(self.now(), 6), **plain})

    def started(self, device: str) -> None:
        """The device and threads of this process."""
        torch = sys.modules.get("torch")
        threads = len(os.sched_getaffinity(0)) if torch is None else torch.get_num_threads()
        self.emit("rank", host=socket.gethostname(), device=device, threads=threads)

    @property
    def steps(self) -> int:
        """Steps so far."""
        return sum(e["window"]["steps"] for e in self.events if e["event"] == "window")


class _Queue:
    """A step and the wait for what it has queued."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._last: Any = None
        if "jax" in sys.modules:  # which waits for arrays, not for a device

            def hold() -> None:
                self._last = step()

            self.step = hold

    def synchronize(self) -> None:
        """Wait for the GPU that PyTorch uses, and for the last arrays of JAX."""
        if _uses_gpu():
            sys.modules["torch"].cuda.synchronize()
        if self._last is not None:
            sys.modules["jax"].block_until_ready(self._last)


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _device() -> str:
    """`cuda:N`, PyTorch's current GPU, where it uses one; else `cpu`."""
    return f"cuda:{sys.modules['torch'].cuda.current_device()}" if _uses_gpu() else "cpu"


def _agreement() -> Callable[[Any], Any]:
    """Broadcasts rank 0's decision where torch.distributed joins several processes."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return lambda decision: decision

    def broadcast(decision: Any) -> Any:
        decided = [decision]
        distributed.broadcast_object_list(decided, src=0)
        return decided[0]

    return broadcast


def _telemetry(log: Log, machine: Machine, device: str) -> Telemetry:
    gpus = visible(machine.gpus, os.environ)
    number = int(device.partition(":")[2] or 0)
    uuid = gpus[number].uuid if device != "cpu" and number < len(gpus) else None
    return Telemetry(log, machine.cpu.usable_cores, meters=open_meters(uuid))


def _side(step: Step, samples: int, device: str) -> Side:
    queue = _Queue(step)
    return Side(
        step=queue.step,
        synchronize=queue.synchronize,
        samples_per_step=samples,
        queues=device != "cpu" or "jax" in sys.modules,
    )


def _compared(
    names: tuple[str, ...], samples: int, found: InterleavedResult, log: EventList
) -> InterleavedMeasurement:
    sides = [
        [w for w in found.windows if (w.phase == AGAINST) == second] for second in (False, True)
    ]
    first, second = (figures(windows, 0.0, found.confidence) for windows in sides)
    ratio = found.ratio
    if ratio.why == ALONE:
        one = "one instance of each step was measured, and equal ones can differ by a percent"
        ratio = replace(ratio, why=f"{one}; give lists of four or more")
    other = [replace(w, cause=SECOND_PROGRAM + w.cause) for w in window_warnings(sides[1])]
    warnings = (*log.warnings, *window_warnings(sides[0]), *other)
    return InterleavedMeasurement(
        names=(names[0], names[1]),
        samples=samples,
        throughputs=(first["throughput_per_s"], second["throughput_per_s"]),
        steps_s=(first["step_s"], second["step_s"]),
        ratio=ratio,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _assembled(
    spec: RunSpec, key: RunKey, log: EventList, started_utc: str, attempt: int, machine: Machine
) -> tuple[RunRecord, Any]:
    record, series = assemble(
        spec,
        key,
        log.events,
        WorkerExit(exit_code=0, elapsed_s=log.now()),
        started_utc=started_utc,
        attempt=attempt,
        gpus=visible(machine.gpus, os.environ),
        processor=machine.cpu.model or "",
    )
    return replace(record, software=machine.software), series


def _key(spec: RunSpec, machine: Machine, step: Step) -> RunKey:
    framework, file = spec.program.framework, _source(step)
    packages = FRAMEWORKS[framework].packages if framework in FRAMEWORKS else ()
    named = None if file is None else UserObject(name=f"{file}:step", folder=str(file.parent))
    return RunKey(
        spec_id=spec.spec_id,
        machine_id=machine.machine_id,
        software_id=machine.software.software_id(packages),
        code_version=code_version(),
        data_id="" if named is None else digest_of_code(named),
    )


def _framework() -> str:
    """The framework whose library this process has imported; `python` for none."""
    return next(
        (known for library, known in _LIBRARIES.items() if library in sys.modules), "python"
    )


def _source(step: Step) -> Path | None:
    """The file of a step; None where there is none."""
    with suppress(TypeError, OSError):
        path = Path(inspect.getsourcefile(inspect.unwrap(step)) or "")
        return path.absolute() if path.is_file() else None
    return None


def _name(step: Step) -> str:
    name = getattr(step, "__qualname__", type(step).__qualname__)
    short = name.rpartition("<locals>.")[2]
    file = _source(step)
    return f"{file.name}:{short}" if file is not None else short


def _checked(step: Any, samples: Any) -> int:
    """The number of samples, as an int; UsageError for what cannot be measured."""
    if not callable(step):
        raise UsageError(
            f"The step is of type {type(step).__name__}; it must be a function without arguments: "
            "cubemesh.measure(lambda: train(batch), samples=64)."
        )
    if not isinstance(samples, Integral) or samples < 1:
        raise UsageError(f"samples={samples!r}: it must be a whole number, 1 or more.")
    return int(samples)


def _ended(log: EventList) -> UsageError:
    return UsageError(
        f"The batches of the step ended (StopIteration) after {log.steps:,} steps of complete "
        "windows. Take them from an iterator that begins again, such as itertools.cycle."
    )


def _rate_text(rate: Figure, samples: int) -> str:
    unit = "steps/s" if samples == 1 else "samples/s"
    return format_interval(rate.value, rate.low, rate.high, unit)


def _step_text(step_s: Figure) -> str:
    return f"{format_interval(step_s.value, step_s.low, step_s.high, 's')} a step"


def _energy_text(record: RunRecord) -> str:
    """Power, energy and how busy a GPU was, where they were measured."""
    shown = [
        f"{words} {format_quantity(figure.value, figure.unit)}"
        for name, words in (
            ("mean_power_watts", "mean power"),
            ("energy_joules_per_sample", "energy"),
            ("gpu_utilization_percent", "GPU busy"),
        )
        if (figure := record.figures.get(name)) is not None
    ]
    return ", ".join(shown)


def _warning_lines(warnings: Sequence[Warning]) -> list[str]:
    return [f"! {w.code}: {w.cause} {w.remedy}" for w in warnings]
