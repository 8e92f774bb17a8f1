"""Import of training logs of other programs: their samples per second as a record of training
steps.

    log ──formats.py──▶ intervals (steps, seconds) ──▶ windows of a `TrainSteps` record ──▶ store

Its windows, figures and intervals are computed as those of a run, so it compares with one. It is
marked: `source` names the program and the file, the code version is `imported`, the warning
`imported` says what the printed times include and how far rounding may change them. It is never
reused as a run. What a log does not state (network, precision, devices, …) is given as settings;
nothing is guessed. The same log with the same settings gives the same id, so it is stored once.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cubemesh.errors import DataError, UsageError, unknown_name
from cubemesh.forecast.transformers.layout import read_layout
from cubemesh.forecast.utilization import with_utilization
from cubemesh.machines.files import read_text
from cubemesh.measure.figures import figures
from cubemesh.measure.validity import window_warnings
from cubemesh.networks import NETWORKS, canonical_name
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.schema import (
    Figure,
    Gpu,
    Machine,
    Outcome,
    Placement,
    ProgramSettings,
    Rank,
    RunKey,
    RunRecord,
    RunSpec,
    Status,
    TrainSteps,
    Warning,
    Window,
    warn,
)
from cubemesh.schema.serialization import digest
from cubemesh.schema.spec import Layout, Precision
from cubemesh.schema.validation import at_least
from cubemesh.statistics import FEWEST_FOR_INTERVAL
from cubemesh.store.imports.imported import IMPORTED, imported_machine
from cubemesh.store.imports.nccl_tests_log import LoggedRank
from cubemesh.store.imports.training_logs.formats import (
    FORMATS,
    find_format,
    lines_of,
    read_training_log,
)
from cubemesh.store.imports.training_logs.intervals import (
    Interval,
    LogContext,
    LoggedTraining,
    joined,
    total_rounding,
)
from cubemesh.store.store import Store
from cubemesh.untrusted import quoted

MAX_BYTES = 32 << 20
MAX_DEVICES = 4096
UNKNOWN_DATA = "unknown"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,79}")
_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f]{0,120}")


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """What a training log does not state, as `--set key=value`; what is given here overrides the
    log."""

    format: str | None = None
    """Program that wrote the log; default: found from its lines."""
    network: str | None = None
    """Network; a name that `cubemesh networks` does not list is stored as it is."""
    batch_per_device: int | None = None
    """Batch size per device."""
    global_batch: int | None = None
    """Samples per step of all devices."""
    devices: int | None = None
    """Number of devices."""
    precision: Precision | None = None
    """Precision of the computation."""
    framework: str | None = None
    """Framework; default: that of the program."""
    layout: Layout = "nchw"
    """Memory layout of images."""
    sync: str | None = None
    """Gradient synchronization strategy, or a layout (tp=4,pp=1,dp=4); default: that of the log, or
    all-reduce on several devices."""
    data: str | None = None
    """Data set, or `synthetic`; default: that of the log, or `unknown`."""
    image_size: int | None = None
    """Height and width of the input in pixels; default: the network's."""
    sequence_length: int | None = None
    """Tokens per sequence; default: that of the log, or the network's."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Kind of device."""
    device_name: str = ""
    """Name of the device: `NVIDIA H100`."""
    host: str = ""
    """Host name; default: `imported`."""
    machine_id: str = ""
    """Machine of the store that the log is from, by its id or unique prefix."""
    skip_steps: int = 0
    """Steps at the beginning that are warm-up and not counted."""

    def __post_init__(self) -> None:
        at_least(self, 1, "batch_per_device", "global_batch", "devices", "image_size")
        at_least(self, 1, "sequence_length")
        at_least(self, 0, "skip_steps")
        if self.devices is not None and self.devices > MAX_DEVICES:
            raise UsageError(f"devices={self.devices} is not valid: give 1 to {MAX_DEVICES:,}.")
        if self.sync is not None and "=" in self.sync:
            object.__setattr__(self, "sync", str(read_layout(self.sync)))
        elif self.sync is not None and self.sync not in STRATEGIES:
            raise unknown_name("gradient synchronization strategy", self.sync, STRATEGIES)
        if self.format is not None and self.format not in FORMATS:
            raise unknown_name("format of training logs", self.format, FORMATS, "", "formats")
        for name in ("network", "framework", "data"):
            value = getattr(self, name)
            if value is not None and not _NAME.fullmatch(value):
                raise UsageError(
                    f"{name}={quoted(value)} is not a name: letters, digits and . _ / + -, at most "
                    "80."
                )
        for name in ("device_name", "host"):
            if not _TEXT.fullmatch(getattr(self, name)):
                raise UsageError(
                    f"{name}={quoted(getattr(self, name))}: at most 120 printable characters."
                )
        stated = self.batch_per_device, self.devices, self.global_batch
        if None not in stated and self.batch_per_device * self.devices != self.global_batch:  # type: ignore[operator]
            raise UsageError(
                f"batch_per_device={self.batch_per_device} on devices={self.devices} are not "
                f"global_batch={self.global_batch}. Leave one of them out."
            )

    @property
    def whole_batch(self) -> int | None:
        """The global batch size, as far as it is given."""
        if self.global_batch is None and self.batch_per_device and self.devices:
            return self.batch_per_device * self.devices
        return self.global_batch


@dataclass(frozen=True, kw_only=True)
class ImportedTraining:
    """The record of a training log."""

    record: RunRecord
    new: bool
    """Whether it was not stored before."""
    format: str
    """Name of the log's format."""
    machine: Machine = field(repr=False)


def import_training(store: Store, path: Path, settings: LogSettings) -> ImportedTraining:
    """Store the training of a log, unless it is stored already. DataError with the invalid line or
    where the log is of no known program; UsageError with all settings that are missing."""
    text = read_text(path, MAX_BYTES, "training log")
    lines = lines_of(text)
    name = settings.format or find_format(lines)
    if name is None:
        raise DataError(_not_a_log(path))
    context = LogContext(
        file=str(path),
        global_batch=settings.whole_batch,
        devices=settings.devices,
        sequence_length=settings.sequence_length,
    )
    logged = read_training_log(lines, name, context, settings.skip_steps)
    spec = _spec(path, name, settings, logged)
    machine = _machine(store, path, settings, spec.placement.devices)
    checksum = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    source = f"log of {FORMATS[name].title}: {path.name} (SHA-256 {checksum})"
    record = _record(spec, machine, settings, logged, source)
    stored = {r.run_id: r for r in store.records(machine_id=machine.machine_id)}
    if record.run_id in stored:
        return ImportedTraining(
            record=stored[record.run_id], new=False, format=name, machine=machine
        )
    if not settings.machine_id:
        store.save_machine(machine)
    store.save(record)
    return ImportedTraining(record=record, new=True, format=name, machine=machine)


def is_training_log(path: Path) -> bool:
    """Whether a file has lines of figures of a known program. DataError as of `read_text`."""
    return find_format(lines_of(read_text(path, MAX_BYTES, "log"))) is not None


def _not_a_log(path: Path) -> str:
    known = ", ".join(known.title for known in FORMATS.values())
    return f"{path} is not a training log that cubemesh reads: {known}."


def _spec(path: Path, name: str, settings: LogSettings, logged: LoggedTraining) -> RunSpec:
    """The spec of the logged training; UsageError with everything that is missing."""
    devices = settings.devices or logged.devices
    batch = settings.whole_batch or logged.global_batch
    if settings.batch_per_device and not devices and batch:
        devices = batch // settings.batch_per_device or None
    if settings.batch_per_device and devices:
        batch = settings.batch_per_device * devices
    wanted = {
        "network=resnet-50": settings.network or logged.network,
        "precision=bf16": settings.precision or logged.precision,
        "devices=8": devices,
        "batch_per_device=64": batch,
        "framework=pytorch": settings.framework or FORMATS[name].framework,
    }
    missing = [example for example, value in wanted.items() if not value]
    if missing:
        names = ", ".join(example.partition("=")[0] for example in missing)
        options = " ".join(f"--set {example}" for example in missing)
        raise UsageError(
            f"{path} is a log of {FORMATS[name].title} that does not state {names}. Add, for "
            f"example, {options}."
        )
    assert devices is not None
    assert batch is not None
    if batch % devices or devices > MAX_DEVICES:
        raise UsageError(
            f"a global batch size of {batch} is not a multiple of devices={devices} (at most "
            f"{MAX_DEVICES:,}). With tensor or pipeline parallelism state devices as the number of "
            "data-parallel groups."
        )
    network = _network(settings.network or logged.network or "")
    return RunSpec(
        work=TrainSteps(
            network=network,
            batch_per_device=batch // devices,
            image_size=settings.image_size,
            sequence_length=settings.sequence_length or logged.sequence_length,
            data=settings.data or logged.data or UNKNOWN_DATA,
        ),
        placement=Placement(device=settings.device, devices=devices),
        program=ProgramSettings(
            framework=settings.framework or FORMATS[name].framework,
            precision=settings.precision or logged.precision or "fp32",
            layout=settings.layout,
            sync=settings.sync or _sync(devices, logged),
        ),
    )


def _sync(devices: int, logged: LoggedTraining) -> str:
    """How the devices worked together: the layout that the log states for them, in the words of
    `predict --layout`; else as replicas."""
    if logged.layout is not None and logged.layout.devices == devices:
        return str(logged.layout)
    return "all-reduce" if devices > 1 else "none"


def _network(name: str) -> str:
    try:
        return canonical_name(name)
    except UsageError:  # a network of the other program
        if not _NAME.fullmatch(name):
            raise
        return name


def _machine(store: Store, path: Path, settings: LogSettings, devices: int) -> Machine:
    """The stored machine of `machine_id`, or a new one with what is stated."""
    if settings.machine_id:
        machines = store.machines()
        found = [m for m in machines if m.machine_id.startswith(settings.machine_id)]
        if len(found) != 1:
            known = ", ".join(f"{m.machine_id} ({m.hostname})" for m in machines[:10])
            what = "fits no machine" if not found else f"fits {len(found)} machines"
            raise UsageError(
                f"machine_id={quoted(settings.machine_id)} {what} of the store: {known or 'none'}."
            )
        return found[0]
    host = settings.host or IMPORTED
    ranks = [
        LoggedRank(host=host, device=_device(settings, i), device_name=settings.device_name)
        for i in range(devices)
    ]
    return imported_machine(ranks, path)


def _device(settings: LogSettings, number: int) -> str:
    return "cpu" if settings.device == "cpu" else f"cuda:{number}"


def _record(
    spec: RunSpec, machine: Machine, settings: LogSettings, logged: LoggedTraining, source: str
) -> RunRecord:
    intervals = joined([i for i in logged.intervals if i.first_step >= settings.skip_steps])
    skipped = joined([i for i in logged.intervals if i.first_step < settings.skip_steps], 20)
    if not intervals:
        steps = sum(one.steps for one in logged.intervals)
        raise UsageError(
            f"skip_steps={settings.skip_steps} leaves no step of the {steps} in the log. Set fewer."
        )
    windows = _windows(spec, skipped, intervals)
    measured = [w for w in windows if w.phase == "measure"]
    wall_s = sum(w.elapsed_s for w in windows)
    found = _widened(figures(measured, wall_s), total_rounding(intervals))
    found.pop("projected_90_epochs_days", None)
    key = RunKey(
        spec_id=spec.spec_id,
        machine_id=machine.machine_id,
        software_id=IMPORTED,
        code_version=IMPORTED,
    )
    record = RunRecord(
        run_id=digest((key, windows, settings.device_name), length=12),
        spec=spec,
        key=key,
        started_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        elapsed_s=wall_s,
        outcome=Outcome(status=Status.OK),
        ranks=_ranks(spec, machine, settings),
        windows=windows,
        figures=found,
        warnings=tuple(_warnings(intervals, logged, source, measured, spec)),
        source=source,
    )
    known = isinstance(spec.work, TrainSteps) and spec.work.network in NETWORKS
    return with_utilization(record, ()) if known else record


def _widened(found: dict[str, Figure], rounding: float) -> dict[str, Figure]:
    """Figures whose intervals include what rounding may change."""
    return {
        name: figure
        if figure.low is None or figure.high is None
        else replace(figure, low=figure.low * (1 - rounding), high=figure.high * (1 + rounding))
        for name, figure in found.items()
    }


def _windows(
    spec: RunSpec, skipped: Sequence[Interval], intervals: Sequence[Interval]
) -> tuple[Window, ...]:
    windows, start_s = [], 0.0
    for phase, some in (("warm-up", skipped), ("measure", intervals)):
        for one in some:
            samples = (
                one.samples if one.samples is not None else one.steps * (spec.global_batch or 0)
            )
            windows.append(
                Window(
                    phase=phase,
                    start_s=start_s,
                    elapsed_s=one.seconds,
                    steps=one.steps,
                    samples=samples,
                )
            )
            start_s += one.seconds
    return tuple(windows)


def _ranks(spec: RunSpec, machine: Machine, settings: LogSettings) -> tuple[Rank, ...]:
    gpus: Sequence[Gpu] = machine.gpus if settings.device == "cuda" else ()
    name = settings.device_name or (machine.cpu.model or "" if settings.device == "cpu" else "")
    return tuple(
        Rank(
            rank=i,
            host=machine.hostname,
            device=_device(settings, i),
            device_name=name or (gpus[i].name if i < len(gpus) else ""),
            device_uuid=gpus[i].uuid if settings.machine_id and i < len(gpus) else None,
            outcome=Outcome(status=Status.OK),
        )
        for i in range(spec.placement.devices)
    )


def _warnings(
    intervals: Sequence[Interval],
    logged: LoggedTraining,
    source: str,
    windows: Sequence[Window],
    spec: RunSpec,
) -> list[Warning]:
    rounding = total_rounding(intervals)
    layout = ""
    if logged.layout is not None:
        layout = f" Its {logged.layout.devices} devices worked as {logged.layout}."
        if logged.layout.devices != spec.placement.devices:
            layout += f" devices={spec.placement.devices} was given, so each is a group of them."
    includes = f" Its times include {logged.includes}." if logged.includes else ""
    found = [
        warn(
            IMPORTED,
            f"Read from the {source}. The printed digits leave ± {100 * rounding:.2g} %."
            f"{layout}{includes}",
            "Compare with care: input, warm-up and what is timed are those of the other program. "
            "Measure the same work with cubemesh for a comparison under the same rules.",
        )
    ]
    if len(windows) < FEWEST_FOR_INTERVAL:
        found.append(
            warn(
                "few-windows",
                f"The log has {len(windows)} interval{'' if len(windows) == 1 else 's'}; a 95 % "
                f"confidence interval needs {FEWEST_FOR_INTERVAL}.",
                "Log more often, or train longer.",
            )
        )
    return found + [w for w in window_warnings(windows) if w.code in ("drift", "outliers")]
