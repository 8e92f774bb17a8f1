import time

import pytest


def sleeping(pairs, seconds):
    return pairs.Side(step=lambda: time.sleep(seconds), synchronize=lambda: None)


def test_the_faster_of_two_is_found(script):
    pairs = script("ab_comparison")
    both = [(sleeping(pairs, 0.01), sleeping(pairs, 0.005)) for _ in range(2)]
    found = pairs.compare(both, 0.3)
    assert found.pairs >= 6
    assert 1.2 < found.ratio < 2.8
    assert found.low <= found.ratio <= found.high
    assert found.first_step_ms > found.second_step_ms


def test_one_instance_is_too_few(script):
    pairs = script("ab_comparison")
    with pytest.raises(ValueError, match="instances 2"):
        pairs.compare([(sleeping(pairs, 0.01), sleeping(pairs, 0.01))], 0.1)
