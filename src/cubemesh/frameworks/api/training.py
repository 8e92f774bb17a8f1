"""What a program may offer to a training that lasts: another learning rate, a snapshot that goes on
exactly where it was taken, and a look at its weights. A framework need not offer any of it; what is
asked of one that does not is refused with `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from cubemesh.batches import Array


class ReplicasDiffer(Exception):
    """Ranks that must have the same weights do not."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that a program's next steps depend on, besides what they are fed. The arrays are the
    snapshot's own: training on changes none of them."""

    weights: Mapping[str, Array]
    """Parameters and state by name, as `Program.state` gives them."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """What the optimizer keeps for each parameter, and the state of random generators."""
    plain: Mapping[str, Any] = field(default_factory=dict)
    """What is no array, as plain data: the loss scale, an exchange's count of steps."""


@runtime_checkable
class Snapshots(Protocol):
    """A `Program` that can be put back to where it was, to the bit."""

    def snapshot(self) -> Snapshot:
        """Where it stands; waits for the device."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from `snapshot`, taken from a program of the same request. UsageError where it is
        another's."""


@runtime_checkable
class SetsRate(Protocol):
    """A `Program` whose learning rate can be changed between two steps."""

    def set_learning_rate(self, rate: float) -> None:
        """Of every step queued from now on."""


@runtime_checkable
class Inspects(Protocol):
    """A `Program` that can look at its own numbers."""

    def fingerprint(self) -> int:
        """A number that any single changed bit of the parameters changes. Waits for the device."""

    def first_not_finite(self, placed: Any) -> str:
        """Which layer is the first, in the order they run, whose weights or, fed `placed`, whose
        output hold what is no finite number; empty where all are finite. It makes a forward pass,
        so it is for a program that will not train on."""
