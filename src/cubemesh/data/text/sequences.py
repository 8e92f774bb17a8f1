"""Token sequences in memory, and synthetic ones for measuring speed.

A source of sequences gives integers (n, length) for each input of a network, and a label for each
position, (n, length). A position with label -1 is padding: it is computed like any other and does
not count in loss or accuracy.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import PADDING, Batch
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.source import CACHE_BYTES, Indices, Split
from cubemesh.errors import UsageError
from cubemesh.networks.graph import Network

SAMPLES = {"train": 1024, "validation": 64}

Tokens = NDArray[np.int64]
Values = NDArray[np.int64] | NDArray[np.float32]


class Sequences:
    """A `Source` of arrays in memory, one per input: (samples, length) of tokens; also images, and
    the numbers and categories of records."""

    def __init__(
        self, name: str, inputs: tuple[Values, ...], labels: Tokens, vocabulary: int
    ) -> None:
        self.name = name
        self.samples = len(labels)
        self.classes = vocabulary
        counted = float((labels != PADDING).sum() / len(labels))
        self.tokens_per_sample = counted if labels.ndim == 2 else None
        """Positions that count, in the mean over all samples; None without labels of positions."""
        self._inputs = inputs
        self._labels = labels

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        inputs = (np.empty((samples, *a.shape[1:]), a.dtype) for a in self._inputs)
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
    """Whether every input of `network` is of tokens."""
    return all(i.dtype == "integer" for i in network.inputs)


def takes_sequences(network: Network) -> bool:
    """Whether `network` is judged at each position of a sequence, or takes tokens; the others take
    images."""
    return bool(network.targets[0].shape) or any(i.dtype == "integer" for i in network.inputs)


def open_synthetic(split: Split, network: Network, seed: int, samples_needed: int) -> Sequences:
    """Tokens drawn evenly from the vocabulary, the same for the same seed and network.

    A network of one input predicts at each position the token that follows. One of two takes a
    source as well, and its sentences fill more than half of a bucket as long as its input. Images
    and spectrograms are uniform in [0, 1]; a network of these alone has a random label at each
    position. There are 1,024 sequences (64 for validation), fewer if they exceed `CACHE_BYTES`, and
    at least `samples_needed`. UsageError for a network of images.
    """
    if not takes_sequences(network):
        raise UsageError(f"{network.name} takes images, not sequences of tokens.")
    vocabulary = network.targets[0].classes or 1
    (length,) = network.targets[0].shape
    given = [i.shape for i in network.inputs if i.dtype == "float"]
    fit = CACHE_BYTES // (16 * length + 4 * sum(map(math.prod, given)))
    samples = max(1, min(SAMPLES[split], fit), samples_needed)
    # The split is part of the seed, so that it is not the first training samples again.
    generator = np.random.default_rng((seed, SAMPLES[split]))
    text = generator.integers(vocabulary, size=(samples, length + 1))
    inputs, labels = text[:, :-1].copy(), text[:, 1:].copy()
    if given:
        made = (
            generator.random((samples, *i.shape), np.float32) if i.dtype == "float" else inputs
            for i in network.inputs
        )
        return Sequences("synthetic", tuple(made), labels, vocabulary)
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
