"""Labels of a grid of cells, what they detect, and the loss."""

import numpy as np
import pytest

from cubemesh import networks
from cubemesh.batches import PADDING
from cubemesh.detection import detects
from cubemesh.detection.labels import (
    ANY_CLASS,
    HIDDEN,
    IGNORED,
    OUTSIDE,
    UNITS,
    Grid,
    LabelledBoxes,
    as_detected,
    box_rows,
    corners,
    detections,
    encode,
    grid_of,
    loss,
    no_labels,
)
from random_boxes import random_boxes

GRID = Grid(size=64, side=4, classes=3)


def labelled(*boxes, kinds=None, ignored=()):
    return LabelledBoxes(
        np.array(boxes, float).reshape(-1, 4),
        np.array(kinds or [0] * len(boxes), np.int64),
        np.array([n in ignored for n in range(len(boxes))], bool),
    )


def covered(labels):
    """The class of each cell, as rows."""
    return labels[: GRID.cells, 0].reshape(4, 4).tolist()


def test_the_grid_of_a_network():
    assert grid_of(networks.build("detectnet-little")) == GRID
    assert grid_of(networks.build("detectnet")) == Grid(640, 40, 1)
    assert GRID.stride == 16
    assert GRID.middles()[[0, 1, 4]].tolist() == [[8, 8], [24, 8], [8, 24]]
    assert not detects(networks.build("unet"))


def test_an_object_covers_the_cells_in_the_middle_of_its_box():
    labels = encode(GRID, labelled([0, 0, 64, 64], kinds=[2]))
    none = [-1] * 4
    # 40 % of 64 is 25.6: from 19.2 to 44.8, so the middles 24 and 40.
    assert covered(labels) == [none, [-1, 2, 2, -1], [-1, 2, 2, -1], none]
    cell = labels[5]
    assert cell[1] == 4, "cells of the object"
    assert (cell[2:] / UNITS * 16).tolist() == [-24, -24, 40, 40]
    (row,) = box_rows(GRID, labels)
    assert row[:2].tolist() == [2, 0]
    assert corners(GRID, row[None])[0].tolist() == [0, 0, 64, 64]


def test_the_smaller_box_has_a_shared_cell_and_one_without_a_cell_is_marked():
    labels = encode(GRID, labelled([0, 0, 16, 16], [2, 2, 14, 14], kinds=[0, 1]))
    assert covered(labels)[0] == [1, -1, -1, -1]
    assert box_rows(GRID, labels)[:, 1].tolist() == [HIDDEN, 0]


def test_a_box_smaller_than_a_cell_has_the_cell_with_its_middle():
    labels = encode(GRID, labelled([60, 30, 64, 33]))
    assert covered(labels)[1] == [-1, -1, -1, 0]


def test_boxes_are_cut_at_the_edges_and_those_outside_or_ignored_cover_nothing():
    found = labelled(
        [-30, 0, 20, 20], [70, 0, 90, 20], [40, 40, 40, 60], [32, 32, 64, 64], ignored={3}
    )
    found.classes[3] = ANY_CLASS
    labels = encode(GRID, found)
    assert sum(row.count(0) for row in covered(labels)) == 1
    rows = box_rows(GRID, labels)
    assert rows[:, 1].tolist() == [0, OUTSIDE, OUTSIDE, IGNORED]
    assert corners(GRID, rows)[0].tolist() == [0, 0, 20, 20]


def test_an_image_without_objects_differs_from_one_that_does_not_count():
    nothing = encode(GRID, labelled())
    assert set(nothing[:, 0]) == {PADDING}
    assert set(nothing[:, 1]) == {0}
    assert (no_labels(GRID) == PADDING).all()


def test_what_the_labels_say_is_detected_and_has_the_least_loss():
    rng = np.random.default_rng(4)
    labels = random_boxes(GRID, 20, rng)
    scores = np.stack([as_detected(GRID, one) for one in labels])
    assert loss(scores, labels) == pytest.approx(np.zeros(20), abs=1e-6)
    for one, own in zip(scores, labels, strict=True):
        found, rows = detections(GRID, one), box_rows(GRID, own)
        rows = rows[rows[:, 1] == 0]
        wanted = {(k, *b) for k, b in zip(rows[:, 0], corners(GRID, rows), strict=True)}
        seen = zip(found.classes, found.boxes, strict=True)
        assert {(k, *b) for k, b in seen} <= wanted
    assert (loss(scores + 0.1, labels) > 0).all()


def test_the_loss_by_hand():
    grid = Grid(size=32, side=2, classes=2)
    labels = encode(grid, labelled([0, 0, 16, 16], kinds=[1]))[None]
    scores = np.zeros((1, 4, 6))
    scores[0, 0, 1] = 0.5  # of 1
    scores[0, 3, 0] = 0.2  # of 0
    scores[0, 0, 2:] = [-0.5, -0.5, 0.5, 0.25]  # of 0.5 cells: the bottom is a quarter too high
    assert loss(scores, labels) == pytest.approx([(0.25 + 0.04) / 2 + 2 * 0.25])
    scores[0, 3, 2:] = 9  # a cell without an object has no box
    assert loss(scores, labels) == pytest.approx([(0.25 + 0.04) / 2 + 2 * 0.25])


def test_detections_are_by_coverage_and_above_the_threshold():
    scores = np.zeros((16, 7))
    scores[[0, 5, 15], 1] = 0.3, 0.9, 0.04
    scores[:, 3:] = [-0.5, -0.5, 0.5, 0.5]
    found = detections(GRID, scores)
    assert found.classes.tolist() == [1, 1]
    assert found.coverage.tolist() == [0.9, 0.3]
    assert found.boxes.tolist() == [[16, 16, 32, 32], [0, 0, 16, 16]]
    scores[5, 3:] = [0.5, 0.5, -0.5, -0.5]
    scores[0, 3] = np.nan
    assert not len(detections(GRID, scores).classes), "boxes without an area"
    assert len(detections(GRID, np.full((16, 7), 0.5), most=3).classes) <= 3
