"""Why a mean average precision is 0: one cause for each state of labels and detections."""

import re

import numpy as np
import pytest

from cubemesh.detection.average_precision import score_image, total
from cubemesh.detection.labels import Grid, LabelledBoxes, as_detected, encode
from cubemesh.detection.zero_map import why_zero

GRID = Grid(size=64, side=4, classes=3)


def labels(*boxes, kind=0, ignored=False):
    count = len(boxes)
    return encode(
        GRID,
        LabelledBoxes(
            np.array(boxes, float).reshape(-1, 4), np.full(count, kind), np.full(count, ignored)
        ),
    )


def why(own, predicted=None):
    scores = np.zeros((16, 7)) if predicted is None else as_detected(GRID, predicted)
    found = total([score_image(GRID, scores, own)], 3)
    return why_zero(found, GRID)


def test_a_map_above_0_has_no_cause():
    own = labels([0, 0, 32, 32])
    assert why(own, own) is None


@pytest.mark.parametrize(
    ("own", "predicted", "cause"),
    [
        (labels([70, 0, 90, 20], [5, 5, 5, 9]), None, "All 2 labelled boxes .*no area inside"),
        (labels(), None, "no labelled box that counts"),
        (labels([0, 0, 20, 20], ignored=True), None, "no labelled box that counts"),
        (labels([0, 0, 32, 32]), None, r"coverage above 0\.05.* highest is 0\."),
        (
            labels([0, 0, 32, 32], kind=1),
            labels([0, 0, 32, 32], kind=2),
            "All 1 predicted boxes are of class 2, .* boxes of class 1",
        ),
        (
            labels([0, 0, 9, 9]),
            labels([40, 40, 60, 60]),
            "1 of 1 .* smaller than a cell of 16",
        ),
        (
            labels([0, 0, 40, 16.5], [0, 0, 40, 16.4], [0, 0, 40, 16.3], [0, 0, 40, 16.2]),
            labels([40, 40, 60, 60]),
            "3 of 4 .* have no cell",
        ),
        (labels([0, 0, 32, 32]), labels([24, 0, 56, 32]), r"highest intersection .* 0\.14"),
    ],
)
def test_the_cause_is_named(own, predicted, cause):
    found = why(own, predicted)
    assert found is not None
    assert re.search(cause, found[0]), found[0]
    assert found[1].endswith(".")
