"""Device prefetch: images are decoded on the device while it trains on the previous batch.

    encoded minibatches ──▶ a thread: `SupportsDecoding.decode` ──▶ at most two of them ──▶ taker

A device that decodes has circuits of its own for it, or idle moments, so the decoding of the next
minibatch and the step of this one go on at the same time. Order, errors and the seconds that the
taker waited are those of the pipeline it stands behind (`pipeline.py`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from cubemesh.batches import Batch, EncodedBatch
from cubemesh.data.pipeline import Batches, PlannedBatch
from cubemesh.frameworks.api.program import SupportsDecoding

AHEAD = 2
"""Minibatches that wait for the taker: one that is next, and one for when decoding is late."""


class DevicePrefetcher:
    """`Batches` of what `encoded` makes, decoded by `program` in a thread of their own."""

    def __init__(self, encoded: Batches, program: SupportsDecoding) -> None:
        self.waited_s = 0.0
        self.taken: PlannedBatch | None = None
        self._encoded, self._program = encoded, program
        self._ready: deque[tuple[Batch, PlannedBatch | None]] = deque()
        self._error: BaseException | None = None
        self._ended = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="cubemesh-decode", daemon=True)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        if self._thread.ident is None and not self._closed:
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            if not self._ready:
                if self._error is not None:
                    raise self._error
                raise StopIteration
            batch, self.taken = self._ready.popleft()
            self._changed.notify_all()
        self.waited_s += time.perf_counter() - start
        return batch

    def close(self) -> None:
        """See `Batches.close`. Waits for the minibatch that is being decoded."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._encoded.close()

    def _work(self) -> None:
        try:
            for batch in self._encoded:
                assert isinstance(batch, EncodedBatch), "only what is encoded is decoded"
                decoded = self._program.decode(batch)
                if not self._hand_over(decoded):
                    return
        except BaseException as raised:  # it is the taker's, whatever it is
            self._error = raised
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _hand_over(self, decoded: Batch) -> bool:
        """Wait until there is room for another; False where nobody will take it."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < AHEAD or self._closed)
            if self._closed:
                return False
            self._ready.append((decoded, self._encoded.taken))
            self._changed.notify_all()
        return True
