"""Run specification: a `RunSpec`, complete and immutable before anything runs.

A spec has four parts: the *work* (what is computed, see work.py), the *placement* (where), the
*program* (framework and its options) and the *budget* (how long it is measured, and its limits). A
spec never reads the machine: `device="auto"` stays "auto" in it; the record holds what was used.

Two ids are derived from it. The *spec id* covers all parts except the time limits; the *workload
id* leaves out the whole budget and the checkpoints, so that a reduced and a full run of the same
work share it. Both hash the canonical JSON without defaults: a field added later with a default
changes no id.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from cubemesh.errors import UsageError
from cubemesh.schema.serialization import digest
from cubemesh.schema.validation import (
    at_least,
    check_hosts,
    check_loss_scale,
    check_precision_of,
)
from cubemesh.schema.work import Work

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
BatchNormOver = Literal["device", "global"]
Layout = Literal["nchw", "nhwc"]
ProductPrecision = Precision | Literal["fp8"]
"""Precision of a single layer's product: `fp8` is of matrix products only."""
DataLocation = Literal["host", "device"]
LossScale = Literal["dynamic"] | float
CompileBy = Literal["network", "segment"]
CheckpointActivations = Literal["none", "segments", "auto"]
Device = Literal["auto", "cpu", "cuda"]
Pinning = Literal["none", "compact", "spread", "cores"]
MemoryPolicy = Literal["default", "interleave", "preferred"]
HugePages = Literal["default", "never"]
PipelineSchedule = Literal["1f1b", "gpipe"]

MIN_HEARTBEAT_TIMEOUT_S = 2.0
"""Twice the interval between two heartbeats."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the work runs."""

    device: Device = "auto"
    """`auto`: the GPU if there is one that the framework can use, else the CPU."""
    devices: int = 1
    """Number of devices."""
    threads: int | None = None
    """CPU threads of the framework; None: one per core that the process may really use."""
    pinning: Pinning = "none"
    """Thread affinity: `compact` binds the threads to neighbouring processors, `cores` to
    neighbouring cores, one each, `spread` to distant ones; `none` leaves it to the
    kernel, but for ranks of several GPUs, which are bound to cores near their GPUs."""
    numa_node: int | None = None
    """NUMA node whose processors, and so whose memory, are used; None: all."""
    memory_policy: MemoryPolicy = "default"
    """NUMA node of a page: `default`: that of the thread that touches it first; `interleave`: all
    in turn; `preferred`: `numa_node`, else the first, while it has memory."""
    huge_pages: HugePages = "default"
    """`never`: no transparent huge pages, which PyTorch asks for under large arrays."""
    link: str = "auto"
    """Transport between ranks: `auto` is the library's choice, `shared-memory` host memory instead
    of GPU peer access, `network` sockets or InfiniBand even on one host; any other value is the
    name of a network interface that every host has."""
    oversubscribe: bool = False
    """Whether the devices of a CPU may share cores if there are too few: the results are the same,
    but the times say nothing about performance."""

    hosts: tuple[str, ...] = ()
    """Host names for ssh, each with the same number of devices; empty: this host."""

    def __post_init__(self) -> None:
        at_least(self, 1, "devices", "threads")
        at_least(self, 0, "numa_node")
        if self.hosts:
            check_hosts(self.hosts, self.devices)


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """The framework and its options."""

    framework: str = "pytorch"
    """Framework; `cubemesh experiments` lists them."""
    precision: Precision = "fp32"
    """Numeric precision of the computation."""
    precision_of: tuple[str, ...] = ()
    """Under bf16 or fp16, `name=precision` for layers computed in another precision: fp32, bf16,
    fp16 under fp16, or fp8 under bf16 for matrix products. A name is a layer, a segment or a dotted
    prefix of one, with the wildcards `*` and `?`; the last line that matches a layer wins."""
    loss_scale: LossScale | None = None
    """Of fp16: the fixed loss scale, or `dynamic`; None: the framework's default."""
    layout: Layout = "nchw"
    """Memory layout of images."""
    sync: str = "none"
    """Gradient synchronization strategy."""
    bucket_bytes: int | None = None
    """Approximate bucket size of a strategy that sends gradients in buckets; None: 25 MiB."""
    micro_batches: int | None = None
    """Micro-batches of a step of `pipeline` and `hybrid`; None: four per stage."""
    pipeline_schedule: PipelineSchedule = "1f1b"
    """Order of the passes of `pipeline` and `hybrid`: `1f1b` stores the activations of as many
    micro-batches as there are stages at most, `gpipe` of all."""
    pipeline_stages: int | None = None
    """Stages of each pipeline of `hybrid`; None: 2."""
    tensor_parallel_size: int | None = None
    """Devices that divide each layer of `tensor-parallel`; None: all. Groups of so many devices
    average their gradients: data × tensor parallel."""
    sequence_parallel: bool | None = None
    """Whether `tensor-parallel` divides the positions of a sequence between the divided layers;
    None: where their number divides."""
    context_parallel_size: int | None = None
    """Devices that divide each sequence of `context-parallel`; None: all. Groups of so many devices
    average their gradients: data × context parallel."""
    batch_norm: BatchNormOver = "device"
    """Samples that batch normalization takes its statistics from on several devices: those of each
    `device`, or the `global` batch, as one device would."""
    deterministic: bool = False
    """Whether the same steps give the same values every time. Dropout is then drawn for the global
    batch, so that values do not depend on the number of devices."""
    data_location: DataLocation = "host"
    """`host`: every batch is copied to the device; `device`: one batch is resident on it."""
    input_threads: int | None = None
    """Threads that prepare batches ahead of the step; 0 prepares each one inside the step. None: 0
    for data in memory, one per usable core for images decoded on the host, at most two for those
    decoded on a device."""
    decode_location: DataLocation = "host"
    """Where images are decoded and cropped: by the processors of the `host`, or on the `device`
    that trains; only for data that must be decoded."""
    cache_decoded: bool = False
    """Whether images are decoded once, before the measurement, and cached in memory, as many as
    fit into 1 GiB; only for data that must be decoded."""
    stage_folder: str | None = None
    """Folder on a local disk that caches image files from a slow source."""
    stage_limit_bytes: int | None = None
    """Size limit of that cache; None: 100 GiB."""
    drop_page_cache: bool = False
    """Whether the pages of an image file are dropped from memory after it was read, as if the data
    set were larger than the memory."""
    compile_by: CompileBy = "network"
    """Unit of compilation. `segment`: one part of the network after another (e.g. a residual
    stage), so that the gradients of the last are complete while the first run backward."""
    checkpoint_activations: CheckpointActivations = "none"
    """Activation checkpointing: `segments` saves only the inputs of the network's segments and
    computes their activations again in the backward pass, but for the last; `auto` does so for the
    segments for which it must, so that the memory forecast fits the device; `none` saves all."""
    script: str | None = None
    """Script of the `null` framework; no other framework accepts one."""
    plan_file: str | None = None
    """Plan that the framework `plan` runs, an absolute path."""
    plan_checksum: str | None = None
    """The checksum of its content, so that runs of different plans are not confused."""

    def __post_init__(self) -> None:
        at_least(self, 0, "input_threads", "stage_limit_bytes")
        at_least(self, 1, "bucket_bytes", "micro_batches", "pipeline_stages")
        at_least(self, 1, "tensor_parallel_size", "context_parallel_size")
        if self.loss_scale is not None:
            check_loss_scale(self.loss_scale, self.precision)
        if self.precision_of:
            check_precision_of(self.precision_of, self.precision)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a run is measured, and the limits it runs under; not part of the workload id."""

    steps: int = 20
    """Minimum of measured steps, after the warm-up."""
    seconds: float = 2.0
    """Minimum of measured seconds, after the warm-up."""
    windows: int = 12
    """Minimum number of groups of steps; the confidence interval is computed from them."""
    exact_steps: bool = False
    """Whether exactly `steps` steps are measured, in at most `windows` windows, whatever `seconds`
    and `target_ci` ask for: a fixed amount of work."""
    warmup_seconds: float = 20.0
    """The warm-up ends when the step time stops drifting, and after this long at the latest."""
    repeats: int = 1
    """Fresh processes that measure the same spec."""
    time_limit_s: float = 900.0
    """Time limit of a run, after which it ends as timed out."""
    heartbeat_timeout_s: float = 30.0
    """A rank of several, or a training, that sends no heartbeat for this long is ended, and so is a
    run of which a process is stopped (SIGSTOP) so long."""
    memory_limit_bytes: int | None = None
    """Memory limit of the worker; None: what the machine has free."""
    target_ci: float | None = None
    """Target half-width of the 95 % confidence interval as a fraction of the figure: 0.01 measures
    until it is ± 1 %; None measures no longer than the other settings ask for."""
    max_seconds: float = 60.0
    """Measured seconds after which `target_ci` is given up."""
    instances: int = 4
    """Programs built of each side of an interleaved A/B run."""
    attribution: bool = False
    """Whether to attribute the step time (docs/attribution.md): host times are recorded in every
    step, and further steps run under the framework's profiler."""
    trace: bool = False
    """Whether to save the profiler's trace of a few steps, for Perfetto or chrome://tracing;
    implies `attribution`."""

    @property
    def unlimited(self) -> Budget:
        """The same with default time limits: they decide when a run is ended, and change nothing of
        a run that completed."""
        default = Budget()
        return replace(
            self, time_limit_s=default.time_limit_s, heartbeat_timeout_s=default.heartbeat_timeout_s
        )

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "windows", "repeats", "memory_limit_bytes", "instances")
        at_least(self, 0, "seconds", "warmup_seconds", "max_seconds")
        if self.target_ci is not None and not self.target_ci > 0:
            raise UsageError(
                f"target_ci={self.target_ci} must be more than 0: it is the half-width of the 95 % "
                "confidence interval as a fraction. target_ci=0.01 measures until it is ± 1 %."
            )
        if not self.heartbeat_timeout_s >= MIN_HEARTBEAT_TIMEOUT_S:
            raise UsageError(
                f"heartbeat_timeout_s={self.heartbeat_timeout_s:g} is too short: ranks send a "
                f"heartbeat every second, so it must be {MIN_HEARTBEAT_TIMEOUT_S:g} or more."
            )
        if not self.time_limit_s > 0:
            raise UsageError(f"time_limit_s={self.time_limit_s} must be more than 0.")


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Checkpoints and TensorBoard event files of a training; not part of the workload id."""

    checkpoints: str | None = None
    """Folder of the checkpoints, an absolute path that every rank sees; None saves none."""
    every_steps: int | None = None
    """Steps between checkpoints; None: one after each epoch, or by `fault_every_s`."""
    fault_every_s: float | None = None
    """Expected seconds between faults, from which Daly's rule gives the time between checkpoints
    (training/checkpoint_interval.py); None: `every_steps`."""
    keep: int = 3
    """Number of most recent checkpoints to keep."""
    resume: bool = False
    """Whether to resume from the newest complete checkpoint, if there is one."""
    reshard: bool = False
    """Whether to resume on other devices than before, with the same global batch size."""
    tensorboard: str | None = None
    """Folder of the TensorBoard event files; None writes none."""

    def __post_init__(self) -> None:
        at_least(self, 1, "every_steps", "keep")
        if self.reshard and not self.resume:
            raise UsageError("reshard=true resumes on other devices. Set resume=true too.")
        if self.fault_every_s is not None and not self.fault_every_s > 0:
            raise UsageError(f"fault_every_s={self.fault_every_s:g}: it must be above 0.")
        if self.every_steps is not None and self.fault_every_s is not None:
            raise UsageError("every_steps and fault_every_s exclude each other. Set one of them.")
        timed = self.every_steps is not None or self.fault_every_s is not None
        if self.checkpoints is None and (self.resume or timed):
            raise UsageError(
                "resume, every_steps and fault_every_s need a folder of checkpoints. Set "
                "checkpoints=FOLDER."
            )


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The tuning whose fastest setting a run uses (`tuned=true`)."""

    experiment_run_id: str
    """The tuning's experiment run in the store."""
    tuned_utc: str
    """When it started, ISO 8601, UTC."""
    settings: tuple[str, ...]
    """Settings taken from it, as `key=value`; empty if nothing was faster than the defaults."""
    batch_per_device: int
    """The batch size at which it was fastest."""


@dataclass(frozen=True, kw_only=True)
class Against:
    """The other side of an interleaved A/B run; both sides have the same budget."""

    work: Work
    placement: Placement = field(default_factory=Placement)
    program: ProgramSettings = field(default_factory=ProgramSettings)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run, described completely."""

    work: Work
    placement: Placement = field(default_factory=Placement)
    program: ProgramSettings = field(default_factory=ProgramSettings)
    budget: Budget = field(default_factory=Budget)
    against: Against | None = None
    """The program measured in alternation with this one in the same process; None: a single one."""
    checkpointing: CheckpointSettings = field(default_factory=CheckpointSettings)
    tuned: Tuned | None = None
    """The tuning that chose its settings; None if they were given."""

    @property
    def other(self) -> RunSpec | None:
        """The other side of an A/B run, as a spec of its own."""
        other = self.against
        if other is None:
            return None
        return RunSpec(
            work=other.work,
            placement=other.placement,
            program=other.program,
            budget=self.budget,
        )

    @property
    def spec_id(self) -> str:
        """Sixteen hexadecimal digits that identify this spec, whatever its time limits."""
        return digest(replace(self, budget=self.budget.unlimited))

    @property
    def workload_id(self) -> str:
        """Like `spec_id` without the budget: the same for a reduced and a full run."""
        parts = (self.work, self.placement, self.program)
        return digest(parts if self.against is None else (*parts, self.against))

    @property
    def batch_per_device(self) -> int | None:
        """Samples per device and step; None for work without batches."""
        return getattr(self.work, "batch_per_device", None)

    @property
    def global_batch(self) -> int | None:
        """Samples per step of all devices together."""
        batch = self.batch_per_device
        return None if batch is None else batch * self.placement.devices
