"""What a framework must offer so that the worker can run a network with it.

A framework is a module that offers the functions of `Framework`. Its `Program` owns the whole
training step; a gradient `GradientSync` lives inside it and is told when a bucket of gradients is
ready. Nobody outside asks a framework's name: what it can do it declares, and what it cannot do it
refuses with `Unsupported`, which becomes an outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from cubemesh.batches import Array, Batch, EncodedBatch
from cubemesh.frameworks.api.gradient_sync import Alone, Bucket, GradientSync, Group
from cubemesh.networks.graph import Network
from cubemesh.schema.profile import Profile
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import Ceiling, NetworkWork

WorkKind = Literal[
    "train_steps", "forward", "train", "first_steps", "input", "ceiling", "collective"
]


class Unsupported(Exception):
    """This framework cannot do what the spec asks; the message says what can."""


class OutOfMemory(Exception):
    """The device or the worker's memory limit refused an allocation."""


class Diverged(Exception):
    """The loss is no longer a finite number."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a framework can do here, with this Python and this machine."""

    works: frozenset[WorkKind]
    devices: tuple[str, ...]
    """Devices it can use, best first: `cuda:0`, `cpu`. Empty means none."""
    precisions: Mapping[str, frozenset[str]]
    """Kind of device (`cpu`, `cuda`) → precisions it trains in there."""
    layouts: frozenset[str]
    optimizers: frozenset[str]
    exchanges: frozenset[str] = frozenset({"none"})
    """Exchanges its programs can run under; `none` alone means one device only."""
    loss_scales: frozenset[str] = frozenset()
    """Ways to scale the loss in fp16 that can be chosen: `dynamic`, `static`."""
    precision_by_layer: bool = False
    """Whether layers may be given a precision of their own."""
    compiles_segments: bool = False
    """Whether `compile_by` may be `segment`."""
    batch_norms: frozenset[str] = frozenset({"device"})
    """Over what its batch normalisation may take its statistics on several devices."""
    deterministic: bool = False
    """Whether its steps can be made the same every time, and on any number of devices."""
    decodes: bool = False
    """Whether images may be decoded on its device: its programs are `Decodes` (data/base)."""
    scripted: bool = False
    """Whether it plays a script instead of computing."""
    hint: str = ""
    """What would have to be installed for it to do more, in sentences; empty where nothing."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """Everything a framework needs to make a program."""

    network: Network
    work: NetworkWork
    placement: Placement
    program: ProgramSettings
    sync: GradientSync
    device: str
    """One of `Capabilities.devices`."""
    threads: int
    group: Group = field(default_factory=Alone)
    """The run's ranks, of which this process is one: each draws another dropout, unless the program
    is to be deterministic."""


class Program(Protocol):
    """A network made ready to run on one device by one framework.

    Its arrays hold nothing until `load`. Steps are queued: `train_step` and `forward` may return
    before the device is done; `synchronize` waits. What is fed must come from `place`.
    """

    device: str
    buckets: Sequence[Bucket]
    """In the order their gradients become ready; empty where nothing is exchanged."""

    def place(self, batch: Batch) -> Any:
        """Copy a batch to the device, always a real copy, and return the placed batch. It stays
        as it is until it is dropped, however many are placed after it."""

    def train_step(self, placed: Any) -> None:
        """Queue one step: forward, backward, exchange, update."""

    def forward(self, placed: Any) -> None:
        """Queue the forward pass and loss in training mode, keeping nothing for a backward."""

    def evaluate(self, placed: Any) -> Array:
        """Scores in evaluation mode, on the host: (batch, classes), or (batch, positions,
        classes) where each position has a label; in at least float32."""

    def loss(self) -> float:
        """The loss of the last `train_step` or `forward`; waits for it. It may be NaN: whoever
        asked decides what that means."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Set all parameters and state by name, from the graph's layout; the optimizer starts
        anew. UsageError when a name is missing or unknown, or a shape does not fit."""

    def state(self) -> dict[str, Array]:
        """Parameters and state by name, in the graph's layout, on the host."""

    def peak_memory_bytes(self) -> int | None:
        """Most device memory held at once since the program was built; None where not known."""

    def clock(self) -> float:
        """Seconds on the scale of `time.perf_counter()`. A scripted program may run ahead of it,
        so that scripted time needs no waiting."""

    def close(self) -> None:
        """Give memory and threads back."""


@runtime_checkable
class Decodes(Protocol):
    """A program that decodes images on its device where its settings
    say so; its `place` takes an `EncodedBatch` as well."""

    def decode(self, batch: EncodedBatch) -> Batch:
        """The same minibatch, decoded, cropped and scaled, for `place` to hand over: images 0 to 1
        in the type and layout that the program reads. Where an image was refused, `batch` has in
        its row and label what took its place. One thread at a time may call it, while another
        queues steps."""


@runtime_checkable
class Compiles(Protocol):
    """A `Program` that is compiled before its first step; others need not offer this."""

    def compile(self, placed: Any) -> bool | None:
        """Compile what the work runs for batches like `placed`, and tell whether all of it came
        from a cache (None where there was nothing left to compile). Call it before `load`: it may
        leave anything in the arrays, but gives back what memory it took for a step."""


@runtime_checkable
class TellsOtherPrecision(Protocol):
    """A `Framework` that computes some layers in another precision than is asked for; others need
    not offer this."""

    def other_precision(self, request: BuildRequest) -> str:
        """Which layers, and in what, as a sentence; empty where none."""


@runtime_checkable
class ScalesLoss(Protocol):
    """A `Program` that may multiply its loss, so that small gradients do not become zero in fp16;
    others need not offer this."""

    def loss_scale(self) -> tuple[float, str] | None:
        """The scale the next step takes, and how it is found: `dynamic` or `static`. Waits for it.
        None where the loss is not scaled."""


@runtime_checkable
class Profiles(Protocol):
    """A `Program` whose framework tells where the time of its steps goes; others need not."""

    def profile(
        self, run: Callable[[], None], *, layers: bool = False, trace: str | None = None
    ) -> Callable[[], Profile]:
        """Call `run`, which queues steps and waits for them, under the framework's profiler, that
        records what tells the device's work and little more, or with `layers` its layers too; what
        is returned reads it. `trace` names a file for the form of Chrome and Perfetto."""


@runtime_checkable
class ShowsSteps(Program, Protocol):
    """A `Program` that lets one look into a step; others need not offer this."""

    def inspected_step(self, placed: Any, look: Callable[[str, str, Array], None]) -> None:
        """`train_step`, which tells `look` of what it makes, as arrays on the host in the graph's
        layout: ("output", a node, its result), the nodes in the order they are computed; ("own
        gradient", a parameter, its gradient before any exchange); ("gradient", a parameter, what
        the update read, where this rank updates)."""

    def parameters(self) -> dict[str, Array]:
        """A copy of every parameter by name, without the state, in the graph's layout."""


@runtime_checkable
class Resumes(Protocol):
    """A `Program` of a framework that keeps settings for the whole process, which another program
    in it may have changed; others need not offer this."""

    def resume(self) -> None:
        """Set threads, precision and the like for the whole process again, as this program's steps
        need them. Nothing may be in flight."""


class CeilingProgram(Protocol):
    """One elementary operation, repeated: what `Ceiling` work measures."""

    work_per_call: float
    """Operations of one call; of a copy within a device its bytes read plus written, of any other
    copy the bytes that travel."""
    unit: str
    """`FLOP/s` or `byte/s`."""
    what: str
    """What is called, in a few words: the shape of a product, the bytes of a copy."""

    def call(self) -> None:
        """Queue the operation once."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def clock(self) -> float:
        """Seconds on the scale of `time.perf_counter()`."""


class Framework(Protocol):
    """The functions a framework's module offers."""

    def capabilities(self) -> Capabilities:
        """What it can do here. May wake the GPU: call it in a worker, not before a fork."""

    def build(self, request: BuildRequest) -> Program:
        """A program for work that `check_supported` (supported.py) has let through."""

    def build_ceiling(
        self, work: Ceiling, program: ProgramSettings, device: str, threads: int
    ) -> CeilingProgram:
        """The elementary operation of `work`, in `program.precision`. Where `work.size` is None,
        the size at which the rate stops growing is looked for here."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error this framework raised means that memory was refused."""

    def preload(self) -> None:
        """Import all that a first step needs, so that forks of this process need not. Touches no
        GPU and starts no thread."""


def monotonic_s() -> float:
    """The clock of every program that computes: never set back, never slewed by date changes."""
    return time.perf_counter()
