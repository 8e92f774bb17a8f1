"""The area under the ROC curve against its definition, and its interval against simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.statistics.roc import RocArea, roc_area

SAMPLES = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=20)


@given(SAMPLES)
def test_it_is_the_share_of_pairs_in_order(samples):
    scores = np.array([float(score) for score, _ in samples])
    positive = np.array([label for _, label in samples])
    found = roc_area(scores, positive)
    if positive.all() or not positive.any():
        assert found is None
        return
    wins = np.sign(scores[positive][:, None] - scores[~positive])
    assert found.area == pytest.approx((wins.mean() + 1) / 2)


def test_samples_in_another_order_have_the_same_bits():
    generator = np.random.default_rng(3)
    scores, positive = generator.normal(size=400), generator.random(400) < 0.4
    order = np.argsort(scores)
    assert roc_area(scores[order], positive[order]) == roc_area(scores, positive)


def test_the_error_is_that_of_delong():
    """Variance of the wins of each positive sample by 3, and of each negative sample by 4."""
    scores = np.array([0.9, 0.8, 0.4, 0.7, 0.3, 0.2, 0.1])
    positive = np.array([True, True, True, False, False, False, False])
    found = roc_area(scores, positive)
    assert found.area == pytest.approx(11 / 12)
    wins, losses = np.array([1, 1, 3 / 4]), np.array([1 / 3, 0, 0, 0])
    variance = wins.var(ddof=1) / 3 + losses.var(ddof=1) / 4
    assert found.error == pytest.approx(variance**0.5)


def test_the_interval_covers_the_true_area():
    """Of normal scores that differ by 1, the area is Φ(1 / √2)."""
    generator, covered = np.random.default_rng(7), 0
    for _ in range(300):
        positive = np.arange(120) < 50
        found = roc_area(generator.normal(size=120) + positive, positive).interval()
        covered += found.low <= 0.7602499 <= found.high
    assert 0.91 <= covered / 300 <= 0.985


def test_perfect_and_unusable_scores():
    positive = np.array([True, False, False])
    perfect = roc_area(np.array([2.0, 1.0, 0.0]), positive)
    assert perfect.area == 1
    assert perfect.interval() is None
    assert roc_area(np.array([2.0, np.nan, 0.0]), positive) is None
    assert RocArea(area=0.8, error=0.0).interval() is None
