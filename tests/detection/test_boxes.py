"""Overlaps of boxes, and suppression of those that find the same object."""

import numpy as np
import pytest

from cubemesh.detection.boxes import areas, non_maximum_suppression, overlaps


def test_intersection_over_union_by_hand():
    one = np.array([[0.0, 0, 2, 2]])
    other = np.array([[1.0, 1, 3, 3], [0, 0, 2, 2], [2, 0, 4, 2], [0, 0, 0, 5], [0, 0, 4, 1]])
    assert overlaps(one, other)[0] == pytest.approx([1 / 7, 1, 0, 0, 2 / 6])
    assert areas(np.array([[3.0, 0, 1, 2], [0, 0, 2, 3]])).tolist() == [0, 6]
    region = np.array([True, False, False, False, False])
    assert overlaps(one, other, region)[0, 0] == pytest.approx(1 / 4), "over its own area"
    assert overlaps(np.zeros((1, 4)), np.zeros((1, 4))).tolist() == [[0]]


def test_a_box_suppresses_those_below_it_that_overlap():
    boxes = np.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [0, 6, 10, 16], [20, 20, 30, 30]])
    scores = np.array([0.8, 0.9, 0.7, 0.1])
    assert non_maximum_suppression(boxes, scores).tolist() == [1, 2, 3]
    assert non_maximum_suppression(boxes, scores, 0.9).tolist() == [1, 0, 2, 3]
    assert non_maximum_suppression(np.zeros((0, 4)), np.zeros(0)).tolist() == []


def test_a_suppressed_box_suppresses_nothing():
    row = np.array([[0.0, 0, 10, 10], [4, 0, 14, 10], [8, 0, 18, 10]])
    kept = non_maximum_suppression(row, np.array([0.9, 0.8, 0.7]), 0.4)
    assert kept.tolist() == [0, 2], "the second overlaps both"
