"""How a program and an exchange of gradients speak with one another.

    backward ─ gradient ─ gradient ─▶ bucket full ─▶ exchange.ready(bucket)   begins, does not wait
             ─ gradient ─ …                       ─▶ exchange.ready(bucket)
    backward done ────────────────────────────────▶ exchange.finish()         all exchanged
                                                  ─▶ exchange.update(apply, weights)

A `Group` is what an exchange moves arrays with; a framework offers it for its own arrays. The
exchanges themselves (parallel/) name no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from cubemesh.networks.graph import Network

BUCKET_BYTES = 25 * 2**20
"""Gradients that travel together, about: large enough that latency is small beside the transfer,
small enough that the first leave while most of the backward pass is to come (the default of
PyTorch's DistributedDataParallel)."""

RANK_SEEDS = 1_000_003
"""Between the seeds by which two ranks drop: a prime that nobody asks for as a seed."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Neighbouring gradients that travel as one flat array. `gradients` is the framework's own
    array; an exchange replaces its content by the mean over all ranks, in place."""

    index: int
    parameters: tuple[str, ...]
    size_bytes: int
    gradients: Any


@dataclass(frozen=True, kw_only=True)
class Link:
    """Over what a rank exchanges."""

    transport: str
    """`gloo TCP`, `NCCL P2P/CUMEM`, `NCCL SHM/direct, NET/Socket`."""
    interface: str = ""
    """The network interface, where it is a network's or may be."""


class Pending(Protocol):
    """A transfer that is under way."""

    def wait(self) -> None:
        """Return when what is queued from now on sees the result."""


class Group(Protocol):
    """The ranks of a run. Every rank calls the same operations in the same order; each returns at
    once, and the arrays must be left alone until `wait`."""

    rank: int
    size: int

    def all_reduce_mean(self, array: Any, narrow: bool = False) -> Pending:
        """Replace `array` on every rank by the mean over all; `narrow` sends 16-bit floats."""

    def reduce_mean(self, array: Any, root: int) -> Pending:
        """Replace `array` on rank `root` by the mean over all; the others' holds nothing after."""

    def broadcast(self, arrays: Sequence[Any], root: int) -> Pending:
        """Replace `arrays` on every rank by those of rank `root`."""

    def agree(self, value: Any) -> Any:
        """Rank 0's `value`, plain data, on every rank."""

    def share(self, value: Any) -> list[Any]:
        """Every rank's `value`, plain data, by rank."""

    def told(self, word: str, value: bool) -> bool:
        """Whether rank 0 has called this with `word` and True so far. Nobody waits."""

    def meet(self, check: Callable[[], None] | None = None) -> None:
        """Wait until every rank has called this, however long that takes. Meanwhile `check` is
        called again and again; what it raises ends the waiting."""

    def mail(self) -> Mail:
        """A way for two ranks to speak that the others know nothing of. Every rank calls this."""

    def close(self) -> None:
        """Leave the group."""


@runtime_checkable
class TellsLink(Protocol):
    """A group that can say over what it exchanges; others need not."""

    def link(self) -> Link | None:
        """What this rank has used so far; None where that is not known."""


@runtime_checkable
class CopiesBetween(Protocol):
    """A group whose devices can fetch from each other's memory; others need not."""

    def copies(self) -> Copies:
        """A way to do that, for the buckets of one program. Every rank calls this; `Unsupported`
        where the devices that met cannot."""


class Copies(Protocol):
    """Means that devices make by fetching from one another, beside what they compute. Every rank
    calls the same operations in the same order."""

    def room(self, numbers: int, like: Any) -> Any:
        """A flat array of zeros of the type of `like`, which the other ranks can read."""

    def all_reduce_mean(self, array: Any) -> Pending:
        """Begin to replace an array that `room` made by its mean over all ranks. When it has been
        waited for, no rank reads it any more."""


class Mail(Protocol):
    """Messages and arrays from one rank to another. An array is queued on the device; that it is
    on its way is told by a message first, so that no device waits for one that is not yet made."""

    def tell(self, numbers: Sequence[int], to: int) -> None:
        """Send `MESSAGE` integers, after all that is queued on this rank's device is done."""

    def hear(self, source: int | None = None) -> tuple[int, list[int]]:
        """Wait for a message from rank `source`, or from any; who sent it, and the integers."""

    def send(self, arrays: Sequence[Any], to: int) -> None:
        """Send flat arrays."""

    def receive(self, arrays: Sequence[Any], source: int) -> None:
        """Replace the content of flat arrays by what rank `source` sends."""


MESSAGE = 2
"""Integers in a message."""


class Master(Protocol):
    """A second set of a program's weights, as flat arrays cut as its buckets are, with an optimizer
    of its own. What it does is queued in the order it is asked for, by whatever thread."""

    incoming: Sequence[Any]
    """Flat arrays for gradients to be received into."""
    outgoing: Sequence[Any]
    """Flat arrays for weights to be sent from."""

    def serving(self) -> AbstractContextManager[None]:
        """What a thread does inside is queued beside the program's steps, not between them."""

    def apply(self, gradients: Sequence[Any], rate_factor: float) -> None:
        """One update by `gradients`, at the program's learning rate times `rate_factor`."""

    def read(self, into: Sequence[Any]) -> None:
        """Copy the weights."""


class Replica(Protocol):
    """What a program lends an exchange that keeps the weights elsewhere."""

    arriving: Sequence[Any]
    """Flat arrays for weights to be received into, cut as the buckets are."""

    def take(self) -> None:
        """Make what has arrived the program's weights."""

    def master(self) -> Master:
        """The program's present weights, a second time."""


class GradientSync(Protocol):
    """How ranks come to the same weights (parallel/ implements it)."""

    name: str
    capturable: bool
    """Whether it can be recorded with the step into one graph."""
    updates: bool
    """Whether this rank updates its weights itself, so that its gradients are the exchanged ones
    when `finish` returns."""
    bucket_bytes: int | None
    """How much should travel together; None where no gradient travels, so no bucket is made."""

    def ready(self, bucket: Bucket) -> None:
        """The bucket's gradients are complete: the exchange may begin. Does not wait."""

    def finish(self) -> None:
        """Return when every bucket given since the last call holds its exchanged gradients."""

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Bring `weights`, the framework's own arrays, to where the exchanged gradients lead;
        `apply` runs this rank's optimizer on its gradients."""


@runtime_checkable
class MakesRoom(Protocol):
    """A `GradientSync` whose buckets must lie in memory of its own."""

    def room(self, numbers: int, like: Any) -> Any:
        """A flat array of zeros of the type of `like`, the framework's own, for a bucket; None
        where any will do. Every rank asks for the same ones in the same order."""


@runtime_checkable
class FinishesInOrder(Protocol):
    """A `GradientSync` whose buckets come back one after the other; others need not offer this."""

    def finish_but_last(self) -> None:
        """As `finish`, for every bucket but the last that was given."""


@runtime_checkable
class SendsNarrow(Protocol):
    """A `GradientSync` that may round what it sends. A framework may make its buckets of 16-bit
    floats, and then nothing is converted."""

    narrow: bool
    """Whether numbers travel as 16-bit floats."""


@runtime_checkable
class KeepsWeights(Protocol):
    """A `GradientSync` that keeps the weights apart from those its ranks compute with."""

    def keep(self, replica: Replica) -> None:
        """Take over the weights that have just been loaded; all ranks are together after it."""

    def settle(self) -> None:
        """Wait for all ranks and give each the weights that all their updates have led to."""

    def close(self) -> None:
        """Wait until no rank needs the weights any more."""


@runtime_checkable
class OneUpdates(Protocol):
    """A `GradientSync` under which one rank updates for all, and the others receive the result:
    its weights, and whatever else its next update depends on."""

    server: int
    """The rank that updates."""


@runtime_checkable
class AveragesWeights(Protocol):
    """A `GradientSync` under which the weights of its ranks part, until they are averaged."""

    def average(self, weights: Sequence[Any]) -> None:
        """Replace `weights`, the framework's own arrays, by their mean over all ranks, where they
        may have parted. Every rank calls this after the same step."""


def rejoin(sync: object, weights: Sequence[Any]) -> None:
    """Bring `weights`, a program's own arrays, to what all ranks have come to together, under an
    exchange that lets them part. Every rank calls this."""
    if isinstance(sync, KeepsWeights):
        sync.settle()
    if isinstance(sync, AveragesWeights):
        sync.average(weights)


@runtime_checkable
class SplitsNetwork(Protocol):
    """A `GradientSync` whose ranks each hold a part of the network and pass values on."""

    group: Group

    def parts(self, network: Network) -> Sequence[Network]:
        """The part of every rank, each fed what the one before it ends in."""


@runtime_checkable
class Settles(Protocol):
    """A `Program` whose weights may not be, after a step, what the ranks have come to together;
    others need not offer this."""

    def settle(self) -> None:
        """Wait for the other ranks where that is so, and take those weights."""


def settle(program: object) -> None:
    """Settle a program that offers it: on all ranks, before its weights are evaluated or kept."""
    if isinstance(program, Settles):
        program.settle()


@runtime_checkable
class KeepsState(Protocol):
    """A `GradientSync` whose next step depends on those before it; others need not offer this."""

    def state(self) -> dict[str, Any]:
        """What it depends on, as plain data."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


class Alone:
    """The group of a rank that has nobody beside it."""

    rank = 0
    size = 1

    def all_reduce_mean(self, array: Any, narrow: bool = False) -> Pending:
        """It is the mean already."""
        return _Done()

    def reduce_mean(self, array: Any, root: int) -> Pending:
        """It is the mean already."""
        return _Done()

    def broadcast(self, arrays: Sequence[Any], root: int) -> Pending:
        """Nobody else is there."""
        return _Done()

    def agree(self, value: Any) -> Any:
        """Whatever it says."""
        return value

    def share(self, value: Any) -> list[Any]:
        """It is the only one."""
        return [value]

    def told(self, word: str, value: bool) -> bool:
        """Whatever it says."""
        return value

    def meet(self, check: Callable[[], None] | None = None) -> None:
        """Nobody else comes."""

    def mail(self) -> Mail:
        """RuntimeError: there is nobody to write to."""
        raise RuntimeError("a rank alone has nobody to write to")

    def close(self) -> None:
        """There is nothing to leave."""


class _Done:
    def wait(self) -> None:
        """Nothing is under way."""
