"""Source: the protocol of a data set that networks are trained on.

A `Source` has a finite size and gives batches in the shape its network takes. Frameworks, epochs
and order are not its concern; `feed.py` decides the order of samples.

A batch of photographs may consist of encoded files (`EncodedBatch`), for a program that decodes
them on its device (`SupportsDecoding`). The source still chooses the crops, and the replacements of
images that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.errors import UsageError

Split = Literal["train", "validation"]
Shape = tuple[int, int, int]
"""Channels, height and width of one image."""
Indices = NDArray[np.int64]

VALIDATION_EVERY = 10
"""In data without splits every tenth sample is for validation."""
CACHE_BYTES = 256 * 2**20
"""Memory limit for images held in the network's shape. A larger set is converted batch by batch."""


class BatchMaker(Protocol):
    """Makes batches of given sample indices."""

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """The samples numbered `indices`, in that order: images (n, channels, height, width) in
        float32, 0 to 1, and labels (n,) in int64.

        `into` is a batch of the same size whose arrays are filled and which is returned; without
        it new arrays are made. IndexError for a sample that is not there. Threads may call it at
        the same time.
        """


class Source(BatchMaker, Protocol):
    """A data set in the shape a network takes."""

    name: str
    samples: int
    classes: int
    """Number of classes; labels are below it."""

    def empty(self, samples: int) -> Batch:
        """Arrays for `samples` samples, to be filled by `batch`."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over a source."""

    source: BatchMaker
    """Gives the samples as they are in this epoch."""
    order: Iterable[int]
    """Every sample once."""


@runtime_checkable
class HasEpochs(Protocol):
    """A `Source` with its own order of samples, or whose samples differ between epochs;
    optional."""

    def epoch(self, number: int, seed: int) -> Epoch:
        """The pass counted from 0; the same for the same seed."""


def in_split(split: Split, position: int) -> bool:
    """Whether the sample at `position` (from 1) belongs to `split`, in data without splits."""
    return (position % VALIDATION_EVERY == 0) == (split == "validation")


def empty_batch(samples: int, shape: Shape) -> Batch:
    """Arrays for `samples` images of `shape`, to be filled."""
    return Batch(images=np.empty((samples, *shape), np.float32), labels=np.empty(samples, np.int64))


def image_bytes(shape: Shape) -> int:
    """Bytes of one image of `shape` in float32."""
    return 4 * shape[0] * shape[1] * shape[2]


def check_classes(name: str, has: int, network_classes: int) -> None:
    """UsageError if the network has fewer than `has` classes."""
    if network_classes < has:
        raise UsageError(
            f"{name} has {has} classes and the network has {network_classes}. "
            f"Leave classes out, or set classes={has} or more."
        )
