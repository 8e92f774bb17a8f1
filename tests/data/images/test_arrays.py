import numpy as np
import pytest

from cubemesh.data.images import arrays
from cubemesh.data.images.arrays import FloatImages, RawImages, prepared
from cubemesh.data.source import Shape, empty_batch
from cubemesh.errors import UsageError


def raw(shape: Shape = (3, 4, 4), *, channels: int = 1, parts: int = 1) -> RawImages:
    generator = np.random.default_rng(1)
    pieces = [generator.integers(17, size=(6, channels * 16)).astype(np.uint8)] * parts
    labels = np.arange(6 * parts) % 4
    return RawImages(
        "grey",
        pieces,
        labels,
        raw_shape=(channels, 4, 4),
        white=16,
        classes=4,
        shape=shape,
    )


def test_bytes_become_shares_of_white_and_grey_becomes_every_channel() -> None:
    source = raw()
    batch = source.batch(np.array([2, 0]))
    assert batch.images.shape == (2, 3, 4, 4)
    assert batch.images.dtype == np.float32
    assert np.array_equal(batch.images[0, 0].ravel() * 16, source._parts[0][2])
    assert np.array_equal(batch.images[:, 0], batch.images[:, 2])
    assert batch.labels.tolist() == [2, 0]
    assert batch.labels.dtype == np.int64


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 4, 4), (3, 9, 5), (2, 2, 3)])
def test_ready_and_raw_give_the_same_values(shape: Shape) -> None:
    source = raw(shape)
    ready = prepared(source)
    assert isinstance(ready, FloatImages)
    indices = np.array([5, 1, 1, 0])
    one, other = source.batch(indices), ready.batch(indices)
    assert np.array_equal(one.images, other.images)
    assert np.array_equal(one.labels, other.labels)
    assert (ready.samples, ready.classes, ready.shape) == (6, 4, shape)


def test_what_does_not_fit_the_budget_stays_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    source = raw()
    monkeypatch.setattr(arrays, "CACHE_BYTES", 6 * 3 * 16 * 4)
    assert isinstance(prepared(source), FloatImages)
    monkeypatch.setattr(arrays, "CACHE_BYTES", 6 * 3 * 16 * 4 - 1)
    assert prepared(source) is source


def test_samples_come_from_the_part_they_lie_in() -> None:
    source = raw(parts=3)
    source._parts = [np.full((6, 16), p, np.uint8) for p in range(3)]
    images = source.batch(np.array([17, 0, 6, 11, 12])).images
    assert (images[:, 0, 0, 0] * 16).tolist() == [2, 0, 1, 1, 2]


@pytest.mark.parametrize("kind", [RawImages, FloatImages])
def test_a_batch_is_filled_in_place(kind: type) -> None:
    source = raw() if kind is RawImages else prepared(raw())
    into = empty_batch(2, (3, 4, 4))
    batch = source.batch(np.array([3, 4]), into)
    assert batch is into
    assert np.array_equal(batch.images, source.batch(np.array([3, 4])).images)


@pytest.mark.parametrize("indices", [[6], [-1], [0, 7]])
def test_samples_out_of_range_are_refused(indices: list[int]) -> None:
    for source in (raw(), prepared(raw())):
        with pytest.raises(IndexError, match=r"\b6$"):
            source.batch(np.array(indices))


def test_colour_does_not_fit_a_grey_network() -> None:
    with pytest.raises(UsageError, match=r"\b3 channels .*\b1\b"):
        raw((1, 4, 4), channels=3)
