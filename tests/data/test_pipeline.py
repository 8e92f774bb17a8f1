"""Making minibatches ahead changes when they are made, and nothing else."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.batches import Batch
from cubemesh.data import input_threads
from cubemesh.data.feed import Feed, in_order
from cubemesh.data.images.arrays import FloatImages
from cubemesh.data.pipeline import SLOTS, Batches, PlannedBatch, PrefetchLoader, SyncLoader, batches
from cubemesh.data.source import Indices, Source
from cubemesh.errors import DataError, UsageError
from cubemesh.schema.spec import ProgramSettings
from patience import PATIENCE_S


class Numbers(FloatImages):
    """The image of sample n is n everywhere, and so is its label. Counts how many minibatches'
    worth of rows are being filled, and can fail or be slow."""

    def __init__(self, samples: int, side: int = 2) -> None:
        numbers = np.arange(samples)
        images = np.broadcast_to(numbers[:, None, None, None], (samples, 1, side, side))
        super().__init__("numbers", images.astype(np.float32), numbers, samples)
        self.emptied = 0
        self.slow_s = 0.0
        self.broken: dict[int, Exception] = {}

    def empty(self, samples: int) -> Batch:
        self.emptied += 1
        return super().empty(samples)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        time.sleep(self.slow_s)
        for number in indices:
            if int(number) in self.broken:
                raise self.broken[int(number)]
        return super().batch(indices, into)


def plan(source: Source, sizes: list[int], seed: int = 0) -> list[PlannedBatch]:
    generator = np.random.default_rng(seed)
    return [PlannedBatch(source, generator.integers(source.samples, size=n)) for n in sizes]


def seen(made: Batches) -> list[tuple[list[int], list[float]]]:
    return [(b.labels.tolist(), b.images[:, 0, 0, 0].tolist()) for b in made]


def input_threads_alive() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("cubemesh-input")]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 9), max_size=12),
    st.integers(1, 4),
    st.sampled_from([1, 200, 700]),
)
def test_threads_change_neither_order_nor_content(
    sizes: list[int], threads: int, side: int
) -> None:
    source = Numbers(20, side)  # of 700 pixels a piece holds one image, of 1 all of them
    wanted = plan(source, sizes)
    with closing(PrefetchLoader(iter(wanted), source, 9, threads)) as ahead:
        assert seen(ahead) == seen(SyncLoader(iter(wanted), source, 9))
    assert [n for n, _ in seen(SyncLoader(iter(wanted), source, 9))] == [
        w.indices.tolist() for w in wanted
    ]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_feed_is_the_same_with_any_number_of_threads(threads: int) -> None:
    feed = Feed(Numbers(50), 7, seed=3, threads=threads, epochs=3)
    alone = Feed(Numbers(50), 7, seed=3)
    expected = [b.labels.tolist() for n in range(3) for b in alone.epoch(n)]
    assert [b.labels.tolist() for b in feed] == expected
    assert len(expected) == 3 * 7
    feed.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_samples_in_order(threads: int) -> None:
    made = in_order(Numbers(11), 4, threads)
    assert [labels for labels, _ in seen(made)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    made.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_a_batch_is_valid_until_the_next_is_requested(threads: int) -> None:
    source = Numbers(64)
    made = batches(iter(plan(source, [8] * 200)), source, 8, threads)
    for batch, wanted in zip(made, plan(source, [8] * 200), strict=True):
        time.sleep(0.0002)
        assert batch.labels.tolist() == wanted.indices.tolist()
        assert made.current is not None
        assert made.current.indices.tolist() == wanted.indices.tolist()
    made.close()


def test_memory_is_bounded_by_the_slots() -> None:
    source = Numbers(64)
    with closing(PrefetchLoader(plan(source, [8] * 300), source, 8, threads=4)) as ahead:
        assert len(list(ahead)) == 300
    assert source.emptied == SLOTS


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_comes_where_its_minibatch_would_have(threads: int) -> None:
    source = Numbers(40)
    source.broken = {25: DataError("number 25 is torn"), 31: ValueError("number 31 is worse")}
    made = in_order(source, 10, threads)
    assert next(made).labels.tolist() == list(range(10))
    assert next(made).labels.tolist() == list(range(10, 20))
    with pytest.raises(DataError, match="number 25 is torn") as raised:
        next(made)
    assert "batch" in [frame.name for frame in raised.traceback], "it shows where it came from"
    assert input_threads_alive() == []
    made.close()


def test_of_two_errors_in_a_batch_the_first_in_order_is_raised() -> None:
    source = Numbers(8, side=700)  # a piece an image
    source.broken = {2: DataError("the second"), 5: DataError("the fifth")}
    for _ in range(20):
        ahead = PrefetchLoader(iter([PlannedBatch(source, np.arange(8))]), source, 8, threads=4)
        with pytest.raises(DataError, match="the second"):
            next(ahead)


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_of_the_plan_is_raised(threads: int) -> None:
    source = Numbers(8)

    def failing() -> Iterator[PlannedBatch]:
        yield PlannedBatch(source, np.arange(4))
        raise OSError("the list of files is gone")

    made = batches(failing(), source, 4, threads)
    assert next(made).samples == 4
    with pytest.raises(OSError, match="the list of files is gone"):
        next(made)
    made.close()


def test_closing_ends_the_threads_and_the_iteration() -> None:
    source = Numbers(64)
    source.slow_s = 0.01
    ahead = PrefetchLoader(iter(plan(source, [8] * 1000)), source, 8, threads=3)
    next(ahead)
    assert len(input_threads_alive()) == 3
    ahead.close()
    assert input_threads_alive() == []
    with pytest.raises(StopIteration):
        next(ahead)


def test_closing_before_the_first_minibatch_starts_nothing() -> None:
    ahead = PrefetchLoader(iter(plan(Numbers(8), [4])), Numbers(8), 4, threads=2)
    ahead.close()
    assert list(ahead) == []
    assert input_threads_alive() == []


def test_the_time_waited_for_batches_is_counted() -> None:
    source = Numbers(64)
    source.slow_s = 0.03
    feed = Feed(source, 8, 0)
    started = time.perf_counter()
    next(feed)
    middle = time.perf_counter()
    next(feed)
    ended = time.perf_counter()
    assert 0.03 <= feed.waited_s(started, middle) <= middle - started
    assert 0.06 <= feed.waited_s(started, ended) <= ended - started
    assert feed.waited_s(ended, ended + 1) == 0


class Gated(Numbers):
    """Makes a batch for each permit, and counts what it has made."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.permits, self.made = threading.Semaphore(0), threading.Semaphore(0)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        assert self.permits.acquire(timeout=PATIENCE_S)
        made = super().batch(indices, into)
        self.made.release()
        return made


def test_the_next_batch_is_made_before_it_is_asked_for() -> None:
    source = Gated(64)
    with closing(PrefetchLoader(plan(source, [8] * 3), source, 8, threads=1)) as loader:
        source.permits.release()
        next(loader)
        assert source.made.acquire(timeout=PATIENCE_S)
        waited_s = loader.waited_s
        source.permits.release()
        assert source.made.acquire(timeout=PATIENCE_S), "made while the consumer computes"
        assert loader.waited_s == waited_s
        source.permits.release()
        assert len(list(loader)) == 2
        assert loader.waited_s >= waited_s


def test_a_feed_knows_what_was_tried() -> None:
    feed = Feed(Numbers(50), 8, 0, threads=2)
    taken = [n for _ in range(4) for n in next(feed).labels.tolist()]
    assert np.flatnonzero(feed.tried).tolist() == sorted(taken)
    feed.close()


def test_threads_are_chosen_by_what_the_data_need() -> None:
    assert input_threads("synthetic", None, 8) == 0
    assert input_threads("synthetic", 3, 8) == 3
    assert input_threads("digits", 0, 8) == 0
    assert input_threads("images", None, 8.5) == 8
    assert input_threads("images", None, 8.5, "device") == 2
    assert input_threads("images", None, 1.5, "device") == 1
    assert input_threads("images", 16, 8, "device") == 16
    assert input_threads("synthetic", None, 8, "device") == 0
    with pytest.raises(UsageError, match="input_threads=-1 "):
        ProgramSettings(input_threads=-1)
