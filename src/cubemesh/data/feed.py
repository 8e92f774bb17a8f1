"""Feed: batches of a source, in an order that a seed decides.

For training, every epoch is a new permutation of all samples, drawn from (seed, epoch) alone, so
any epoch can be reproduced on its own. It is divided into full batches; the rest is dropped,
because steps of different sizes have different speeds. For evaluation, samples keep their order and
the last batch may be short, because every sample counts.
"""

from __future__ import annotations

import bisect
import itertools
import time
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.data.device_prefetch import DevicePrefetcher
from cubemesh.data.pipeline import Batches, PlannedBatch, batches
from cubemesh.data.source import Epoch, HasEpochs, Source
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Program, SupportsDecoding
from cubemesh.schema.spec import DataLocation
from cubemesh.units import format_count


class Feed:
    """Endless full batches of `batch_per_device` samples, or a given number of epochs of them.

    Of `ranks` feeds with the same seed, each gives its own part of the same global batch: together
    they give what one feed gives with the global batch. Batches are prefetched by `threads`
    threads, or prepared on demand without threads. The first `start` batches are skipped without
    reading. A batch stays valid until the next is requested; `Program.place` copies, so that is
    enough.
    """

    def __init__(
        self,
        source: Source,
        batch_per_device: int,
        seed: int,
        *,
        threads: int = 0,
        epochs: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        shared_by: int = 1,
        start: int = 0,
    ) -> None:
        if batch_per_device * ranks > source.samples:
            each = f" on each of {ranks} devices" if ranks > 1 else ""
            raise UsageError(
                f"batch_per_device={batch_per_device}{each} is more than the "
                f"{format_count(source.samples)} samples {source.name} has to train on. Set it to "
                f"{source.samples // ranks} or less, or use data=synthetic, which has as many as "
                "it needs."
            )
        self.source = source
        self.batch_per_device = batch_per_device
        self.seed = seed
        self.threads = threads
        self.rank, self.ranks = rank, ranks
        self.samples_per_step = batch_per_device // shared_by
        """Samples that this rank counts as its own, if `shared_by` ranks use the same batch."""
        self.tried: NDArray[np.bool_] = np.zeros(source.samples, np.bool_)
        """Whether each sample was in a batch."""
        first, passed = divmod(start, self.steps_per_epoch)
        numbers = itertools.count(first) if epochs is None else range(first, epochs)
        epochs_plan = itertools.chain.from_iterable(map(self.plan, numbers))
        plan = itertools.islice(epochs_plan, passed, None)
        self._batches: Batches = batches(plan, source, batch_per_device, threads)
        self._received_at, self._waits_s = array("d"), array("d")

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches per epoch."""
        return self.source.samples // (self.batch_per_device * self.ranks)

    @property
    def indices(self) -> NDArray[np.int64]:
        """Indices of the samples in the last batch."""
        assert self._batches.current is not None, "after the first batch"
        return self._batches.current.indices

    @property
    def wait_so_far_s(self) -> float:
        """Seconds that the training thread has waited for batches, or prepared them, until the last
        one came. Another thread may read it."""
        return self._batches.waited_s

    def waited_s(self, started: float, ended: float) -> float:
        """Seconds that the training thread waited for batches, or prepared them, between two
        readings of `time.perf_counter()`: the time lost to the input."""
        first, last = (bisect.bisect_left(self._received_at, t) for t in (started, ended))
        return sum(self._waits_s[first:last])

    def plan(self, number: int) -> Iterator[PlannedBatch]:
        """The plan of the batches of an epoch, counted from 0."""
        if isinstance(self.source, HasEpochs):
            epoch = self.source.epoch(number, self.seed)
        else:
            generator = np.random.default_rng((self.seed, number))
            epoch = Epoch(source=self.source, order=generator.permutation(self.source.samples))
        order = iter(epoch.order)
        size = self.batch_per_device
        for _ in range(self.steps_per_epoch):
            numbers = np.fromiter(itertools.islice(order, size * self.ranks), np.int64)
            yield PlannedBatch(epoch.source, numbers[self.rank * size : (self.rank + 1) * size])

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch, counted from 0, in new arrays."""
        for wanted in self.plan(number):
            yield wanted.source.batch(wanted.indices)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        before_s = self._batches.waited_s
        batch = next(self._batches)
        self._received_at.append(time.perf_counter())
        self._waits_s.append(self._batches.waited_s - before_s)
        self.tried[self.indices] = True
        return batch

    def decode_by(self, program: SupportsDecoding) -> None:
        """Let `program` decode the batches from now on, ahead of the step if batches are
        prefetched. Without threads `place` decodes each in its step."""
        if self.threads:
            self._batches = DevicePrefetcher(self._batches, program)

    def close(self) -> None:
        """End the threads and free the memory of the batches."""
        self._batches.close()


def in_order(
    source: Source, batch: int, threads: int = 0, *, rank: int = 0, ranks: int = 1
) -> Batches:
    """All samples once, in their own order, `batch` at a time; the last may be shorter.

    Of `ranks` ranks each gets every `ranks`-th batch, beginning with number `rank`: the batches are
    those of a single rank, whatever their number. A rank may get none."""
    plan = (PlannedBatch(source, indices) for indices in _cut(source, batch, rank, ranks))
    return batches(plan, source, min(batch, source.samples), threads)


def share_of(source: Source, batch: int, rank: int, ranks: int) -> NDArray[np.bool_]:
    """Which samples are in the batches that `in_order` gives to `rank`."""
    own = np.zeros(source.samples, np.bool_)
    for indices in _cut(source, batch, rank, ranks):
        own[indices] = True
    return own


def _cut(source: Source, batch: int, rank: int, ranks: int) -> Iterator[NDArray[np.int64]]:
    for start in range(rank * batch, source.samples, ranks * batch):
        yield np.arange(start, min(start + batch, source.samples))


def placed_batches(program: Program, feed: Feed, data_location: DataLocation) -> Iterator[Any]:
    """Endless batches on the program's device.

    `host`: each is prepared on the host and copied on request, inside the timed step. `device`: the
    first is copied once and reused, so a step measures computation only.
    """
    if data_location == "device":
        placed = program.place(next(feed))
        feed.close()
        return itertools.repeat(placed)
    return (program.place(batch) for batch in feed)
