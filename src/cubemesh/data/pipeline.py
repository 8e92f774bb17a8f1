"""Input pipeline: threads prepare batches ahead of the training step.

Threads fill *slots*, which are minibatches' worth of memory that is used again and again:

    plan ──▶ pieces of a minibatch ──▶ thread, thread, … ──▶ slots, in the plan's order ──▶ taker
                      ▲                                                                      │
                      └────────── a slot is free again when the next one is taken ◀──────────┘

The plan says which samples come when; threads share the rows of one minibatch, so a few slots keep
any number of threads busy and memory does not grow with them. What the taker sees does not depend
on the threads: minibatches come in the plan's order, and an error where the minibatch that it
belongs to would have come. Without threads, the taker makes each minibatch itself when it asks.

Threads help where the work leaves Python: decoding, gathering and reading release its lock.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from cubemesh.batches import Batch
from cubemesh.data.source import BatchMaker, Indices, Source

SLOTS = 3
"""One that the taker holds, one that is ready for it, one that is being filled."""
PIECE_BYTES = 1 << 20
"""Rows of a minibatch that are handed to a thread at once: as many as make about a mebibyte, which
takes some hundred times longer to fill than to hand out; fewer where threads would go without."""


@dataclass(frozen=True)
class PlannedBatch:
    """One minibatch of a plan."""

    source: BatchMaker
    indices: Indices


class Batches(Protocol):
    """An iterator of minibatches that knows how long it was waited for."""

    waited_s: float
    """Seconds the taker has spent in `next` so far."""
    taken: PlannedBatch | None
    """What the last minibatch was made from."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __next__(self) -> Batch:
        """The next minibatch; it stays as it is until the one after it is taken. Whatever making
        it raised is raised here."""

    def close(self) -> None:
        """End what makes minibatches and give their memory back."""


def batches(plan: Iterable[PlannedBatch], like: Source, samples: int, threads: int) -> Batches:
    """The minibatches of `plan`, made ahead by `threads` threads (0: made by the taker).

    `like` shapes the slots, which hold `samples` samples; a minibatch may have fewer. Memory for
    the slots is taken here and now, threads start when the first minibatch is taken.
    """
    if threads:
        return PrefetchLoader(plan, like, samples, threads)
    return SyncLoader(plan, like, samples)


class SyncLoader:
    """Makes each minibatch when it is asked for, in the taker's own thread."""

    def __init__(self, plan: Iterable[PlannedBatch], like: Source, samples: int) -> None:
        self.waited_s = 0.0
        self.taken: PlannedBatch | None = None
        self._plan = iter(plan)
        self._slots = itertools.cycle([like.empty(samples) for _ in range(2)])

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        wanted = next(self._plan)
        slot = next(self._slots)
        batch = wanted.source.batch(wanted.indices, rows(slot, 0, len(wanted.indices)))
        self.taken = wanted
        self.waited_s += time.perf_counter() - start
        return batch

    def close(self) -> None:
        """See `Batches.close`."""
        self._plan = iter(())
        self._slots = itertools.cycle(())


@dataclass(eq=False)
class _Filling:
    """A slot on its way from the plan to the taker."""

    wanted: PlannedBatch
    slot: Batch
    missing: int
    """Pieces that are not filled yet."""
    error: BaseException | None = None
    error_at: int = 0
    """The row its piece starts at: of several errors the first in the plan's order is kept."""


@dataclass(frozen=True)
class _Broken:
    """The end of a plan that could not go on."""

    error: BaseException
    missing: int = 0


@dataclass(frozen=True)
class _Piece:
    filling: _Filling
    start: int
    stop: int


class PrefetchLoader:
    """Makes minibatches ahead of the taker, in `threads` threads and `slots` slots."""

    def __init__(
        self,
        plan: Iterable[PlannedBatch],
        like: Source,
        samples: int,
        threads: int,
        slots: int = SLOTS,
    ) -> None:
        if threads < 1 or slots < 2:
            raise ValueError("prefetching takes a thread and two slots at least")
        self.waited_s = 0.0
        self.taken: PlannedBatch | None = None
        self._plan: Iterator[PlannedBatch] | None = iter(plan)
        self._free = [like.empty(samples) for _ in range(slots)]
        sample_bytes = max(1, self._free[0].size_bytes // samples)
        self._piece = max(1, min(PIECE_BYTES // sample_bytes, samples // threads))
        self._coming: deque[_Filling | _Broken] = deque()
        """In the plan's order."""
        self._pieces: deque[_Piece] = deque()
        self._held: _Filling | None = None
        """The one the taker has."""
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"cubemesh-input-{n}", daemon=True)
            for n in range(threads)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        with self._changed:
            self._start()
            self._give_back()
            self._changed.wait_for(self._is_settled)
            if not self._coming:
                raise StopIteration
            first = self._coming.popleft()
            if isinstance(first, _Filling):
                self._held = first
        self.waited_s += time.perf_counter() - start
        if first.error is not None:
            self.close()
            raise first.error
        assert isinstance(first, _Filling), "all else has an error"
        self.taken = first.wanted
        return rows(first.slot, 0, len(first.wanted.indices))

    def close(self) -> None:
        """See `Batches.close`. Waits for the pieces that are being made."""
        with self._changed:
            self._plan = None
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
        """Whether the taker can go on: its minibatch is whole, or none will come."""
        if self._coming:
            return self._coming[0].missing == 0
        return self._plan is None

    def _work(self) -> None:
        while (piece := self._next_piece()) is not None:
            error = None
            try:
                _fill(piece)
            except BaseException as raised:  # it is the taker's, whatever it is
                error = raised
            filling = piece.filling
            with self._changed:
                if error and (filling.error is None or piece.start < filling.error_at):
                    filling.error, filling.error_at = error, piece.start
                filling.missing -= 1
                if filling.missing == 0:
                    self._changed.notify_all()

    def _next_piece(self) -> _Piece | None:
        """The next rows to fill; waits for a free slot. None when there is nothing more to do."""
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
        """Take the next minibatch from the plan and cut it into pieces."""
        assert self._plan is not None, "asked of a plan that has not ended"
        try:
            wanted = next(self._plan, None)
        except BaseException as raised:  # a plan that cannot go on: the taker's as well
            self._coming.append(_Broken(raised))
            wanted = None
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
