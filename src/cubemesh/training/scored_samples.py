"""Which samples of a validation set were answered correctly: a bit each, and their digest.

Two trainings with one digest answered the same samples in the same order, so their accuracies are
compared as matched pairs (statistics/matched_pairs.py).
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.schema.record import ScoredSamples

MAX_SAMPLES = 200_000
"""Of more samples nothing is stored: 33 kB of a record."""
_VALUES = 64
"""So many values of each sample are in the digest."""


class SampleRecorder:
    """Collects the answers of one evaluation, batch by batch."""

    def __init__(self, *, contents: bool) -> None:
        """With `contents` the digest is of values of the samples, too, not of their labels alone;
        without, something else must say which files they are from."""
        self._contents = contents
        self._digest = hashlib.sha256()
        self._right: list[NDArray[np.bool_]] = []
        self._usable = True

    def see(self, batch: Batch) -> None:
        """Note the samples of a batch, before the program takes it and may use its memory again."""
        if self._contents and self._usable and batch.labels.ndim == 1:
            for array in batch.inputs:
                if array.dtype == object:  # encoded
                    continue
                flat = array.reshape(len(array), -1)
                step = max(1, flat.shape[1] // _VALUES)
                self._digest.update(np.ascontiguousarray(flat[:, ::step]).tobytes())

    def add(self, labels: NDArray[Any], right: NDArray[np.bool_]) -> None:
        """The labels of a batch, and which of them were answered correctly."""
        known = sum(map(len, self._right))
        if labels.ndim != 1 or len(right) != len(labels) or known + len(right) > MAX_SAMPLES:
            self._usable = False
        if self._usable:
            self._digest.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
            self._right.append(np.asarray(right, dtype=bool))

    def result(self) -> ScoredSamples | None:
        """The answers; None where samples are positions of a sequence, or too many."""
        if not self._usable or not self._right:
            return None
        right = np.concatenate(self._right)
        return ScoredSamples(
            samples_id=self._digest.hexdigest()[:32],
            count=len(right),
            right=base64.b64encode(np.packbits(right).tobytes()).decode("ascii"),
        )


def right_samples(scored: ScoredSamples) -> NDArray[np.bool_]:
    """The answers as truth values. ValueError where they are damaged."""
    bits = np.frombuffer(base64.b64decode(scored.right, validate=True), dtype=np.uint8)
    if not 0 < scored.count <= MAX_SAMPLES or len(bits) != -(-scored.count // 8):
        raise ValueError(f"{len(bits)} bytes of answers to {scored.count} samples")
    return np.unpackbits(bits, count=scored.count).astype(bool)
