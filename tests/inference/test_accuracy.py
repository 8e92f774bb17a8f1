"""Paired verdicts on accuracy, against brute force and by simulation."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import DataError, UsageError
from cubemesh.inference import accuracy
from cubemesh.inference.accuracy import (
    CANNOT_TELL,
    KEEPS,
    LOSES,
    agreement,
    paired_accuracy,
    ratio_interval,
    verdict_of,
)
from cubemesh.inference.samples import right_answers

counts = st.tuples(st.integers(1, 2000), st.integers(0, 50), st.integers(0, 50))


def right_or_wrong(both, lost, gained, neither=0):
    reference = np.repeat([True, True, False, False], [both, lost, gained, neither])
    candidate = np.repeat([True, False, True, False], [both, lost, gained, neither])
    order = np.random.default_rng(0).permutation(len(reference))
    return reference[order], candidate[order]


def most_likely_statistic(both, lost, gained, ratio):
    """The statistic with the most likely shares, found on a fine grid."""
    n = both + lost + gained
    gained_share = np.linspace(0, 1, 400_001)[1:-1]
    # Given p_c: p_a + p_c = ratio (p_a + p_b), and all three are 1.
    lost_share = (1 - ratio) * (1 - gained_share) + gained_share
    both_share = 1 - gained_share - lost_share
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood = sum(
            k * np.log(p)
            for k, p in ((both, both_share), (lost, lost_share), (gained, gained_share))
            if k
        )
    likelihood[(both_share < 0) | (lost_share < 0)] = -np.inf
    best = np.nanargmax(likelihood)
    variance = ratio * n * (lost_share[best] + gained_share[best])
    return (both + gained - ratio * (both + lost)) / math.sqrt(variance)


@pytest.mark.parametrize("both_lost_gained", [(90, 8, 2), (90, 5, 5), (40, 3, 30), (350, 1, 1)])
@pytest.mark.parametrize("ratio", [0.8, 0.97, 0.99, 1.02, 1.5])
def test_the_statistic_is_that_of_the_most_likely_shares(both_lost_gained, ratio):
    found = accuracy._statistic(*both_lost_gained, ratio)
    wanted = most_likely_statistic(*both_lost_gained, ratio)
    assert found == pytest.approx(wanted, rel=1e-3, abs=1e-3)


@given(counts)
def test_the_interval_contains_the_ratio_and_turns_round_with_the_pair(abc):
    both, lost, gained = abc
    found = ratio_interval(both, lost, gained)
    assert found.low <= (both + gained) / (both + lost) <= found.high
    other = ratio_interval(both, gained, lost)
    assert found.low == pytest.approx(1 / other.high, rel=1e-6)
    assert found.high == pytest.approx(1 / other.low, rel=1e-6)


def test_without_a_difference_the_interval_has_a_closed_form():
    z2 = 1.959964**2
    found = ratio_interval(359, 0, 0)
    assert found.low == pytest.approx(1 / (1 + z2 / 359), rel=1e-6)
    assert found.high == pytest.approx(1 + z2 / 359, rel=1e-6)


def test_nothing_right_has_no_bounds():
    assert ratio_interval(0, 0, 3).high == math.inf
    found = ratio_interval(0, 5, 0)
    assert found.low == 0
    assert 0 < found.high < 2


@pytest.mark.parametrize(
    ("shares", "samples"),
    [
        ((0.95, 0.02, 0.01, 0.02), 359),
        ((0.90, 0.005, 0.005, 0.09), 1000),
        ((0.60, 0.10, 0.05, 0.25), 100),
        ((0.75, 0.03, 0.0, 0.22), 500),
    ],
)
def test_intervals_contain_the_true_ratio_nineteen_times_in_twenty(shares, samples):
    @cache
    def contains(both, lost, gained):
        found = ratio_interval(both, lost, gained)
        return found.low <= true <= found.high

    true = (shares[0] + shares[2]) / (shares[0] + shares[1])
    drawn = np.random.default_rng(0).multinomial(samples, shares, size=4000)
    covered = np.mean([contains(*row[:3]) for row in drawn.tolist()])
    assert 0.93 <= covered <= 0.975


def test_a_hundred_samples_with_one_lost_cannot_tell():
    found = paired_accuracy(*right_or_wrong(99, 1, 0))
    assert (found.ratio, found.lost, found.gained) == (0.99, 1, 0)
    assert found.verdict == CANNOT_TELL
    assert found.samples_needed > 100
    assert "these 100 samples cannot tell; about" in str(found)


def test_a_planted_loss_of_three_percent_in_five_thousand_is_a_loss():
    rng = np.random.default_rng(0)
    reference = rng.random(5000) < 0.76
    candidate = reference & (rng.random(5000) >= 0.03)
    found = paired_accuracy(reference, candidate)
    assert found.verdict == LOSES
    assert found.samples_needed is None
    assert found.interval.high < 0.99
    assert str(found).endswith("loses 99.00%")


def test_few_changes_among_many_samples_keep_the_accuracy():
    found = paired_accuracy(*right_or_wrong(3800, 12, 9, 1179))
    assert found.verdict == KEEPS
    assert (found.reference_right, found.right, found.samples) == (3812, 3809, 5000)


def test_more_right_answers_than_fp32_can_still_be_too_few_samples():
    found = paired_accuracy(*right_or_wrong(20, 0, 1))
    assert found.ratio > 1
    assert found.verdict == CANNOT_TELL


@given(counts, st.sampled_from([0.97, 0.99, 0.999, 1.0]))
def test_about_as_many_samples_as_stated_would_tell(abc, bound):
    both, lost, gained = abc
    found = verdict_of(both=both, lost=lost, gained=gained, samples=sum(abc), bound=bound)
    assert (found.verdict == CANNOT_TELL) == (found.samples_needed is not None) or (
        found.ratio == bound
    )
    if found.samples_needed is not None and found.samples_needed < 1e9:
        more = 1.01 * found.samples_needed / found.samples
        scaled = ratio_interval(both * more, lost * more, gained * more)
        assert scaled.low >= bound - 0.01 if found.ratio >= bound else scaled.high < bound


def test_accuracy_that_cannot_be_compared_is_refused():
    with pytest.raises(UsageError, match="answers 0 of 5 samples correctly"):
        paired_accuracy(np.zeros(5), np.ones(5))
    with pytest.raises(UsageError, match="above 0 and at most 1, not 99"):
        paired_accuracy(np.ones(5), np.ones(5), bound=99)
    with pytest.raises(ValueError, match="not pairs"):
        paired_accuracy(np.ones(5), np.ones(4))


def test_agreement_is_that_of_a_scalar_reference():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 6, 4, 5)) * 3
    divergence, changed = 0.0, 0
    for p_scores, q_scores in zip(first.reshape(-1, 5), second.reshape(-1, 5), strict=True):
        p, q = (np.exp(s) / np.exp(s).sum() for s in (p_scores, q_scores))
        divergence += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 24
        changed += p_scores.argmax() != q_scores.argmax()
    found = agreement(first, second)
    assert (found.decisions, found.changed) == (24, changed)
    assert found.divergence == pytest.approx(divergence)
    error = np.abs(first - second).max() / np.abs(first).max()
    assert found.largest_error == pytest.approx(error)
    assert not found.agrees


def test_large_scores_do_not_overflow():
    scores = np.array([[1e4, -1e4], [-1e30, 1e30]])
    found = agreement(scores, scores)
    assert (found.changed, found.divergence, found.largest_error) == (0, 0, 0)
    assert found.agrees


def test_a_hundredth_of_the_decisions_may_change():
    scores = np.eye(2)[np.zeros(200, int)] * 0.1
    for changed, agrees in ((2, True), (3, False)):
        other = scores.copy()
        other[:changed] = other[:changed, ::-1]
        assert agreement(scores, other).agrees is agrees


def test_scores_that_are_not_finite_do_not_agree():
    found = agreement(np.eye(3), np.full((3, 3), np.nan))
    assert found.divergence == found.largest_error == math.inf
    assert not found.agrees
    with pytest.raises(ValueError, match="not pairs"):
        agreement(np.eye(3), np.eye(4))


def test_a_detector_answers_cells():
    """Right where the class of the object covers the cell by more than half, or none does; the
    cells of padding do not count."""
    labels = np.zeros((1, 3 + 2, 6), np.int64)
    labels[0, :, 0] = 1, 0, -1, -1, -1
    scores = np.zeros((1, 3, 2 + 4))
    scores[0, 0, :2] = 0.1, 0.9
    scores[0, 1, :2] = 0.4, 0.3
    assert right_answers(scores, labels).tolist() == [True, False, True]
    padded = np.concatenate([labels, np.full_like(labels, -1)])
    assert right_answers(np.repeat(scores, 2, axis=0), padded).tolist() == [True, False, True]
    with pytest.raises(DataError, match=r"\(1, 5, 6\) are not those of scores \(1, 9, 6\)"):
        right_answers(np.zeros((1, 9, 6)), labels)
    with pytest.raises(DataError, match=r"\(1, 5, 1\) are not those"):
        right_answers(scores, labels[:, :, :1])
