"""Decoding ahead of the step: order, errors, waiting and the end."""

import threading
import time

import numpy as np
import pytest

from cubemesh.batches import Batch, EncodedBatch
from cubemesh.data.device_prefetch import AHEAD, DevicePrefetcher
from cubemesh.data.pipeline import PlannedBatch
from patience import PATIENCE_S


class Numbered:
    """Minibatches 0, 1, … as a pipeline makes them; may raise instead of one."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.waited_s, self.current, self.closed = 0.0, None, False
        self._count, self._fails_at, self.made = count, fails_at, 0
        self.full = threading.Event()

    def __iter__(self):
        return self

    def __next__(self) -> Batch:
        if self.made == self._fails_at:
            raise ValueError("no more of this")
        if self.made == self._count:
            raise StopIteration
        number = np.array([self.made])
        self.current, self.made = PlannedBatch(None, number), self.made + 1
        if self.made == AHEAD + 2:
            self.full.set()
        return EncodedBatch(np.empty(1, object), labels=number)

    def close(self) -> None:
        self.closed = True


class Decoder:
    def __init__(self, seconds: float = 0.0, fails_at: int | None = None) -> None:
        self.seconds, self.fails_at, self.threads = seconds, fails_at, set()

    def decode(self, batch: EncodedBatch) -> Batch:
        self.threads.add(threading.current_thread().name)
        time.sleep(self.seconds)
        if batch.labels[0] == self.fails_at:
            raise MemoryError
        return Batch(labels=batch.labels + 100)


def test_batches_come_in_order_with_their_plan_from_one_thread():
    decoder = Decoder()
    ahead = DevicePrefetcher(Numbered(7), decoder)
    seen = [(b.labels[0], ahead.current.indices[0]) for b in ahead]
    assert seen == [(100 + n, n) for n in range(7)]
    assert decoder.threads == {"cubemesh-decode"}
    ahead.close()


@pytest.mark.parametrize(
    ("encoded", "decoder", "raised"),
    [
        (Numbered(9, fails_at=2), Decoder(), ValueError),
        (Numbered(9), Decoder(fails_at=2), MemoryError),
    ],
)
def test_an_error_comes_where_its_minibatch_would_have(encoded, decoder, raised):
    ahead = DevicePrefetcher(encoded, decoder)
    assert [next(ahead).labels[0] for _ in range(2)] == [100, 101]
    for _ in range(2):
        with pytest.raises(raised):
            next(ahead)
    ahead.close()


def test_it_decodes_two_batches_ahead_until_it_is_closed():
    encoded = Numbered(1000)
    ahead = DevicePrefetcher(encoded, Decoder())
    next(ahead)
    assert encoded.full.wait(timeout=PATIENCE_S)
    time.sleep(0.02)  # in which it must not go on
    assert encoded.made == AHEAD + 2, "one in use, two waiting, one without a place"
    ahead.close()
    assert encoded.closed
    with pytest.raises(StopIteration):
        next(ahead)


def test_the_time_waited_for_decoding_is_counted():
    ahead = DevicePrefetcher(Numbered(3), Decoder(seconds=0.05))
    list(ahead)
    assert ahead.waited_s >= 0.05, "the first batch was not decoded before it was requested"
    ahead.close()


def test_it_ends_without_a_request():
    encoded = Numbered(3)
    ahead = DevicePrefetcher(encoded, Decoder())
    ahead.close()
    assert (encoded.made, encoded.closed) == (0, True)
    with pytest.raises(StopIteration):
        next(ahead)
