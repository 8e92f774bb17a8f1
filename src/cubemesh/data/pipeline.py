"""Input pipeline: threads prepare batches ahead of the training step.

Threads fill *slots*, reusable buffers of one batch each:

    plan ──▶ pieces of a batch ──▶ thread, thread, … ──▶ slots, in plan order ──▶ consumer
                      ▲                                                              │
                      └────── a slot is free again when the next one is requested ◀──┘

The plan defines the order of the samples; threads share the rows of one batch, so a few slots keep
any number of threads busy and memory does not grow with them. The result does not depend on the
threads: batches come in plan order, and an error is raised in place of its batch. Without threads,
the consumer prepares each batch itself.

Threads help because decoding, gathering and reading release the GIL.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cubemesh.batches import Batch
from cubemesh.data.source import BatchMaker, Indices, Source

SLOTS = 3
"""One in use, one ready, one being filled."""
PIECE_BYTES = 1 << 20
"""Rows of a batch per task: about a mebibyte, which takes some hundred times longer to fill than
to dispatch; fewer if threads would be idle otherwise."""


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of a plan."""

    source: BatchMaker
    indices: Indices


class Batches(Protocol):
    """An iterator of batches that measures how long its consumer waited."""

    waited_s: float
    """Seconds that the consumer has spent in `next` so far."""
    current: PlannedBatch | None
    """The plan of the last batch."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __next__(self) -> Batch:
        """The next batch, valid until the following one is requested. Errors of its preparation
        are raised here."""

    def close(self) -> None:
        """Stop the preparation and free the memory."""


def batches(plan: Iterable[PlannedBatch], like: Source, samples: int, threads: int) -> Batches:
    """The batches of `plan`, prefetched by `threads` threads (0: prepared on demand).

    `like` shapes the slots, which hold `samples` samples; a batch may have fewer. Memory for the
    slots is allocated now, threads start with the first request.
    """
    if threads:
        return PrefetchLoader(plan, like, samples, threads)
    return SyncLoader(plan, like, samples)


class SyncLoader:
    """Prepares each batch on demand, in the consumer's thread."""

    def __init__(self, plan: Iterable[PlannedBatch], like: Source, samples: int) -> None:
        self.waited_s = 0.0
        self.current: PlannedBatch | None = None
        self._plan = iter(plan)
        self._slots = itertools.cycle([like.empty(samples) for _ in range(2)])

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        wanted = next(self._plan)
        slot = next(self._slots)
        batch = wanted.source.batch(wanted.indices, rows(slot, 0, len(wanted.indices)))
        self.current = wanted
        self.waited_s += time.perf_counter() - start
        return batch

    def close(self) -> None:
        """See `Batches.close`."""
        self._plan = iter(())
        self._slots = itertools.cycle(())


@dataclass(eq=False)
class _Filling:
    """A slot between the plan and the consumer."""

    wanted: PlannedBatch
    slot: Batch
    missing: int
    """Pieces not filled yet."""
    error: BaseException | None = None
    error_at: int = 0
    """The first row of its piece: of several errors the first in plan order is raised."""


@dataclass(frozen=True)
class _Piece:
    filling: _Filling
    start: int
    stop: int


class PrefetchLoader:
    """Prefetches batches in `threads` threads and `SLOTS` slots."""

    def __init__(
        self, plan: Iterable[PlannedBatch], like: Source, samples: int, threads: int
    ) -> None:
        self.waited_s = 0.0
        self.current: PlannedBatch | None = None
        self._plan: Iterator[PlannedBatch] | None = iter(plan)
        self._free = [like.empty(samples) for _ in range(SLOTS)]
        sample_bytes = max(1, self._free[0].size_bytes // samples)
        self._piece = max(1, min(PIECE_BYTES // sample_bytes, samples // threads))
        self._plan_error: BaseException | None = None
        self._coming: deque[_Filling] = deque()
        """In the plan's order."""
        self._pieces: deque[_Piece] = deque()
        self._held: _Filling | None = None
        """The slot in use by the consumer."""
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"cubemesh-input-{n}", daemon=True)
            for n in range(threads)
        ]

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        with self._changed:
            self._start()
            self._give_back()
            self._changed.wait_for(self._is_settled)
            first = self._held = self._coming.popleft() if self._coming else None
            error = self._plan_error if first is None else first.error
        self.waited_s += time.perf_counter() - start
        if error is not None:
            self.close()
            raise error
        if first is None:
            raise StopIteration
        self.current = first.wanted
        return rows(first.slot, 0, len(first.wanted.indices))

    def close(self) -> None:
        """See `Batches.close`. Waits for the pieces that are being made."""
        with self._changed:
            self._plan = self._plan_error = None
            self._pieces.clear()
            self._coming.clear()
            self._free.clear()
            self._held = None
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _start(self) -> None:
        if self._plan is not None and self._threads[0].ident is None:
            for thread in self._threads:
                thread.start()

    def _give_back(self) -> None:
        if self._held is not None:
            self._free.append(self._held.slot)
            self._changed.notify_all()
        self._held = None

    def _is_settled(self) -> bool:
        """Whether the next batch is complete, or none will follow."""
        if self._coming:
            return self._coming[0].missing == 0
        return self._plan is None

    def _work(self) -> None:
        while (piece := self._next_piece()) is not None:
            error = None
            try:
                _fill(piece)
            except BaseException as raised:  # raised in the consumer
                error = raised
            filling = piece.filling
            with self._changed:
                if error and (filling.error is None or piece.start < filling.error_at):
                    filling.error, filling.error_at = error, piece.start
                filling.missing -= 1
                if filling.missing == 0:
                    self._changed.notify_all()

    def _next_piece(self) -> _Piece | None:
        """The next rows to fill; waits for a free slot. None at the end."""
        with self._changed:
            while not self._pieces:
                if self._plan is None:
                    return None
                if self._free:
                    self._plan_one()
                else:
                    self._changed.wait()
            return self._pieces.popleft()

    def _plan_one(self) -> None:
        """Take the next batch from the plan and split it into pieces."""
        assert self._plan is not None, "asked of a plan that has not ended"
        try:
            wanted = next(self._plan, None)
        except BaseException as raised:  # raised in the consumer, after the batches before it
            self._plan_error, wanted = raised, None
        if wanted is None:
            self._plan = None
        else:
            starts = range(0, len(wanted.indices), self._piece)
            filling = _Filling(wanted, self._free.pop(), missing=len(starts))
            self._coming.append(filling)
            for start in starts:
                stop = min(start + self._piece, len(wanted.indices))
                self._pieces.append(_Piece(filling, start, stop))
        self._changed.notify_all()


def _fill(piece: _Piece) -> None:
    wanted = piece.filling.wanted
    indices = wanted.indices[piece.start : piece.stop]
    wanted.source.batch(indices, rows(piece.filling.slot, piece.start, piece.stop))


def rows(batch: Batch, start: int, stop: int) -> Batch:
    """Rows `start` to `stop` of a batch, in the same memory; the batch itself where these are all
    its rows."""
    if start == 0 and stop == batch.samples:
        return batch
    inputs = (array[start:stop] for array in batch.inputs)
    return type(batch)(*inputs, labels=batch.labels[start:stop])
