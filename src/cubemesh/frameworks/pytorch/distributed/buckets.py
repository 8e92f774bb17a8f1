"""Gradients that travel together: flat buckets, filled while the backward pass runs.

    parameters, last layer first:   │ fc.weight fc.bias layer4… │ layer4… layer3… │ … conv1 │
    one flat array each:            └────────── bucket 0 ───────┴─── bucket 1 ────┴── … ────┘

When a bucket's last gradient is complete, all of them are copied into their places at once, but for
those that were written there; a parameter's gradient then *is* its place, so what the exchange
leaves there is what the optimizer reads. Where numbers travel as 16-bit floats, buckets are of
those, and what the exchange leaves there is made wide again for the optimizer. A bucket is handed
over when it is full and every bucket before it has been handed over: all ranks hand over in the
same order, whatever order their gradients come in. (The design of PyTorch's
DistributedDataParallel: Li et al., VLDB 2020.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.api.gradient_sync import (
    AllocatesBuckets,
    Bucket,
    GradientSync,
)
from cubemesh.frameworks.pytorch.distributed.group import NARROW
from cubemesh.frameworks.pytorch.precision.master_weight_cast import Place

Room = Callable[[int, Tensor], "Tensor | None"]
"""Of how many numbers, and an array of their type: a flat array of zeros for them; None where any
will do."""


def anywhere(numbers: int, like: Tensor) -> Tensor | None:
    """No memory of its own for a bucket."""
    return None


class GradientBuckets:
    """The buckets of a network's parameters; `ready` is called with each as it fills."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        bucket_bytes: int,
        ready: Callable[[Bucket], None],
        room: Room = anywhere,
        travels_as: torch.dtype | None = None,
    ) -> None:
        """`travels_as` is the type of what is handed over; None is the parameters' own."""
        self._ready, self._room, self._travels_as = ready, room, travels_as
        self._parameters = dict(parameters)
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._places: dict[str, Tensor] = {}
        """Where each gradient travels."""
        self._gradients: dict[str, Tensor] = {}
        """Where the optimizer reads it: the same place, or a wide copy of it."""
        self._wide: list[Tensor] = []
        """Those copies, by bucket; none where gradients travel as they are."""
        self.apart_bytes = 0
        """Of buckets in memory of the exchange's own, which PyTorch's allocator does not count."""
        self._bucket_of: dict[str, int] = {}
        self.buckets: tuple[Bucket, ...] = tuple(
            self._make(index, names)
            for index, names in enumerate(packed(self._parameters, bucket_bytes))
        )
        self.resting = False
        """Whether gradients stay where they came and nothing is handed over."""
        self.gathering: Callable[[Bucket], None] = lambda bucket: None
        """Called with each bucket whose gradients have come, before they are moved."""
        self._given: set[str] = set()
        """Parameters whose place was given away in this backward pass."""
        self._missing: list[int] = []
        self._next = 0
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]
            for name, parameter in self._parameters.items()
        ]
        self.start()

    def place_of(self, parameter: Tensor) -> Place | None:
        """Where the gradient of a parameter travels, for one that makes it to write it there
        itself, and what is to be given to autograd. None for what is no parameter, for one that has
        a gradient, which may lie there, and while gradients rest."""
        name = self._names.get(id(parameter))
        if name is None or self.resting or parameter.grad is not None:
            return None
        self._given.add(name)
        return Place(self._places[name], self._gradients[name].detach())

    def start(self) -> None:
        """Before each backward pass: nothing has come yet."""
        self._given.clear()
        self._missing = [len(bucket.parameters) for bucket in self.buckets]
        self._next = 0

    def close(self) -> None:
        """Let go of the parameters, which would keep the buckets' memory."""
        for hook in self._hooks:
            hook.remove()

    def check_complete(self) -> None:
        """RuntimeError where a bucket was never handed over: the ranks would wait for it."""
        if self._next < len(self.buckets):
            bucket = self.buckets[self._next]
            raise RuntimeError(
                f"{self._missing[self._next]} of the {len(bucket.parameters)} gradients of bucket "
                f"{bucket.index} did not come in the backward pass."
            )

    def widen(self, exchanged: Sequence[Bucket]) -> None:
        """Give the optimizer what travelled as narrow numbers, of buckets that have come back."""
        if not self._wide:
            return
        wide = [self._wide[bucket.index] for bucket in exchanged]
        torch._foreach_copy_(wide, [bucket.gradients for bucket in exchanged])

    def _make(self, index: int, names: Sequence[str]) -> Bucket:
        like = {name: self._parameters[name] for name in names}
        size, first = sum(p.numel() for p in like.values()), like[names[0]]
        kind = first.new_empty(0, dtype=self._travels_as)
        flat = self._room(size, kind)
        if flat is None:
            flat = kind.new_zeros(size)
        else:
            self.apart_bytes += flat.nbytes
        read = flat
        if flat.dtype != first.dtype:
            read = first.new_zeros(size)
            self._wide.append(read)
        self._places |= places(flat, like)
        self._gradients |= places(read, like)
        self._bucket_of |= dict.fromkeys(names, index)
        size_bytes = flat.numel() * flat.element_size()
        return Bucket(index=index, parameters=tuple(names), size_bytes=size_bytes, gradients=flat)

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        index = self._bucket_of[name]

        def arrived(parameter: Tensor) -> None:
            if self.resting:
                return
            self._missing[index] -= 1
            if not self._missing[index]:
                self._gather(self.buckets[index])
            while self._next < len(self.buckets) and not self._missing[self._next]:
                self._ready(self.buckets[self._next])
                self._next += 1

        return arrived

    def _gather(self, bucket: Bucket) -> None:
        """Have every gradient of a bucket lie in its place."""
        self.gathering(bucket)
        to, given = [], []
        for name in bucket.parameters:
            parameter, read = self._parameters[name], self._gradients[name]
            assert parameter.grad is not None, "all have come"
            if parameter.grad.data_ptr() != read.data_ptr():
                assert not (self._wide and name in self._given), f"{name} has two gradients"
                to.append(self._places[name])
                given.append(parameter.grad)
            parameter.grad = read
        if to:  # hundreds are small: one kernel, not one each
            torch._foreach_copy_(to, given)


def buckets_for(
    sync: GradientSync, parameters: Mapping[str, nn.Parameter]
) -> GradientBuckets | None:
    """As an exchange wants them, which is told of each; None where it sends no gradients."""
    if sync.bucket_bytes is None:
        return None
    return GradientBuckets(
        parameters,
        sync.bucket_bytes,
        sync.ready,
        sync.allocate if isinstance(sync, AllocatesBuckets) else anywhere,
        NARROW if sync.low_precision else None,
    )


@contextmanager
def without_gradients(
    parameters: Mapping[str, nn.Parameter], names: Sequence[str]
) -> Iterator[None]:
    """Within it those named have no gradient, so that an optimizer leaves them alone."""
    kept = [(parameters[name], parameters[name].grad) for name in names]
    for parameter, _ in kept:
        parameter.grad = None
    yield
    for parameter, gradient in kept:
        parameter.grad = gradient


def places(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`flat` cut into arrays of the sizes and layouts of `like`, one after the other."""
    parts = torch.split(flat, [array.numel() for array in like.values()])
    return {
        name: part.as_strided(array.size(), array.stride(), part.storage_offset())
        for (name, array), part in zip(like.items(), parts, strict=True)
    }


def packed(parameters: Mapping[str, Tensor], bucket_bytes: int) -> Iterable[list[str]]:
    """The names bucket by bucket, last parameter first: a bucket is closed when it holds
    `bucket_bytes` or more, or the next parameter is of another type."""
    names: list[str] = []
    held = 0
    for name in reversed(list(parameters)):
        parameter = parameters[name]
        other = bool(names) and parameters[names[0]].dtype != parameter.dtype
        if names and (held >= bucket_bytes or other):
            yield names
            names, held = [], 0
        names.append(name)
        held += parameter.numel() * parameter.element_size()
    if names:
        yield names
