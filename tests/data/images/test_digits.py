import numpy as np
import pytest

from cubemesh.data.images import digits
from cubemesh.data.images.arrays import FloatImages, RawImages
from cubemesh.data.images.digits import open_digits, read, split_indices
from cubemesh.errors import UsageError


def test_all_of_them_are_there_as_published() -> None:
    images, labels = read()
    assert images.shape == (1797, 8, 8)
    assert (images.min(), images.max()) == (0, 16)
    # Counts by class as scikit-learn documents them; the sum guards against any changed pixel.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert int(images.sum()) == 561718


def test_splits_share_nothing_and_leave_nothing_out() -> None:
    _, labels = read()
    split = split_indices(labels)
    assert len(split["train"]) == digits.TRAIN_SAMPLES
    assert len(split["validation"]) == 1797 - digits.TRAIN_SAMPLES
    assert np.array_equal(np.sort(np.concatenate(list(split.values()))), np.arange(1797))


def test_every_class_is_split_alike() -> None:
    _, labels = read()
    share = np.bincount(labels[split_indices(labels)["train"]]) / np.bincount(labels)
    assert np.allclose(share, 0.8, atol=0.005)


def test_scaled_to_the_network() -> None:
    source = open_digits("validation", (3, 32, 32), 1000)
    batch = source.batch(np.arange(5))
    assert batch.images.shape == (5, 3, 32, 32)
    assert 0 <= batch.images.min() < batch.images.max() <= 1
    assert np.array_equal(batch.images[:, 0], batch.images[:, 1])
    # Enlarging by a whole factor keeps every digit's mean nearly as it is.
    original = read()[0][split_indices(read()[1])["validation"][:5]] / 16
    assert np.allclose(batch.images.mean((1, 2, 3)), original.mean((1, 2)), atol=0.02)


def test_large_images_are_scaled_batch_by_batch() -> None:
    assert isinstance(open_digits("train", (3, 32, 32), 10), FloatImages)
    assert isinstance(open_digits("train", (3, 224, 224), 10), RawImages)


def test_too_few_classes() -> None:
    with pytest.raises(UsageError, match=r"digits .*\b10 .*\b5\b"):
        open_digits("train", (3, 8, 8), 5)
