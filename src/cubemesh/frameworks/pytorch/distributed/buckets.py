"""Gradient buckets: flat arrays, filled during the backward pass and synchronized when full.

    parameters, last layer first:   │ fc.weight fc.bias layer4… │ layer4… layer3… │ … conv1 │
    one flat array each:            └────────── bucket 0 ───────┴─── bucket 1 ────┴── … ────┘

When a bucket's last gradient is complete, all are copied into the bucket at once, except those that
were written there directly; a parameter's gradient is then a view of the bucket, so the optimizer
reads the synchronized values. With 16-bit communication buckets are 16-bit, and the result is cast
back to fp32 for the optimizer. A bucket is synchronized when it is full and every earlier bucket
has been: all ranks use the same order, independent of that of their gradients. (The design of
PyTorch's DistributedDataParallel: Li et al., VLDB 2020.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.contract.gradient_sync import AllocatesBuckets, Bucket, GradientSync
from cubemesh.frameworks.pytorch.distributed.group import LOW_PRECISION
from cubemesh.frameworks.pytorch.precision.master_weight_cast import GradientPlace

AllocateBucket = Callable[[int, Tensor], "Tensor | None"]
"""(numbers, an array of their dtype) → a flat array of zeros; None for PyTorch's allocator."""


class GradientBuckets:
    """The buckets of a network's parameters; `ready` is called with each when it is full."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        bucket_bytes: int,
        ready: Callable[[Bucket], None],
        allocate: AllocateBucket | None = None,
        low_precision_dtype: torch.dtype | None = None,
        leaves: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`low_precision_dtype`: dtype of the buckets; None for the parameters' own. `leaves`: the
        tensors of which autograd computes the gradients, where they are not the parameters."""
        self._ready, self._allocate, self._travels_as = ready, allocate, low_precision_dtype
        self._parameters = dict(parameters)
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._places: dict[str, Tensor] = {}
        """View of each gradient in its bucket."""
        self._gradients: dict[str, Tensor] = {}
        """The gradient that the optimizer reads: the same view, or an fp32 copy."""
        self._fp32_gradients: list[Tensor] = []
        """Those copies, by bucket; empty without low precision."""
        self.external_bytes = 0
        """Of buckets outside PyTorch's allocator."""
        self._bucket_of: dict[str, int] = {}
        self.buckets: tuple[Bucket, ...] = tuple(
            self._make(index, names)
            for index, names in enumerate(packed(self._parameters, bucket_bytes))
        )
        self.paused = False
        """Whether gradients are neither gathered nor synchronized."""
        self.before_gather: Callable[[Bucket], None] = lambda bucket: None
        """Called with each bucket whose gradients are complete, before they are copied."""
        self._given: set[str] = set()
        """Parameters whose destination was requested in this backward pass."""
        self._missing: list[int] = []
        self._next = 0
        self._hooks: list[Any] = [
            leaf.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]
            for name, leaf in (leaves or self._parameters).items()
        ]
        self.start()

    def place_of(self, parameter: Tensor) -> GradientPlace | None:
        """The destination of a parameter's gradient in its bucket, and the array for autograd. None
        for a tensor that is no parameter, a parameter that has a gradient, and while paused."""
        name = self._names.get(id(parameter))
        if name is None or self.paused or parameter.grad is not None:
            return None
        self._given.add(name)
        return GradientPlace(self._places[name], self._gradients[name].detach())

    def start(self) -> None:
        """Reset before each backward pass."""
        self._given.clear()
        self._missing = [len(bucket.parameters) for bucket in self.buckets]
        self._next = 0

    def close(self) -> None:
        """Remove the hooks, which keep the buckets' memory alive."""
        for hook in self._hooks:
            hook.remove()

    def check_complete(self) -> None:
        """RuntimeError if a bucket was not synchronized: the ranks would wait for it."""
        if self._next < len(self.buckets):
            bucket = self.buckets[self._next]
            raise RuntimeError(
                f"the backward pass computed no gradient for {self._missing[self._next]} of "
                f"{len(bucket.parameters)} parameters of bucket {bucket.index}."
            )

    def restore_precision(self, exchanged: Sequence[Bucket]) -> None:
        """Cast synchronized 16-bit buckets to the fp32 gradients that the optimizer reads."""
        if not self._fp32_gradients:
            return
        fp32 = [self._fp32_gradients[bucket.index] for bucket in exchanged]
        torch._foreach_copy_(fp32, [bucket.gradients for bucket in exchanged])

    def _make(self, index: int, names: Sequence[str]) -> Bucket:
        like = {name: self._parameters[name] for name in names}
        size, first = sum(p.numel() for p in like.values()), like[names[0]]
        kind = first.new_empty(0, dtype=self._travels_as)
        flat = self._allocate(size, kind) if self._allocate else None
        if flat is None:
            flat = kind.new_zeros(size)
        else:
            self.external_bytes += flat.nbytes
        read = flat
        if flat.dtype != first.dtype:
            read = first.new_zeros(size)
            self._fp32_gradients.append(read)
        self._places |= places(flat, like)
        self._gradients |= places(read, like)
        self._bucket_of |= dict.fromkeys(names, index)
        size_bytes = flat.numel() * flat.element_size()
        return Bucket(index=index, parameters=tuple(names), size_bytes=size_bytes, gradients=flat)

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        index = self._bucket_of[name]

        def accumulated(parameter: Tensor) -> None:
            if self.paused:
                return
            self._missing[index] -= 1
            if not self._missing[index]:
                self._gather(self.buckets[index])
            while self._next < len(self.buckets) and not self._missing[self._next]:
                self._ready(self.buckets[self._next])
                self._next += 1

        return accumulated

    def _gather(self, bucket: Bucket) -> None:
        """Copy every gradient of a bucket into it."""
        self.before_gather(bucket)
        to, given = [], []
        for name in bucket.parameters:
            parameter, read = self._parameters[name], self._gradients[name]
            assert parameter.grad is not None, "all are complete"
            if parameter.grad.data_ptr() != read.data_ptr():
                assert not (self._fp32_gradients and name in self._given), (
                    f"{name} has two gradients"
                )
                to.append(self._places[name])
                given.append(parameter.grad)
            parameter.grad = read
        if to:  # hundreds are small: one kernel for all
            torch._foreach_copy_(to, given)


def buckets_for(
    sync: GradientSync,
    parameters: Mapping[str, nn.Parameter],
    leaves: Mapping[str, Tensor] | None = None,
) -> GradientBuckets | None:
    """The buckets of a synchronization strategy; None if it sends no gradients."""
    if sync.bucket_bytes is None:
        return None
    return GradientBuckets(
        parameters,
        sync.bucket_bytes,
        sync.ready,
        sync.allocate if isinstance(sync, AllocatesBuckets) else None,
        LOW_PRECISION if sync.low_precision else None,
        leaves,
    )


def gradient_copies(parameters: Mapping[str, nn.Parameter], bucket: Bucket) -> dict[str, Tensor]:
    """Copies of a bucket's gradients by parameter, each of which has one."""
    copies = {}
    for name in bucket.parameters:
        gradient = parameters[name].grad
        assert gradient is not None
        copies[name] = gradient.clone()
    return copies


@contextmanager
def without_gradients(
    parameters: Mapping[str, nn.Parameter], names: Sequence[str]
) -> Iterator[None]:
    """Within it the named parameters have no gradient, so that an optimizer skips them."""
    saved = [(parameters[name], parameters[name].grad) for name in names]
    for parameter, _ in saved:
        parameter.grad = None
    yield
    for parameter, gradient in saved:
        parameter.grad = gradient


def places(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Views of `flat` with the sizes and strides of `like`, in order."""
    parts = torch.split(flat, [array.numel() for array in like.values()])
    return {
        name: part.as_strided(array.size(), array.stride(), part.storage_offset())
        for (name, array), part in zip(like.items(), parts, strict=True)
    }


def packed(parameters: Mapping[str, Tensor], bucket_bytes: int) -> Iterable[list[str]]:
    """The names by bucket, last parameter first: a bucket is closed when it holds `bucket_bytes` or
    more, or the next parameter has another dtype."""
    names: list[str] = []
    size = 0
    for name in reversed(list(parameters)):
        parameter = parameters[name]
        other = bool(names) and parameters[names[0]].dtype != parameter.dtype
        if names and (size >= bucket_bytes or other):
            yield names
            names, size = [], 0
        names.append(name)
        size += parameter.numel() * parameter.element_size()
    if names:
        yield names
