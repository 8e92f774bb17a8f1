from collections.abc import Iterator
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.batches import Batch
from cubemesh.data.feed import Feed, in_order, placed_batches
from cubemesh.data.images.arrays import FloatImages
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Program

SAMPLES = st.integers(1, 60)


def source(samples: int) -> FloatImages:
    """The image of sample n is n everywhere, and so is its label."""
    numbers = np.arange(samples)
    images = np.broadcast_to(numbers[:, None, None, None], (samples, 1, 2, 2)).astype(np.float32)
    return FloatImages("numbers", images, numbers, max(samples, 1))


def labels(batches: Iterator[Batch]) -> list[list[int]]:
    return [b.labels.tolist() for b in batches]


@given(SAMPLES, st.data(), st.integers(0, 5), st.integers(0, 100))
def test_an_epoch_has_every_sample_once_but_for_the_short_rest(
    samples: int, data: st.DataObject, epoch: int, seed: int
) -> None:
    batch = data.draw(st.integers(1, samples))
    feed = Feed(source(samples), batch, seed)
    batches = labels(feed.epoch(epoch))
    seen = list(chain(*batches))
    assert {len(b) for b in batches} == {batch}
    assert len(batches) == feed.steps_per_epoch
    assert len(seen) == len(set(seen)) == samples - samples % batch


@given(SAMPLES, st.integers(1, 70))
def test_evaluation_has_every_sample_once_in_order(samples: int, batch: int) -> None:
    batches = labels(in_order(source(samples), batch))
    assert list(chain(*batches)) == list(range(samples))
    assert all(len(b) == batch for b in batches[:-1])


def test_images_stay_with_their_labels() -> None:
    for batch in Feed(source(40), 7, 0).epoch(0):
        assert np.array_equal(batch.images[:, 0, 1, 1], batch.labels)


def test_the_seed_and_the_epoch_decide_the_order() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        return labels(Feed(source(50), 10, seed).epoch(epoch))

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(1, 4)
    assert order(1, 3) != order(2, 3)


def test_endless_epochs_follow_one_another() -> None:
    endless, feed = Feed(source(10), 4, 0), Feed(source(10), 4, 0)
    first_five = [next(endless).labels.tolist() for _ in range(5)]
    expected = [*labels(feed.epoch(0)), *labels(feed.epoch(1)), *labels(feed.epoch(2))]
    assert first_five == expected[:5]


def test_a_batch_stays_while_the_next_is_made() -> None:
    feed = Feed(source(10), 3, 0)
    first = next(feed)
    before = first.images.copy()
    second = next(feed)
    assert np.array_equal(first.images, before)
    assert not np.shares_memory(first.images, second.images)
    assert np.shares_memory(first.images, next(feed).images)


def test_a_batch_larger_than_the_data() -> None:
    with pytest.raises(UsageError, match=r"batch_per_device=11 .*\b10 .*\bnumbers\b"):
        Feed(source(10), 11, 0)


class Placing:
    """The part of a program that takes batches."""

    def __init__(self) -> None:
        self.placed: list[list[int]] = []

    def place(self, batch: Batch) -> Any:
        self.placed.append(batch.labels.tolist())
        return self.placed[-1]


def test_on_the_host_every_batch_is_copied_when_it_is_asked_for() -> None:
    program = Placing()
    batches = placed_batches(cast(Program, program), Feed(source(9), 3, 0), "host")
    assert program.placed == []
    given = [next(batches) for _ in range(4)]
    assert program.placed == given
    assert len({tuple(g) for g in given}) == 4


def test_on_the_device_one_batch_serves_every_step() -> None:
    program = Placing()
    batches = placed_batches(cast(Program, program), Feed(source(9), 3, 0), "device")
    assert next(batches) is next(batches)
    assert len(program.placed) == 1


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 30), st.integers(0, 100))
def test_ranks_have_the_global_minibatches_of_one_feed_among_them(
    ranks: int, batch: int, more: int, seed: int
) -> None:
    samples = ranks * batch + more
    whole = labels(Feed(source(samples), ranks * batch, seed).epoch(1))
    parts = [
        labels(Feed(source(samples), batch, seed, rank=rank, ranks=ranks).epoch(1))
        for rank in range(ranks)
    ]
    assert [list(chain(*same)) for same in zip(*parts, strict=True)] == whole


def test_a_global_minibatch_larger_than_the_data_names_what_fits() -> None:
    with pytest.raises(UsageError, match=r"batch_per_device=6 .*\b2 devices .*\b10 .*\b5\b"):
        Feed(source(10), 6, 0, ranks=2)
