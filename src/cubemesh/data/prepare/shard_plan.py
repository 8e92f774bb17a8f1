"""Shard plan: which image goes into which shard, before anything is written.

It depends on the source, the settings and the seed only, so shards can be made in any order, by any
number of processes, and after an interruption the missing ones are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.prepared_set import FOLDERS
from cubemesh.data.source import Split

OVERHEAD_BYTES = 1792
"""Of an image in a tar file: two headers, the class, and padding of half a block."""


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """The images of a shard."""

    split: Split
    number: int
    images: NDArray[np.int64]

    @property
    def file(self) -> str:
        """Path in the set."""
        return f"{FOLDERS[self.split]}/{self.number:06}.tar"


def plan_shards(
    labels: NDArray[np.int64],
    is_validation: NDArray[np.bool_] | None,
    *,
    share: float,
    seed: int,
    image_bytes: float,
    shard_bytes: int,
) -> list[PlannedShard]:
    """The shards of a set, those for training first.

    Images come in random order. Without a split of the source, `share` of each class is for
    validation, never its last image. Shards have equal numbers of images: as many as have
    `shard_bytes` with a mean of `image_bytes`.
    """
    generator = np.random.default_rng(seed)
    if is_validation is None:
        is_validation = _drawn(labels, share, generator)
    each = max(1, round(shard_bytes / (image_bytes + OVERHEAD_BYTES)))
    found = []
    chosen: dict[Split, NDArray[np.bool_]] = {
        "train": ~is_validation,
        "validation": is_validation,
    }
    for split, wanted in chosen.items():
        numbers = generator.permutation(np.flatnonzero(wanted))
        if len(numbers):
            parts = np.array_split(numbers, -(-len(numbers) // each))
            found += [
                PlannedShard(split=split, number=n, images=part) for n, part in enumerate(parts)
            ]
    return found


def _drawn(
    labels: NDArray[np.int64], share: float, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Whether each image is for validation: `share` of each class."""
    order = generator.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    _, starts, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    found = np.zeros(len(labels), np.bool_)
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        found[by_class[start : start + min(round(share * count), count - 1)]] = True
    return found
