"""Generated images with boxes, and random ones for speed."""

import numpy as np
import pytest

from cubemesh import data, networks
from cubemesh.data.boxes import GeneratedBoxes
from cubemesh.detection.labels import Grid, box_rows, corners
from cubemesh.errors import UsageError

GRID = Grid(size=64, side=4, classes=3)
SHAPE = (3, 64, 64)


def test_a_sample_follows_from_its_number_and_the_seed():
    source = GeneratedBoxes("train", SHAPE, GRID, 0)
    batch = source.batch(np.array([5, 1, 5]))
    assert (batch.images[0] == batch.images[2]).all()
    assert (batch.images[0] != batch.images[1]).any()
    assert (batch.labels[0] == batch.labels[2]).all()
    for other in (
        GeneratedBoxes("validation", SHAPE, GRID, 0),
        GeneratedBoxes("train", SHAPE, GRID, 1),
    ):
        assert (other.batch(np.array([5])).images != batch.images[0]).any()
    assert (source.samples, source.classes) == (512, 3)


def test_a_box_is_that_of_its_shape():
    """Outside of the boxes is one colour with noise, and each box has another one at its edges."""
    batch = GeneratedBoxes("train", SHAPE, GRID, 0).batch(np.arange(24))
    kinds = set()
    for image, labels in zip(batch.images, batch.labels, strict=True):
        rows = box_rows(GRID, labels)
        assert 1 <= len(rows) <= 4
        background = np.ones((64, 64), bool)
        for kind, (left, top, right, bottom) in zip(
            rows[:, 0], corners(GRID, rows).astype(int), strict=True
        ):
            assert 0 <= left < right <= 64
            assert 0 <= top < bottom <= 64
            kinds.add(int(kind))
            background[top:bottom, left:right] = False
        assert image[:, background].std(axis=1).max() < 0.1
    assert kinds == {0, 1, 2}


def test_with_fewer_than_three_classes_every_shape_is_one():
    one = GeneratedBoxes("train", SHAPE, Grid(64, 4, 1), 0)
    batch = one.batch(np.arange(8))
    assert one.classes == 1
    assert {int(k) for own in batch.labels for k in box_rows(GRID, own)[:, 0]} == {0}
    assert (
        batch.images == GeneratedBoxes("train", SHAPE, GRID, 0).batch(np.arange(8)).images
    ).all()


def test_boxes_are_for_networks_that_detect():
    network = networks.build("detectnet-little", 32, 2)
    for name in ("generated-boxes", "synthetic"):
        source = data.open_for(network, name, None, "validation", seed=0)
        batch = source.batch(np.arange(3))
        assert batch.labels.shape == (3, *network.targets[0].shape)
        assert (batch.labels[:, 4:, 0] >= 0).any()
        assert getattr(source, "tokens_per_sample", None) is None
    with pytest.raises(UsageError, match=r"digits has no boxes.*generated-boxes"):
        data.check_feeds("digits", network)
    with pytest.raises(UsageError, match=r"little-cnn does not take them.*detectnet"):
        data.check_feeds("generated-boxes", networks.build("little-cnn"))
    with pytest.raises(UsageError, match="unet does not take them"):
        data.check_feeds("generated-boxes", networks.build("unet"))
