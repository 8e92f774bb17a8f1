"""Which samples come when? Minibatches of a source, in an order that a seed decides.

For training, every epoch is a new permutation of all samples, drawn from (seed, epoch) alone, so
any epoch can be had again without the ones before it. It is cut into full minibatches; what is left
over at its end is dropped, because steps of different sizes have different speeds. For evaluation,
samples come in their own order and the short last minibatch is kept, because every sample counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from cubemesh.data.base import Source
from cubemesh.errors import UsageError
from cubemesh.frameworks.base import Batch, Program
from cubemesh.model.spec import DataOn
from cubemesh.units import format_count


class Feed:
    """Endless full minibatches of `batch_per_device` samples.

    Two minibatches' worth of memory is used in turn: a batch stays as it is until the one after
    the next is taken. `Program.place` copies, so nothing more is needed.
    """

    def __init__(self, source: Source, batch_per_device: int, seed: int) -> None:
        if batch_per_device > source.samples:
            raise UsageError(
                f"batch_per_device={batch_per_device} is more than the "
                f"{format_count(source.samples)} samples {source.name} has to train on. Set it to "
                f"{source.samples} or less, or use data=synthetic, which has as many as it needs."
            )
        self.source = source
        self.batch_per_device = batch_per_device
        self.seed = seed
        self._buffers = itertools.cycle([source.empty(batch_per_device) for _ in range(2)])
        self._endless = itertools.chain.from_iterable(map(self.epoch, itertools.count()))

    @property
    def steps_per_epoch(self) -> int:
        """Full minibatches in an epoch."""
        return self.source.samples // self.batch_per_device

    def epoch(self, number: int) -> Iterator[Batch]:
        """The minibatches of one epoch, counted from 0."""
        order = np.random.default_rng((self.seed, number)).permutation(self.source.samples)
        for step in range(self.steps_per_epoch):
            start = step * self.batch_per_device
            indices = order[start : start + self.batch_per_device]
            yield self.source.batch(indices, next(self._buffers))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._endless)


def in_order(source: Source, batch: int) -> Iterator[Batch]:
    """All samples once, in their own order, `batch` at a time; the last may be shorter."""
    for start in range(0, source.samples, batch):
        yield source.batch(np.arange(start, min(start + batch, source.samples)))


def placed_batches(program: Program, feed: Feed, data_on: DataOn) -> Iterator[Any]:
    """Endless batches on the program's device.

    `host`: each is made on the host and copied when it is asked for, inside the step that is
    timed. `device`: the first is copied once and given out again and again, so that a step pays
    for computing alone.
    """
    if data_on == "device":
        return itertools.repeat(program.place(next(feed)))
    return (program.place(batch) for batch in feed)
