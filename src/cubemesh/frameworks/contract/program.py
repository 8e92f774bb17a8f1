"""The interface of a framework and of its training programs.

A framework is a module that offers the functions of `Framework`. Its `Program` owns the whole
training step; a gradient synchronization strategy is called from inside it, once for each bucket of
gradients. Callers read `Capabilities` and the optional protocols (`Supports…`), never a framework's
name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from cubemesh.batches import Array, Batch, EncodedBatch
from cubemesh.frameworks.contract.gradient_sync import Bucket, GradientSync, SyncFeature
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.networks.graph import Network
from cubemesh.schema.collective import LinkRate
from cubemesh.schema.machine import Unknown
from cubemesh.schema.profile import Profile
from cubemesh.schema.record import Breakdown
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.warning import Warning
from cubemesh.schema.work import Ceiling, NetworkWork

WorkKind = Literal[
    "train_steps",
    "forward",
    "forward_backward",
    "infer",
    "infer_load",
    "infer_precision",
    "train",
    "first_steps",
    "input",
    "ceiling",
    "collective",
    "own_step",
]


class Unsupported(Exception):
    """The framework cannot do what the spec asks; the message lists what it can."""


class NotInstalled(Unsupported):
    """A package that the spec needs is missing; the message has the command that installs it."""


class OutOfMemory(Exception):
    """The device or the worker's memory limit refused an allocation."""


class Diverged(Exception):
    """The loss is no longer a finite number."""


class ReplicasDiffer(Exception):
    """Ranks that must have the same weights have different ones."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a framework can do with this Python on this machine."""

    works: frozenset[WorkKind]
    devices: tuple[str, ...]
    """Devices it can use, best first: `cuda:0`, `cpu`. Empty means none."""
    precisions: Mapping[str, frozenset[str]]
    """Kind of device (`cpu`, `cuda`) → precisions it trains in there."""
    layouts: frozenset[str]
    optimizers: frozenset[str]
    sync_features: frozenset[SyncFeature] = frozenset()
    """What its programs offer to gradient synchronization strategies; empty means one device."""
    loss_scales: frozenset[str] = frozenset()
    """Kinds of loss scaling for fp16 that can be set: `dynamic`, `static`."""
    layer_precisions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Kind of device → precisions that single layers may be given there; empty means none."""
    compiles_segments: bool = False
    """Whether `compile_by` may be `segment`."""
    accumulates: bool = False
    """Whether a step may accumulate the gradients of several micro-batches."""
    sparse_gradients: bool = False
    """Whether the gradients of embedding tables may be sparse."""
    checkpoints_activations: bool = False
    """Whether activations may be computed again in the backward pass."""
    batch_norms: frozenset[str] = frozenset({"device"})
    """Whose samples its batch normalization may use for statistics on several devices."""
    deterministic: bool = False
    """Whether steps can be made reproducible, on any number of devices."""
    decodes: bool = False
    """Whether images may be decoded on its device: its programs are `SupportsDecoding`."""
    scripted: bool = False
    """Whether it simulates a script instead of computing."""
    hint: str = ""
    """What to install for further devices, in sentences; may be empty."""
    lacking: frozenset[str] = frozenset()
    """Kinds of device that the installation of `hint` would add."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """Everything a framework needs to build a program."""

    network: Network
    work: NetworkWork
    placement: Placement
    program: ProgramSettings
    sync: GradientSync
    device: str
    """One of `Capabilities.devices`."""
    threads: int
    recomputed: tuple[str, ...] = ()
    """Segments whose activations are computed again in the backward pass."""
    group: Group = field(default_factory=SingleProcessGroup)
    """The run's ranks, one of which is this process: each draws a dropout mask of its own, unless
    the program must be deterministic."""


class Program(Protocol):
    """A network that one framework trains on one device.

    Its arrays are undefined until `load`. Steps are queued: `train_step`, `forward` and
    `forward_backward` may return before the device has finished; `synchronize` waits. They take
    what `place` returned.
    """

    device: str
    buckets: Sequence[Bucket]
    """In the order in which their gradients become ready; empty without synchronization."""

    def place(self, batch: Batch) -> Any:
        """Copy a batch to the device (always a real copy) and return the placed batch. It stays
        valid until it is dropped, however many are placed after it."""

    def train_step(self, placed: Any) -> None:
        """Queue one step: forward, backward, gradient synchronization, update."""

    def forward(self, placed: Any) -> None:
        """Queue the forward pass and loss in training mode, storing nothing for a backward."""

    def forward_backward(self, placed: Any) -> None:
        """Queue the forward pass and loss in training mode and the backward pass; every gradient is
        computed, and nothing is updated."""

    def evaluate(self, placed: Any) -> Array:
        """Scores in evaluation mode, on the host: (batch, classes), or (batch, positions,
        classes) where each position has a label; in at least float32."""

    def loss(self) -> float:
        """The loss of the last `train_step`, `forward` or `forward_backward`; waits for it. It may
        be NaN."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Set all parameters and state by name, from the graph's layout, and reset the optimizer.
        UsageError when a name is missing or unknown, or a shape does not fit."""

    def state(self) -> dict[str, Array]:
        """Parameters and state by name, in the graph's layout, on the host."""

    def peak_memory_bytes(self) -> int | None:
        """Peak device memory since the program was built; None where unknown."""

    def clock(self) -> float:
        """Seconds on the scale of `time.perf_counter()`. A simulated program may run ahead of it,
        so that simulated time needs no waiting."""

    def close(self) -> None:
        """Free memory and end threads."""


class CeilingProgram(Protocol):
    """One elementary operation, repeated: what `Ceiling` work measures."""

    work_per_call: float
    """Operations of one call; of a copy within a device the bytes read plus written, of any other
    copy the bytes transferred."""
    unit: str
    """`FLOP/s` or `byte/s`."""
    what: str
    """The operation in a few words: the shape of a product, the bytes of a copy."""

    def call(self) -> None:
        """Queue the operation once."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def clock(self) -> float:
        """Seconds on the scale of `time.perf_counter()`."""


class Framework(Protocol):
    """The functions of a framework's module."""

    def capabilities(self) -> Capabilities:
        """What it can do here. May initialize the GPU: call it in a worker, not before a fork."""

    def build(self, request: BuildRequest) -> Program:
        """A program for work that `check_supported` has accepted."""

    def build_ceiling(
        self, work: Ceiling, program: ProgramSettings, device: str, threads: int
    ) -> CeilingProgram:
        """The elementary operation of `work`, in `program.precision`. Where `work.size` is None,
        the size at which the rate stops growing is searched for here."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error that this framework raised is a refused allocation."""

    def preload(self) -> None:
        """Import all that a first step needs, so that forks of this process need not. Touches no
        GPU and starts no thread."""


# What a `Framework` may offer.


@runtime_checkable
class ReportsPrecision(Protocol):
    """A `Framework` that computes some layers in another precision than requested."""

    def other_precision(self, request: BuildRequest) -> str:
        """Which layers, and in which precision, as a sentence; empty where none."""


@runtime_checkable
class SupportsProcessSetup(Protocol):
    """A `Framework` that needs settings of the process before a device is first used."""

    def setup_process(self, program: ProgramSettings) -> None:
        """Set environment variables that the device's driver reads, except those that the user has
        set. Called before anything touches a device."""


@runtime_checkable
class SupportsLinks(Protocol):
    """A `Framework` that measures links between devices: operations `links`, `peer_access` and
    `page_migration` of a `Ceiling`."""

    def measure_links(
        self, work: Ceiling, devices: Sequence[str], processors: Sequence[Sequence[int]]
    ) -> Iterator[LinkRate | Unknown | Warning]:
        """Every pair of `devices` that this process uses, and each with the host; `processors` are
        those next to each device, none where that is not known. A pair that cannot be measured is
        an `Unknown`, wrong bytes are a `Warning`. Unsupported without a GPU."""


@runtime_checkable
class SupportsMemoryRelease(Protocol):
    """A `Framework` whose allocator keeps freed memory in the process."""

    def release_freed_memory(self) -> None:
        """Return to the kernel what no array uses."""


# What a `Program` may offer.


@runtime_checkable
class SupportsDecoding(Protocol):
    """A program that decodes images on its device where its settings request it; its `place` takes
    an `EncodedBatch` as well."""

    def decode(self, batch: EncodedBatch) -> Batch:
        """The same batch, decoded, cropped and scaled, for `place`: images 0 to 1 in the type and
        layout that the program reads. Where an image was refused, its replacement has its row and
        label in `batch`. One thread at a time may call it, while another queues steps."""


@runtime_checkable
class SupportsInference(Protocol):
    """A program for `Infer` and `InferLoad` work."""

    def infer(self, placed: Any) -> Any:
        """Queue a pass in evaluation mode; its scores on the device, for `fetch`. The next pass may
        overwrite them."""

    def fetch(self, scores: Any) -> Array:
        """Wait for scores and copy them to the host, in at least float32."""


@runtime_checkable
class SupportsCompilation(Protocol):
    """A `Program` that is compiled before its first step."""

    def compile(self, placed: Any) -> bool | None:
        """Compile what the work runs for batches like `placed`. Returns whether all of it came
        from a cache, None where nothing was left to compile. Call it before `load`: it may
        overwrite the arrays, but frees the memory it took for a step."""


@runtime_checkable
class SupportsCapture(Protocol):
    """A `Program` that records its training step once and replays it (a CUDA graph)."""

    @property
    def not_captured(self) -> str:
        """Why the step is not captured, in words; empty where it is."""

    @property
    def missing_kernels(self) -> str:
        """Why kernels could not be compiled, in a sentence; empty where they are, or where none
        could be used."""

    @property
    def implementations(self) -> Breakdown | None:
        """The implementation chosen for each segment, with its time; None where none was tried."""


@runtime_checkable
class SupportsLossScaling(Protocol):
    """A `Program` that may scale its loss, so that small gradients do not underflow in fp16."""

    def loss_scale(self) -> tuple[float, str] | None:
        """The scale of the next step, and its kind: `dynamic` or `static`. Waits for it. None
        where the loss is not scaled."""


@runtime_checkable
class SupportsProfiling(Protocol):
    """A `Program` whose framework has a profiler that cubemesh reads."""

    def profile(
        self, run: Callable[[], None], *, layers: bool = False, trace: str | None = None
    ) -> Callable[[], Profile]:
        """Call `run`, which queues steps and waits for them, under the framework's profiler. It
        records the device's work and little more, with `layers` the layers too; the returned
        function reads the profile. `trace` names a file in the format of Chrome and Perfetto."""


class OwnStepProgram(SupportsProfiling, Protocol):
    """What measuring a training step of the user's own code needs of the framework it uses."""

    device: str

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def clock(self) -> float:
        """Seconds on the scale of `time.perf_counter()`."""

    def peak_memory_bytes(self) -> int | None:
        """Peak device memory of the process; None where unknown."""

    def count_flops(self, run: Callable[[], None]) -> tuple[float, str]:
        """Call `run`, which makes one step: the FLOPs of the operators that it dispatched, a
        multiply-add counted as two, and how they were counted."""


@runtime_checkable
class SupportsOwnSteps(Protocol):
    """A `Framework` whose steps may come from the user's own code: work `own_step`."""

    def build_own_step(self, device: str, threads: int) -> OwnStepProgram:
        """Prepare this process for such a step; changes no setting of the framework but the number
        of threads."""


@runtime_checkable
class SupportsStepInspection(Program, Protocol):
    """A `Program` whose values within a step can be read."""

    def inspected_step(self, placed: Any, look: Callable[[str, str, Array], None]) -> None:
        """`train_step`, which calls `look` with each value, an array on the host in the graph's
        layout: ("output", a node, its result), the nodes in order of computation; ("own
        gradient", a parameter, its gradient before synchronization); ("gradient", a parameter,
        the gradient that the update reads, where this rank updates)."""

    def parameters(self) -> dict[str, Array]:
        """A copy of every parameter by name, without the state, in the graph's layout."""


@runtime_checkable
class ReportsMemoryByKind(Protocol):
    """A `Program` that knows how much memory its arrays take."""

    def memory_by_kind(self) -> dict[str, int]:
        """Bytes of this device's `weights`, `gradients` and `optimizer` state."""

    def fragmentation_bytes(self) -> int | None:
        """Memory that the allocator had at its peak and no array used; None where unknown."""


@runtime_checkable
class SupportsProcessSettings(Protocol):
    """A `Program` that depends on settings of the whole process, such as threads, which another
    program in the process may have changed."""

    def apply_process_settings(self) -> None:
        """Set them again for this program's steps. No step may be queued."""


@runtime_checkable
class SupportsReplicaSync(Protocol):
    """A `Program` whose weights may differ between ranks after a step."""

    def synchronize_replicas(self) -> None:
        """Wait for the other ranks where that is so, and take the synchronized weights."""


@runtime_checkable
class SupportsSharedEvaluation(Protocol):
    """A program whose ranks score parts of one validation set."""

    def share_statistics(self, group: Group) -> None:
        """Give every rank of `group` rank 0's running statistics, which evaluation uses and
        training does not, so that all score alike. Every rank calls this."""


def synchronize_replicas(program: object) -> None:
    """Synchronize the replicas of a program that supports it. Every rank calls this before weights
    are evaluated or saved."""
    if isinstance(program, SupportsReplicaSync):
        program.synchronize_replicas()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The full state of a program without its input. The arrays are copies: further training
    does not change them."""

    weights: Mapping[str, Array]
    """Parameters and state by name, as `Program.state` gives them."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """The optimizer's state for each parameter, and the state of random generators."""
    plain: Mapping[str, Any] = field(default_factory=dict)
    """The rest as plain data: the loss scale, a strategy's count of steps."""


@runtime_checkable
class SupportsSnapshots(Protocol):
    """A `Program` whose state can be saved and restored bit for bit."""

    def snapshot(self) -> Snapshot:
        """The state now; waits for the device."""

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from `snapshot`, that of a program of the same request; else UsageError."""


@runtime_checkable
class SupportsLearningRate(Protocol):
    """A `Program` whose learning rate can be changed between two steps."""

    def set_learning_rate(self, rate: float) -> None:
        """Of every step queued from now on."""


@runtime_checkable
class SupportsWeightInspection(Protocol):
    """A `Program` that can check its own weights."""

    def fingerprint(self) -> int:
        """A number that any single changed bit of the parameters changes. Waits for the device."""

    def first_nonfinite(self, placed: Any) -> str:
        """The first layer, in order of computation, whose weights or, given `placed`, whose output
        hold a NaN or infinity; empty where all are finite. It makes a forward pass, so it is for
        a program that will not train on."""


def monotonic_s() -> float:
    """The clock of every program that computes: never set back, never slewed by date changes."""
    return time.perf_counter()
