"""The interface between a program and a gradient synchronization strategy (parallel/).

    backward ─ gradient ─ gradient ─▶ bucket full ─▶ sync.ready(bucket)   starts, does not wait
             ─ gradient ─ …                       ─▶ sync.ready(bucket)
    backward done ────────────────────────────────▶ sync.finish()         all buckets synchronized
                                                  ─▶ sync.update(apply, weights)

`GradientSync` is required; the protocols after it are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from cubemesh.frameworks.contract.divided_network import DividedNetwork, DividedSequence
from cubemesh.frameworks.contract.group import Group
from cubemesh.networks.graph import Network

SyncFeature = Literal[
    "all-reduce",
    "hooks",
    "weight-server",
    "cpu-server",
    "model-parallel",
    "tensor-parallel",
    "hybrid-by-layer",
    "context-parallel",
    "sharded",
]
"""What a strategy needs of a framework: `all-reduce` averages gradients, by its own means or by
`GradientSync`; `hooks` calls the methods of any `GradientSync` in its steps; `weight-server` also
those of `WeightServerSync`; `cpu-server` those of `CpuServerSync`; `model-parallel` those of
`ModelParallelSync`; `tensor-parallel` those of `TensorParallelSync`, `hybrid-by-layer` the same
with `own_samples`; `context-parallel` those of `ContextParallelSync`; `sharded` divides weights,
gradients or optimizer state over the ranks, as `ShardedSync` says."""
BUCKET_BYTES = 25 * 2**20
"""Default size of a bucket: large enough that latency is negligible, small enough that the first
are sent early in the backward pass (the default of PyTorch's DistributedDataParallel)."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Neighbouring gradients that are transferred as one flat array. `gradients` is the framework's
    own array; a strategy replaces its content by the mean over all ranks, in place."""

    index: int
    parameters: tuple[str, ...]
    size_bytes: int
    gradients: Any


class GradientSync(Protocol):
    """A strategy that gives all ranks the same weights."""

    name: str
    needs: SyncFeature | None
    """The feature that a framework must have (`Capabilities.sync_features`); None where each rank
    trains separately."""
    low_precision: bool
    """Whether gradients are sent as 16-bit floats. A framework may then make its buckets of 16-bit
    floats, so that nothing is converted."""
    capturable: bool
    """Whether it can be recorded with the step into one CUDA graph."""
    updates: bool
    """Whether this rank updates its weights itself, so that its gradients are synchronized when
    `finish` returns."""
    bucket_bytes: int | None
    """Size of a bucket; None where no gradients are transferred, so that there are no buckets."""

    def ready(self, bucket: Bucket) -> None:
        """Start the synchronization of a bucket whose gradients are complete. Does not wait."""

    def finish(self) -> None:
        """Return when every bucket since the last call is synchronized."""

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Update `weights`, the framework's own arrays; `apply` runs this rank's optimizer on its
        gradients."""


@runtime_checkable
class AllocatesBuckets(Protocol):
    """A `GradientSync` whose buckets must be in memory that it allocates."""

    def allocate(self, numbers: int, like: Any) -> Any:
        """A flat array of zeros of the type of `like`, the framework's own, for a bucket; None
        where any memory will do. Every rank asks for the same arrays in the same order."""


@runtime_checkable
class FinishesInOrder(Protocol):
    """A `GradientSync` whose buckets finish one after the other."""

    def finish_but_last(self) -> None:
        """As `finish`, for every bucket but the last."""


@runtime_checkable
class WeightServerSync(Protocol):
    """A `GradientSync` with a server whose weights are separate from those of the ranks."""

    def attach(self, replica: Replica) -> None:
        """Start from the weights that have just been loaded; a barrier of all ranks."""

    def synchronize_replicas(self) -> None:
        """Wait for all ranks and give each the server's latest weights."""

    def close(self) -> None:
        """Wait until no rank needs the server any more."""


class CpuServer(Protocol):
    """The weights of all ranks, and the optimizer, in the memory of rank 0's CPU."""

    def step(self) -> None:
        """Send this rank's gradients there, where one update is made with the mean of those of all
        ranks, and load the weights. Every rank calls this."""


@runtime_checkable
class CpuServerSync(Protocol):
    """A `GradientSync` with a `CpuServer`."""

    def serve(self, make: Callable[[int, int], CpuServer]) -> None:
        """Start from the weights that have just been loaded. `make(rank, ranks)` creates the server
        and this rank's connection to it; every rank calls this."""


class ServerWeights(Protocol):
    """A second copy of a program's weights, as flat arrays in the order of its buckets, with an
    optimizer of its own. Operations run in the order of the calls, from any thread."""

    incoming: Sequence[Any]
    """Receive buffers for gradients."""
    outgoing: Sequence[Any]
    """Send buffers for weights."""

    def server_stream(self) -> AbstractContextManager[None]:
        """What a thread queues inside runs concurrently with the program's steps."""

    def apply(self, gradients: Sequence[Any], rate_factor: float) -> None:
        """One update by `gradients`, at the program's learning rate times `rate_factor`."""

    def read(self, into: Sequence[Any]) -> None:
        """Copy the weights to `into`."""


class Replica(Protocol):
    """A program's weights, as a `WeightServerSync` reads and writes them."""

    received: Sequence[Any]
    """Receive buffers for weights, in the order of the buckets."""

    def load_received(self) -> None:
        """Make `received` the program's weights."""

    def server_weights(self) -> ServerWeights:
        """A second copy of the program's present weights."""


@runtime_checkable
class SingleUpdaterSync(Protocol):
    """A `GradientSync` in which one rank updates for all; the others receive its weights and
    optimizer state."""

    server: int
    """The rank that updates."""


@runtime_checkable
class WeightAveragingSync(Protocol):
    """A `GradientSync` in which the ranks' weights differ until they are averaged."""

    def average(self, weights: Sequence[Any]) -> None:
        """Replace `weights`, the framework's own arrays, by their mean over all ranks, where they
        may differ. Every rank calls this after the same step."""


def synchronize_weights(sync: object, weights: Sequence[Any]) -> None:
    """Give `weights`, a program's own arrays, the same values on all ranks, under a strategy that
    lets them differ. Every rank calls this."""
    if isinstance(sync, WeightServerSync):
        sync.synchronize_replicas()
    if isinstance(sync, WeightAveragingSync):
        sync.average(weights)


@runtime_checkable
class ModelParallelSync(Protocol):
    """A `GradientSync` whose ranks each hold a part of the network and pass activations on."""

    group: Group

    def parts(self, network: Network) -> Sequence[Network]:
        """The part of every rank; the output of each is the input of the next."""


@runtime_checkable
class PipelineSync(Protocol):
    """A `ModelParallelSync` that passes micro-batches from stage to stage. Where there are more
    ranks than stages, ranks r·stages to (r + 1)·stages - 1 are replica r of the pipeline."""

    group: Group
    stages: int

    def micro_batches(self, samples: int) -> int:
        """Micro-batches of a step of so many samples."""

    def actions(self, stage: int, micro_batches: int) -> Sequence[tuple[str, int]]:
        """(`forward` or `backward`, micro-batch) of each pass of a stage in a step, in order."""

    times: StepTimes


@runtime_checkable
class ShardedSync(Protocol):
    """A `GradientSync` that divides what data-parallel ranks would each hold whole (ZeRO)."""

    group: Group
    zero_stage: int
    """1: the optimizer's state; 2: the gradients too; 3: the weights too."""


@runtime_checkable
class TensorParallelSync(Protocol):
    """A `GradientSync` in which the ranks r·size to (r + 1)·size - 1 divide each layer of replica r
    of the network; replicas average their gradients."""

    group: Group
    """All ranks."""
    size: int
    """Ranks that divide a layer."""

    own_samples: bool
    """Whether each rank has its own samples: layers that are not divided compute those, and average
    their gradients over all ranks."""

    def divide(self, network: Network) -> DividedNetwork:
        """`network` over so many devices; Unsupported where a layer cannot be divided."""

    def use_replicas(self, replicas: Group) -> None:
        """Average gradients over `replicas`: the ranks that have the same part of the network."""


@runtime_checkable
class ContextParallelSync(Protocol):
    """A `GradientSync` in which the ranks r·size to (r + 1)·size - 1 divide each sequence of
    replica r of the network; all ranks average their gradients."""

    group: Group
    """All ranks."""
    size: int
    """Ranks that divide a sequence."""

    def divide_sequence(self, network: Network) -> DividedSequence:
        """`network` on so many devices; Unsupported where its sequences cannot be divided."""


class StepTimes(Protocol):
    """Receives the times of a rank's steps."""

    def add(self, step_s: float, wait_s: float, gradients_s: float, micro_batches: int) -> None:
        """One step: its time, and the time in it that the device waited for other stages and for
        the gradients of other replicas."""


@runtime_checkable
class StatefulSync(Protocol):
    """A `GradientSync` whose next step depends on those before it."""

    def state(self) -> dict[str, Any]:
        """Its state as plain data."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
