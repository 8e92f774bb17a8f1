"""How several devices come to the same weights: the table of exchanges.

| name | what travels, and when |
|---|---|
| `none` | nothing: one device has the mean already |
| `all-reduce` | each bucket of gradients, as soon as it is full; every rank updates its weights |
| `all-reduce-16` | the same as 16-bit floats (bfloat16): half the bytes, rounded |
| `all-reduce-copied` | as `all-reduce`, by copies from GPU to GPU: their cores go on computing |
| `all-reduce-copied-16` | the same as 16-bit floats |
| `parameter-server` | gradients to rank 0, which averages them and updates; its weights to all |
| `local-sgd` | nothing for most steps; every `AVERAGE_EVERY` steps the weights, averaged |
| `asynchronous` | each rank's gradient to the server, when it is there; the server's weights back |
| `asynchronous-aware` | the same; the staler a gradient, the smaller its update (asynchronous.py) |
| `model-parallel` | no gradient: each rank has a part of the network (model_parallel.py) |

An exchange is told of each bucket as it becomes ready and waits in `finish`; see `GradientSync` in
frameworks/api/gradient_sync.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from cubemesh.errors import unknown_name
from cubemesh.frameworks.api.gradient_sync import BUCKET_BYTES, Bucket, GradientSync
from cubemesh.frameworks.api.group import (
    Group,
    PeerMemory,
    PeerMemoryGroup,
    SingleProcessGroup,
    TransferHandle,
)
from cubemesh.parallel.asynchronous import SERVER, Asynchronous
from cubemesh.parallel.model_parallel import ModelParallel

AVERAGE_EVERY = 8
"""Steps between two averages under `local-sgd`."""


class NoExchange:
    """For a single device: every gradient stays as it is."""

    name = "none"
    capturable = True
    updates = True
    bucket_bytes: int | None = None

    def ready(self, bucket: Bucket) -> None:
        """Leave the bucket as it is."""

    def finish(self) -> None:
        """Nothing is under way, so there is nothing to wait for."""

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Update."""
        apply()


class AllReduce:
    """Every rank gets the mean of all gradients and makes the same update. A bucket travels while
    the backward pass goes on."""

    capturable = True
    updates = True
    bucket_bytes: int | None = BUCKET_BYTES

    def __init__(self, group: Group, low_precision: bool = False) -> None:
        self.name = "all-reduce-16" if low_precision else "all-reduce"
        self._group, self.low_precision = group, low_precision
        self._under_way: list[TransferHandle] = []

    def ready(self, bucket: Bucket) -> None:
        """Begin to reduce it."""
        self._under_way.append(self._group.all_reduce_mean(bucket.gradients, self.low_precision))

    def finish(self) -> None:
        """Wait for every bucket."""
        _wait(self._under_way)

    def finish_but_last(self) -> None:
        """See `FinishesInOrder`."""
        self._under_way = _wait_but_last(self._under_way)

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Update: the gradients are alike everywhere, so the weights stay so."""
        apply()


class CopiedAllReduce(AllReduce):
    """The same, where devices fetch from each other's memory by themselves."""

    def __init__(self, group: Group, low_precision: bool = False) -> None:
        super().__init__(group, low_precision)
        self.name = "all-reduce-copied-16" if low_precision else "all-reduce-copied"
        self._peers: PeerMemory | None = None
        if group.size > 1:
            self._peers = cast(PeerMemoryGroup, group).peer_memory()

    def allocate(self, numbers: int, like: Any) -> Any:
        """See `AllocatesBuckets`."""
        return None if self._peers is None else self._peers.allocate(numbers, like)

    def ready(self, bucket: Bucket) -> None:
        """Begin to average it."""
        if self._peers is not None:
            self._under_way.append(self._peers.all_reduce_mean(bucket.gradients))


class ParameterServer:
    """As document 001 describes it: weights in one place, gradients averaged there, the new weights
    sent out. The server computes as well."""

    name = "parameter-server"
    capturable = False
    server = SERVER
    bucket_bytes: int | None = BUCKET_BYTES

    def __init__(self, group: Group) -> None:
        self._group, self.updates = group, group.rank == SERVER
        self._under_way: list[TransferHandle] = []

    def ready(self, bucket: Bucket) -> None:
        """Begin to send it to the server."""
        self._under_way.append(self._group.reduce_mean(bucket.gradients, SERVER))

    def finish(self) -> None:
        """Wait until the server has every mean."""
        _wait(self._under_way)

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """The server updates, the others get its weights."""
        if self.updates:
            apply()
        self._group.broadcast(weights, SERVER).wait()


class LocalSgd:
    """Each rank trains by itself, and now and then the weights are averaged (Stich, ICLR 2019).
    What has been learned is their mean, so that is also what is evaluated and kept."""

    name = "local-sgd"
    capturable = False
    updates = True
    bucket_bytes: int | None = None

    def __init__(self, group: Group, every: int = AVERAGE_EVERY) -> None:
        self._group, self._every, self._steps = group, every, 0
        self._parted = False
        """Whether a step was made since the weights were averaged."""

    def ready(self, bucket: Bucket) -> None:
        """No gradient travels."""

    def finish(self) -> None:
        """Nothing is under way."""

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Update, and average the weights where it is time."""
        apply()
        self._steps += 1
        self._parted = True
        if self._steps % self._every == 0:
            self.average(weights)

    def average(self, weights: Sequence[Any]) -> None:
        """See `WeightAveragingSync`."""
        if self._parted:
            _wait([self._group.all_reduce_mean(array) for array in weights])
        self._parted = False

    def state(self) -> dict[str, Any]:
        """See `StatefulSync`."""
        return {"steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `StatefulSync`."""
        self._steps = state["steps"]


SAME_WEIGHTS = frozenset(
    {
        *("all-reduce", "all-reduce-16", "all-reduce-copied", "all-reduce-copied-16"),
        "parameter-server",
    }
)
"""The exchanges after each step of which all ranks have the same weights, to the bit."""

ROUNDED = frozenset({"all-reduce-16", "all-reduce-copied-16"})
"""The exchanges that round what they send to 16 bits."""

STRATEGIES: dict[str, Callable[[Group], GradientSync]] = {
    "none": lambda group: NoExchange(),
    "all-reduce": AllReduce,
    "all-reduce-16": lambda group: AllReduce(group, low_precision=True),
    "all-reduce-copied": CopiedAllReduce,
    "all-reduce-copied-16": lambda group: CopiedAllReduce(group, low_precision=True),
    "parameter-server": ParameterServer,
    "local-sgd": LocalSgd,
    "asynchronous": Asynchronous,
    "asynchronous-aware": lambda group: Asynchronous(group, aware=True),
    "model-parallel": ModelParallel,
}
OUT_OF_STEP = frozenset({"asynchronous", "asynchronous-aware"})
"""Exchanges under which a rank never waits for another, so that each makes as many steps as it
can."""
SIDE_BY_SIDE = OUT_OF_STEP | {"none"}
"""Exchanges under which no step of a rank waits for another rank's, so that the ranks' windows do
not begin together."""
ONE_REPLICA = frozenset({"model-parallel"})
"""Exchanges under which all ranks work on the same samples, those of the global minibatch."""


def check(name: str) -> None:
    """UsageError naming the nearest exchange when there is none called `name`."""
    if name not in STRATEGIES:
        raise unknown_name("sync", name, STRATEGIES)


def same_steps(one: str, other: str) -> bool:
    """Whether two exchanges lead to the same weights, but for how they round a sum."""
    if {one, other} <= SAME_WEIGHTS:
        return (one in ROUNDED) == (other in ROUNDED)
    return one == other


def make(name: str, group: Group | None = None, bucket_bytes: int | None = None) -> GradientSync:
    """The exchange called `name` between the ranks of `group` (None: one rank alone), with buckets
    of about `bucket_bytes` where it has any (None: as large as it makes them by itself)."""
    check(name)
    sync = STRATEGIES[name](group or SingleProcessGroup())
    if bucket_bytes is not None and sync.bucket_bytes is not None:
        sync.bucket_bytes = bucket_bytes
    return sync


def _wait_but_last(under_way: list[TransferHandle]) -> list[TransferHandle]:
    """What is still under way."""
    _wait(under_way[:-1])
    return under_way[-1:]


def _wait(under_way: list[TransferHandle]) -> None:
    for pending in under_way:
        pending.wait()
    under_way.clear()
