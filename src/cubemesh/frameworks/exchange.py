"""How a program and an exchange of gradients speak with one another.

    backward ─ gradient ─ gradient ─▶ bucket full ─▶ exchange.ready(bucket)   begins, does not wait
             ─ gradient ─ …                       ─▶ exchange.ready(bucket)
    backward done ────────────────────────────────▶ exchange.finish()         all exchanged
                                                  ─▶ exchange.update(apply, weights)

A `Group` is what an exchange moves arrays with; a framework offers it for its own arrays. The
exchanges themselves (parallel/) name no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

BUCKET_BYTES = 25 * 2**20
"""Gradients that travel together, about: large enough that latency is small beside the transfer,
small enough that the first leave while most of the backward pass is to come (the default of
PyTorch's DistributedDataParallel)."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Neighbouring gradients that travel as one flat array. `gradients` is the framework's own
    array; an exchange replaces its content by the mean over all ranks, in place."""

    index: int
    parameters: tuple[str, ...]
    size_bytes: int
    gradients: Any


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

    def close(self) -> None:
        """Leave the group."""


class Exchange(Protocol):
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

    def close(self) -> None:
        """There is nothing to leave."""


class _Done:
    def wait(self) -> None:
        """Nothing is under way."""
