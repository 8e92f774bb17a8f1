import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cubemesh.batches import PADDING
from cubemesh.detection.average_precision import ScoredImage, total
from cubemesh.training.evaluation import (
    EvaluationResult,
    accuracy_figure,
    overlaps,
    score,
    total_of,
    wilson_interval,
)
from cubemesh.training.history import History
from in_memory_log import InMemoryLog

SCORES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 8), st.integers(2, 12)),
    elements=st.floats(-50, 50, width=32),
)


def test_by_hand() -> None:
    scores = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], np.float32)
    found = score(scores, np.array([0, 2]))
    assert (found.samples, found.top1, found.top5) == (2, 1, 2)
    first = -math.log(math.exp(2) / (math.exp(2) + math.exp(1) + 1))
    second = -math.log(math.exp(1) / (1 + math.exp(3) + math.exp(1)))
    assert found.loss == pytest.approx((first + second) / 2)
    assert found.accuracy == 0.5


def test_fifth_place_counts_for_top_five_and_sixth_does_not() -> None:
    scores = np.arange(10.0)[None, :].repeat(2, axis=0)
    found = score(scores, np.array([5, 4]))
    assert (found.top1, found.top5) == (0, 1)


def test_equal_scores_of_all_classes_count_as_wrong() -> None:
    found = score(np.zeros((10, 10), np.float32), np.arange(10))
    assert found.top1 == found.top5 == 0
    assert found.loss == pytest.approx(math.log(10))


def test_scores_that_are_nan_count_as_wrong_and_make_the_loss_nan() -> None:
    for wrong in (math.nan, math.inf):
        found = score(np.full((4, 10), wrong, np.float32), np.arange(4))
        assert found.top1 == 0
        assert not math.isfinite(found.loss)


def test_large_scores_do_not_overflow() -> None:
    assert score(np.array([[1e30, 0.0]]), np.array([0])).loss == 0.0


@given(SCORES, st.data())
def test_results_of_batches_add_up(scores: np.ndarray, data: st.DataObject) -> None:
    n, classes = scores.shape
    labels = np.array(data.draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n)))
    cut = data.draw(st.integers(0, n))
    parts = [p for p in ((scores[:cut], labels[:cut]), (scores[cut:], labels[cut:])) if len(p[1])]
    total = sum((score(*p) for p in parts), start=EvaluationResult())
    whole = score(scores, labels)
    assert (total.samples, total.top1, total.top5) == (whole.samples, whole.top1, whole.top5)
    assert total.loss == pytest.approx(whole.loss)
    assert whole.top1 <= whole.top5 <= n
    assert whole.loss >= 0


def test_wilson_against_published_values() -> None:
    # R. G. Newcombe, Statistics in Medicine 17, 1998, table I, method 3.
    for hits, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)):
        interval = wilson_interval(hits, n)
        assert interval.low == pytest.approx(low, abs=5e-5)
        assert interval.high == pytest.approx(high, abs=5e-5)
    assert wilson_interval(0, 20).low == pytest.approx(0)
    assert wilson_interval(0, 20).high == pytest.approx(0.1611, abs=5e-5)


@given(st.integers(1, 10_000), st.data())
def test_wilsons_interval_contains_the_fraction(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    interval = wilson_interval(hits, n)
    assert 0 <= interval.low <= hits / n + 1e-12
    assert hits / n - 1e-12 <= interval.high <= 1
    assert interval.low < interval.high


def test_an_accuracy_needs_samples() -> None:
    with pytest.raises(ValueError, match="no samples"):
        wilson_interval(0, 0)


def test_an_accuracy_figure_has_its_interval() -> None:
    figure = accuracy_figure(30, 40)
    assert (figure.value, figure.n) == (0.75, 40)
    assert figure.low is not None
    assert figure.low < 0.75


def test_padding_is_not_scored():
    scores = np.zeros((2, 3, 4))
    scores[..., 1] = 1.0
    found = score(scores, np.array([[1, 1, -1], [2, -1, -1]]))
    assert (found.samples, found.top1) == (3, 2)
    assert found.loss == pytest.approx(score(np.eye(4)[[1, 1, 1]], np.array([1, 1, 2])).loss)


def segmented(found: list[int], labels: list[int], classes: int = 3) -> EvaluationResult:
    """The evaluation of one image whose pixels were found to be of these classes."""
    scores, truth = np.eye(classes)[[found]], np.array([labels])
    both, either = overlaps(scores, truth, classes)
    return EvaluationResult(samples=len(found), intersections=both, unions=either)


def test_intersection_over_union_by_hand() -> None:
    one = segmented([0, 0, 1, 1, 1], [0, 1, 1, 1, PADDING])
    assert one.intersections == (1, 2, 0)
    assert one.unions == (2, 3, 0)
    assert one.class_iou == (pytest.approx(1 / 2), pytest.approx(2 / 3), None)
    assert one.mean_iou == pytest.approx(7 / 12), "a class that occurs nowhere does not count"
    other = segmented([2, 2], [0, 2])
    total = total_of([one, other])
    assert total.class_iou == (pytest.approx(1 / 3), pytest.approx(2 / 3), pytest.approx(1 / 2))
    assert total_of([other, one]) == total
    assert EvaluationResult(samples=1).mean_iou is None


def test_a_class_beyond_those_of_the_data_is_a_miss_of_the_true_one() -> None:
    scores, labels = np.eye(5)[[[4, 1]]], np.array([[0, 1]])
    assert overlaps(scores, labels, 3) == ((0, 1, 0), (1, 1, 0))


def test_a_detection_is_restored_from_a_checkpoint_and_logged_without_an_interval():
    scores = total([ScoredImage((0,), (0.5,), (1,), (0,), (1, 0))], 2)
    history = History(validation=[EvaluationResult(samples=4, loss_sum=2.0, detection=scores)])
    plain = json.loads(json.dumps(history.plain()))
    restored = History.from_plain(plain, 0)
    assert restored.validation == history.validation
    log = InMemoryLog()
    restored.log_figures(2, log)
    restored.log_curves(2, log)
    assert log.figures["map"].value == log.figures["accuracy"].value == pytest.approx(0.1)
    assert (log.figures["map50"].value, log.figures["map50"].low) == (1.0, None)
    assert "top5_accuracy" not in log.figures
    assert {"validation_map", "validation_map50", "class_ap"} <= log.curves.keys()
