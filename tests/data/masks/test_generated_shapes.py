"""Generated shapes and their masks."""

import numpy as np
import pytest

from cubemesh.data.masks import GeneratedShapes, has_masks
from cubemesh.errors import UsageError

SHAPE = (3, 32, 32)


def test_a_sample_follows_from_its_number_and_the_seed():
    source = GeneratedShapes("train", SHAPE, 4, 0)
    assert has_masks(source)
    batch = source.batch(np.array([5, 1, 5]))
    assert (batch.images[0] == batch.images[2]).all()
    assert (batch.images[0] != batch.images[1]).any()
    for other in (
        GeneratedShapes("validation", SHAPE, 4, 0),
        GeneratedShapes("train", SHAPE, 4, 1),
    ):
        assert (other.batch(np.array([5])).images != batch.images[0]).any()
    assert 0 <= batch.images.min() <= batch.images.max() <= 1


def test_shapes_have_their_kind_as_class_or_one_class():
    kinds = GeneratedShapes("train", SHAPE, 10, 0)
    one = GeneratedShapes("train", SHAPE, 2, 0)
    numbers = np.arange(40)
    labels, covered = kinds.batch(numbers).labels, one.batch(numbers).labels
    assert (kinds.classes, one.classes) == (4, 2)
    assert set(np.unique(labels)) == {0, 1, 2, 3}
    assert ((labels > 0) == (covered > 0)).all()
    assert (kinds.batch(numbers).images == one.batch(numbers).images).all()
    with pytest.raises(UsageError, match="classes=2"):
        GeneratedShapes("train", SHAPE, 1, 0)


def test_the_pixels_of_a_shape_differ_from_the_background():
    batch = GeneratedShapes("train", SHAPE, 2, 0).batch(np.arange(16))
    for image, label in zip(batch.images, batch.labels, strict=True):
        inside, outside = image.reshape(3, -1)[:, label == 1], image.reshape(3, -1)[:, label == 0]
        if inside.size and outside.size:
            assert outside.std(axis=1).max() < 0.1, "one colour and its noise"
