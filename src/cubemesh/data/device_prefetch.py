"""Device prefetch: images are decoded on the device while it trains on the previous batch.

    encoded batches ──▶ a thread: `SupportsDecoding.decode` ──▶ at most two batches ──▶ step

The device has separate decoders, or is idle at times, so the next batch is decoded during the
current step. Order, errors and waiting times are those of the pipeline before it (`pipeline.py`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from cubemesh.batches import Batch, EncodedBatch
from cubemesh.data.pipeline import Batches, PlannedBatch
from cubemesh.frameworks.contract.program import SupportsDecoding

AHEAD = 2
"""Decoded batches waiting for the step: the next one, and one as a reserve."""


class DevicePrefetcher:
    """`Batches` from `encoded`, decoded by `program` in a separate thread."""

    def __init__(self, encoded: Batches, program: SupportsDecoding) -> None:
        self.waited_s = 0.0
        self.current: PlannedBatch | None = None
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
            batch, self.current = self._ready.popleft()
            self._changed.notify_all()
        self.waited_s += time.perf_counter() - start
        return batch

    def close(self) -> None:
        """See `Batches.close`. Waits for the batch being decoded."""
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
        except BaseException as raised:  # raised in the consumer
            self._error = raised
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _hand_over(self, decoded: Batch) -> bool:
        """Wait for space in the queue; False if the consumer has closed it."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < AHEAD or self._closed)
            if self._closed:
                return False
            self._ready.append((decoded, self._encoded.current))
            self._changed.notify_all()
        return True
