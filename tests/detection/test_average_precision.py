"""Mean average precision against examples computed by hand, and against pycocotools."""

import numpy as np
import pytest

from cubemesh.detection.average_precision import (
    IOU_THRESHOLDS,
    RESAMPLES,
    ScoredImage,
    intervals,
    match,
    score_image,
    total,
)
from cubemesh.detection.labels import (
    IGNORED,
    Grid,
    LabelledBoxes,
    as_detected,
    box_rows,
    corners,
    detections,
    encode,
)
from random_boxes import random_boxes

GRID = Grid(size=64, side=4, classes=3)
ALL = (1 << len(IOU_THRESHOLDS)) - 1


def scored(*detections, boxes, uncounted=None):
    """An image of detections (class, score, bits of the thresholds at which it is right)."""
    kinds, scores, bits = zip(*detections, strict=True) if detections else ((), (), ())
    return ScoredImage(kinds, scores, bits, uncounted or (0,) * len(kinds), boxes)


def test_average_precision_by_hand():
    """Right, wrong, right of three boxes: precision 1 up to a recall of 1/3, 2/3 up to 2/3."""
    images = [scored((0, 0.9, ALL), (0, 0.8, 0), (0, 0.7, ALL), boxes=(3,))]
    found = total(images, 1)
    # Recalls 0 to 0.33 are 34 of 101, those to 0.66 another 33.
    assert found.mean_ap50 == pytest.approx((34 + 33 * 2 / 3) / 101)
    assert found.mean_ap == pytest.approx(found.mean_ap50)


def test_thresholds_and_classes_are_averaged():
    low = 0b11  # right up to 0.55
    images = [
        scored((0, 0.9, low), (1, 0.8, ALL), boxes=(1, 1, 0)),
        scored((2, 0.5, 0), boxes=(0, 1, 0)),
    ]
    found = total(images, 3)
    half = 51 / 101  # recalls 0 to 0.5
    assert found.class_ap == (pytest.approx(0.2), pytest.approx(half), None)
    assert found.class_ap50 == (1.0, pytest.approx(half), None)
    assert found.mean_ap == pytest.approx((0.2 + half) / 2), "a class without boxes does not count"
    assert found.mean_ap50 == pytest.approx((1 + half) / 2)
    assert (found.detections, found.boxes) == ((1, 1, 1), (1, 2, 0))


def test_detections_are_pooled_by_score_over_images():
    """A wrong box of a higher score, in another image, lowers precision."""
    right, wrong = scored((0, 0.5, ALL), boxes=(1,)), scored((0, 0.9, 0), boxes=(0,))
    assert total([right], 1).mean_ap == 1
    assert total([right, wrong], 1).mean_ap == pytest.approx(0.5)
    unjudged = scored((0, 0.9, 0), boxes=(0,), uncounted=(ALL,))
    assert total([right, unjudged], 1).mean_ap == 1


def test_without_boxes_or_detections_it_is_0():
    assert total([], 2).mean_ap == total([scored(boxes=(0, 0))], 2).mean_ap == 0
    assert total([scored(boxes=(4, 0))], 2).mean_ap50 == 0
    assert intervals([scored(boxes=(1, 0))], 2) is None


def bits_of(rows):
    return [[bin(int(n)).count("1") for n in row] for row in rows]


def test_each_box_is_found_once_by_the_best_detection():
    none = np.zeros(2, bool)
    shared = np.array([[0.8, 0.6], [0.9, 0.55]])  # both prefer the first box; the first comes first
    found = match(shared, none)
    # 0.5 to 0.8 are seven thresholds; the second takes its box of 0.55 at two of them, and the
    # first box where that is still free, at 0.85 and 0.9.
    assert bits_of(found) == [[7, 4], [0, 0]]


def test_a_region_takes_any_number_of_detections_and_a_box_is_preferred():
    shared = np.array([[0.7, 0.9], [0.1, 0.9], [0.2, 0.8]])
    found = match(shared, np.array([False, True]))
    assert bits_of(found) == [[5, 0, 0], [4, 9, 7]]
    assert bits_of(match(np.zeros((2, 0)), np.zeros(0, bool))) == [[0, 0], [0, 0]]


def test_an_image_is_scored_by_its_labels():
    labels = random_boxes(GRID, 12, np.random.default_rng(0))
    images = [score_image(GRID, as_detected(GRID, one), one) for one in labels]
    found = total(images, 3)
    assert sum(found.detections) == sum(found.boxes) - found.hidden
    assert found.highest == found.best_overlap == 1.0
    silent = total([score_image(GRID, np.zeros((16, 7)), one) for one in labels], 3)
    assert (silent.mean_ap, silent.highest, sum(silent.detections)) == (0, 0, 0)
    assert silent.boxes == found.boxes


def test_a_detection_in_a_region_does_not_count():
    box = np.array([[0.0, 0, 32, 32]])
    own = encode(GRID, LabelledBoxes(box, np.array([1]), np.array([False])))
    scores = as_detected(GRID, own)
    for kind, right in ((1, 0), (-2, 0), (0, 1)):  # its own class, every class, another class
        region = encode(GRID, LabelledBoxes(box, np.array([kind]), np.array([True])))
        image = score_image(GRID, scores, region)
        assert image.boxes == (0, 0, 0)
        assert image.uncounted == ((0,) if right else (ALL,)), kind


def test_the_interval_is_over_images_and_repeats():
    rng = np.random.default_rng(1)
    images = [
        scored((0, float(rng.random()), ALL * int(rng.random() < 0.7)), boxes=(1,))
        for _ in range(40)
    ]
    found = intervals(images, 1)
    assert found == intervals(images, 1)
    value = total(images, 1).mean_ap
    assert 0 < found[0].low < value < found[0].high < 1
    same = [scored((0, 0.5, ALL), boxes=(1,))] * 5
    assert (intervals(same, 1)[0].low, intervals(same, 1)[0].high) == (1, 1)
    assert RESAMPLES >= 100


def test_it_is_that_of_pycocotools():
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(2)
    labels = random_boxes(GRID, 30, rng)
    scores = [as_detected(GRID, one) + rng.normal(0, 0.1, (16, 7)) for one in labels]

    def xywh(boxes):
        return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).tolist()

    truth, found = [], []
    for image, (own, one) in enumerate(zip(labels, scores, strict=True)):
        own[GRID.cells :: 3, 1] |= IGNORED * (own[GRID.cells :: 3, 0] >= 0)  # crowds
        rows = box_rows(GRID, own)
        for kind, flags, box in zip(
            *rows[:, :2].T.tolist(), xywh(corners(GRID, rows)), strict=True
        ):
            area = box[2] * box[3]
            box = {"image_id": image, "category_id": kind, "bbox": box, "area": area}
            truth.append(box | {"id": len(truth) + 1, "iscrowd": flags & IGNORED})
        seen = detections(GRID, one)
        for kind, box, score in zip(
            seen.classes.tolist(), xywh(seen.boxes), seen.coverage.tolist(), strict=True
        ):
            found.append({"image_id": image, "category_id": kind, "bbox": box, "score": score})
    reference = coco.COCO()
    reference.dataset = {
        "images": [{"id": n} for n in range(30)],
        "categories": [{"id": n} for n in range(3)],
        "annotations": truth,
    }
    reference.createIndex()
    judged = evaluation.COCOeval(reference, reference.loadRes(found), "bbox")
    judged.evaluate()
    judged.accumulate()
    judged.summarize()
    assert 0.1 < judged.stats[0] < 0.95
    ours = total([score_image(GRID, one, own) for one, own in zip(scores, labels, strict=True)], 3)
    assert ours.mean_ap == pytest.approx(judged.stats[0], abs=1e-9)
    assert ours.mean_ap50 == pytest.approx(judged.stats[1], abs=1e-9)
