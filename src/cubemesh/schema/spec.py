"""What is to be measured: a `RunSpec`, complete and unchangeable before anything runs.

A spec has four parts: the *work* (what is computed; its kinds are in work.py), the *placement*
(where), the *program* (with what) and the *effort* (how long it is watched). A spec never looks at
the machine: `device="auto"` stays "auto" in it, and the record says what it became.

Two ids come from it. The *spec id* covers all four parts, but for the limits of time after which a
run is given up; the *workload id* leaves the whole effort out, so that a reduced and a full run of
the same thing line up. Both hash the canonical JSON without
defaults: adding a field with a default later changes no id.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from cubemesh.schema.budget import Budget, at_least
from cubemesh.schema.checkpoint_settings import CheckpointSettings
from cubemesh.schema.hosts import check_hosts
from cubemesh.schema.precision_checks import check_loss_scale, check_precision_of
from cubemesh.schema.serialization import digest
from cubemesh.schema.tuned import Tuned
from cubemesh.schema.work import Work

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
BatchNormOver = Literal["device", "global"]
Layout = Literal["nchw", "nhwc"]
DataLocation = Literal["host", "device"]
LossScale = Literal["dynamic"] | float
CompileBy = Literal["network", "segment"]
Device = Literal["auto", "cpu", "cuda"]
Pinning = Literal["none", "compact", "spread", "cores"]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the work runs."""

    device: Device = "auto"
    """`auto` is the GPU where there is one that the framework can use, else the CPU."""
    devices: int = 1
    threads: int | None = None
    """CPU threads of the framework; None is one for each core the process may really use."""
    pinning: Pinning = "none"
    """Whether the threads are bound to as many processors: `compact`, near one another, `cores`,
    near one another with a core each, or `spread`, far apart; `none` leaves it to the kernel."""
    numa_node: int | None = None
    """The NUMA node whose processors, and so whose memory, are used; None is all of them."""
    link: str = "auto"
    """What ranks exchange over: `auto` is what the library takes by itself, `shared-memory` the
    host's memory in place of one GPU reaching another's, `network` sockets or InfiniBand on one
    host too; anything else is a network interface of every host, by its name."""
    oversubscribe: bool = False
    """Whether the devices of a CPU may share cores where there are too few: what they compute is
    the same then, and how fast says nothing."""

    hosts: tuple[str, ...] = ()
    """Hosts that have the devices, as many each, as ssh knows them; none is this host."""

    def __post_init__(self) -> None:
        at_least(self, 1, "devices", "threads")
        at_least(self, 0, "numa_node")
        if self.hosts:
            check_hosts(self.hosts, self.devices)


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """With what the work runs: the framework and how it is told to run."""

    framework: str = "pytorch"
    precision: Precision = "fp32"
    precision_of: tuple[str, ...] = ()
    """Under bf16 or fp16, `name=precision` for layers that are computed in another one: fp32, bf16,
    or fp16 under fp16. A name is a layer's, a segment's or that of the parts before a dot, with
    `*` and `?` for any characters; the last line that fits a layer counts."""
    loss_scale: LossScale | None = None
    """Of fp16: what the loss is multiplied by and the gradients are divided by, or `dynamic`; None
    is what the framework takes by itself."""
    layout: Layout = "nchw"
    sync: str = "none"
    bucket_bytes: int | None = None
    """About how much travels together under an exchange that sends gradients in buckets; None is
    25 MiB."""
    batch_norm: BatchNormOver = "device"
    """Of several devices, whose samples a batch normalisation takes its statistics from: each
    device's own, or the `global` minibatch's, as one device would."""
    deterministic: bool = False
    """Whether the same steps give the same values every time, and dropout is drawn for the global
    minibatch, so that values do not depend on the number of devices."""
    data_location: DataLocation = "host"
    """`host`: every batch is copied to the device, as document 001 did; `device`: one batch lies
    there already."""
    input_threads: int | None = None
    """Threads that make minibatches ahead of the step; 0 makes each one inside the step, None is 0
    for data that are ready in memory, one for each usable core for images to be decoded, and at
    most four for those that a device decodes."""
    decode_location: DataLocation = "host"
    """Where images are decoded and cropped: on the `host`, by its processors, or on the `device`
    that trains on them; only for data that must be decoded."""
    cache_decoded: bool = False
    """Whether images are decoded once, before anything is timed, and kept in memory, as many as
    fit 1 GiB; only for data that must be decoded."""
    stage_folder: str | None = None
    """Folder on a local disk where image files are kept that came from a slow source."""
    stage_limit_bytes: int | None = None
    """Most that is kept there; None is 100 GiB."""
    drop_page_cache: bool = False
    """Whether the pages of an image file are dropped from memory as soon as it was read, as if the
    data were larger than the memory."""
    compile_by: CompileBy = "network"
    """What a compiler sees at once. `segment`: one part of the network after the other (a residual
    stage, say), so that the gradients of the last are complete while the first run backward."""
    script: str | None = None
    """What the `null` framework plays; no other framework takes one."""

    def __post_init__(self) -> None:
        at_least(self, 0, "input_threads", "stage_limit_bytes")
        at_least(self, 1, "bucket_bytes")
        if self.loss_scale is not None:
            check_loss_scale(self.loss_scale, self.precision)
        if self.precision_of:
            check_precision_of(self.precision_of, self.precision)


@dataclass(frozen=True, kw_only=True)
class Against:
    """The other program of a run in which two alternate; the effort is the same for both."""

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
    """The program that alternates with this one in the same process; None where it runs alone."""
    checkpointing: CheckpointSettings = field(default_factory=CheckpointSettings)
    """What a training leaves behind besides its record."""
    tuned: Tuned | None = None
    """The tuning that chose its settings; None where they were given."""

    @property
    def other(self) -> RunSpec | None:
        """The other program of an alternating run, as a run of its own."""
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
        """Sixteen hexadecimal digits that stand for this very spec, whatever its limits of time."""
        return digest(replace(self, budget=self.budget.unlimited))

    @property
    def workload_id(self) -> str:
        """As `spec_id`, with the effort left out: the same for a reduced and a full run."""
        parts = (self.work, self.placement, self.program)
        return digest(parts if self.against is None else (*parts, self.against))

    @property
    def batch_per_device(self) -> int | None:
        """Samples each device takes per step; None for work without batches."""
        return getattr(self.work, "batch_per_device", None)

    @property
    def global_batch(self) -> int | None:
        """Samples all devices together take per step."""
        batch = self.batch_per_device
        return None if batch is None else batch * self.placement.devices
