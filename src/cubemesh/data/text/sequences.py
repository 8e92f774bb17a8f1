"""Token sequences in memory, and synthetic ones for measuring speed.

A source of sequences gives integers (n, length) for each input of a network, and a label for each
position, (n, length). A position with label -1 is padding: it is computed like any other and does
not count in loss or accuracy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import PADDING, Batch
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.source import CACHE_BYTES, Indices, Split
from cubemesh.errors import UsageError
from cubemesh.networks.graph import Network

SAMPLES = {"train": 1024, "validation": 64}

Tokens = NDArray[np.int64]


class Sequences:
    """A `Source` of sequences in memory: arrays (samples, length), one per input."""

    def __init__(
        self, name: str, inputs: tuple[Tokens, ...], labels: Tokens, vocabulary: int
    ) -> None:
        self.name = name
        self.samples = len(labels)
        self.classes = vocabulary
        self.tokens_per_sample = float((labels != PADDING).sum() / len(labels))
        """Positions that count, in the mean over all samples."""
        self._inputs = inputs
        self._labels = labels

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        inputs = (np.empty((samples, *a.shape[1:]), np.int64) for a in self._inputs)
        return Batch(*inputs, labels=np.empty((samples, *self._labels.shape[1:]), np.int64))

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        for own, given in zip(self._inputs, into.inputs, strict=True):
            np.take(own, indices, axis=0, out=given, mode="clip")
        np.take(self._labels, indices, axis=0, out=into.labels, mode="clip")
        return into


def takes_tokens(network: Network) -> bool:
    """Whether `network` takes tokens rather than images."""
    return network.inputs[0].dtype == "integer"


def open_synthetic(split: Split, network: Network, seed: int, samples_needed: int) -> Sequences:
    """Tokens drawn evenly from the vocabulary, the same for the same seed and network.

    A network of one input predicts at each position the token that follows. One of two takes a
    source as well, and its sentences fill more than half of a bucket as long as its input. There
    are 1,024 sequences (64 for validation), fewer if they exceed `CACHE_BYTES`, and at least
    `samples_needed`. UsageError for a network of images.
    """
    if not takes_tokens(network):
        raise UsageError(f"{network.name} takes images, not sequences of tokens.")
    vocabulary = network.inputs[0].classes or 1
    (length,) = network.targets[0].shape
    fit = CACHE_BYTES // (16 * length)
    samples = max(1, min(SAMPLES[split], fit), samples_needed)
    # The split is part of the seed, so that it is not the first training samples again.
    generator = np.random.default_rng((seed, SAMPLES[split]))
    text = generator.integers(vocabulary, size=(samples, length + 1))
    inputs, labels = text[:, :-1].copy(), text[:, 1:].copy()
    if len(network.inputs) == 1:
        return Sequences("synthetic", (inputs,), labels, vocabulary)
    source = generator.integers(vocabulary, size=(samples, length))
    # One bucket: sentences longer than half of it. What is behind a sentence's end is padding.
    ends = generator.integers(length // 2 + 1, length + 1, size=(2, samples, 1))
    places = np.arange(length)
    source[places >= ends[0]] = 0
    inputs[places >= ends[1]] = 0
    labels[places >= ends[1]] = PADDING
    return Sequences("synthetic", (source, inputs), labels, vocabulary)
