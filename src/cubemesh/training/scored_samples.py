"""Which samples of a validation set were answered correctly: a bit each, and their digest.

Two trainings with one digest answered the same samples in the same order, so their accuracies are
compared as matched pairs (statistics/matched_pairs.py). Ranks that share the samples each record
their batches, in turn; together they have the digest and the answers of one rank.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.schema.record import ScoredSamples

T = TypeVar("T")
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
        self._batch = hashlib.sha256()
        """Of the batch that is being scored."""
        self._digests: list[bytes] = []
        self._right: list[NDArray[np.bool_]] = []
        self._samples = 0
        self._usable = True

    def see(self, batch: Batch) -> None:
        """Note the samples of a batch, before the program takes it and may use its memory again."""
        if self._contents and self._usable and batch.labels.ndim == 1:
            for array in batch.inputs:
                if array.dtype == object:  # encoded
                    continue
                flat = array.reshape(len(array), -1)
                step = max(1, flat.shape[1] // _VALUES)
                self._batch.update(np.ascontiguousarray(flat[:, ::step]).tobytes())

    def add(self, labels: NDArray[Any], right: NDArray[np.bool_]) -> None:
        """The labels of a batch, and which of them were answered correctly."""
        self._samples += len(right)
        if labels.ndim != 1 or len(right) != len(labels) or self._samples > MAX_SAMPLES:
            self._usable = False
        if self._usable:
            self._batch.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
            self._digests.append(self._batch.digest())
            self._batch = hashlib.sha256()
            self._right.append(np.asarray(right, dtype=bool))

    def result(self, group: Group | None = None) -> ScoredSamples | None:
        """The answers, of all ranks of `group`, of which each has recorded its batches (every rank
        calls this); None where samples are positions of a sequence, or too many."""
        shares = (group or SingleProcessGroup()).all_gather_object(self._share())
        if not all(shares):
            return None
        digests = [_digests(share["digests"]) for share in shares]
        answers = [_answers(share["counts"], share["right"]) for share in shares]
        right = [part for part in _in_turn(answers) if len(part)]
        count = sum(map(len, right))
        if not 0 < count <= MAX_SAMPLES:
            return None
        return ScoredSamples(
            samples_id=hashlib.sha256(b"".join(_in_turn(digests))).hexdigest()[:32],
            count=count,
            right=_packed(np.concatenate(right)),
        )

    def _share(self) -> dict[str, Any] | None:
        """What this rank has recorded, as plain data; None where it cannot be used."""
        if not self._usable:
            return None
        right = np.concatenate(self._right) if self._right else np.empty(0, bool)
        return {
            "digests": base64.b64encode(b"".join(self._digests)).decode("ascii"),
            "counts": [len(part) for part in self._right],
            "right": _packed(right),
        }


def _packed(right: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(right).tobytes()).decode("ascii")


def _digests(text: str) -> list[bytes]:
    joined, size = base64.b64decode(text), hashlib.sha256().digest_size
    return [joined[start : start + size] for start in range(0, len(joined), size)]


def _answers(counts: Sequence[int], right: str) -> list[NDArray[np.bool_]]:
    """The answers to each batch."""
    bits = np.unpackbits(np.frombuffer(base64.b64decode(right), np.uint8), count=sum(counts))
    return np.split(bits.astype(bool), list(itertools.accumulate(counts)))[:-1]


def _in_turn(shares: Sequence[Sequence[T]]) -> list[T]:
    """The batches of all ranks in the order of the samples: of `ranks` ranks, each has every
    `ranks`-th."""
    turns = itertools.zip_longest(*shares, fillvalue=None)
    return [one for turn in turns for one in turn if one is not None]


def right_samples(scored: ScoredSamples) -> NDArray[np.bool_]:
    """The answers as truth values. ValueError where they are damaged."""
    bits = np.frombuffer(base64.b64decode(scored.right, validate=True), dtype=np.uint8)
    if not 0 < scored.count <= MAX_SAMPLES or len(bits) != -(-scored.count // 8):
        raise ValueError(f"{len(bits)} bytes of answers to {scored.count} samples")
    return np.unpackbits(bits, count=scored.count).astype(bool)
