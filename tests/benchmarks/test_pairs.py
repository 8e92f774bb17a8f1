import time

import numpy as np
import pytest


def sleeping(pairs, seconds):
    return pairs.Side(step=lambda: time.sleep(seconds), synchronize=lambda: None)


def test_the_faster_of_two_is_found(script, monkeypatch):
    pairs = script("pairs")
    monkeypatch.setattr(pairs, "WINDOW_S", 0.01)
    both = [(sleeping(pairs, 0.01), sleeping(pairs, 0.005)) for _ in range(2)]
    found = pairs.compare(both, 0.3)
    assert found.pairs >= 6
    assert 1.2 < found.ratio < 2.8
    assert found.low <= found.ratio <= found.high


def test_windows_are_summed_up_by_hand(script):
    found = script("pairs").sum_up(np.array([[2.0, 1.0], [3.0, 1.0], [4.0, 1.0]]), 10)
    assert (found.ratio, found.pairs, found.steps_per_window) == (3.0, 3, 10)
    assert (found.first_step_ms, found.second_step_ms) == pytest.approx((300.0, 100.0))
    assert (found.low, found.high) == (2.0, 4.0)
