"""The learning rate by step, against the published recipes."""

import itertools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.schema import Train
from cubemesh.training.schedule import Schedule


def schedule(devices=1, each=10, **fields):
    work = Train(network="n", batch_per_device=1, **{"epochs": 90, "learning_rate": 0.1, **fields})
    return Schedule(work, devices, each)


def test_the_default_rate_is_constant():
    usual = schedule(devices=8)
    assert not usual.changes
    assert {usual.rate(step) for step in range(900)} == {0.1}


def test_goyals_recipe():
    goyal = schedule(devices=8, rate_scaling="linear", warmup_epochs=5, schedule="step")
    rates = [goyal.rate(step) for step in range(900)]
    assert goyal.changes
    assert 0.1 < rates[0] < 0.12, "it begins near the rate of one device"
    rises = [b - a for a, b in itertools.pairwise(rates[:50])]
    assert rises == pytest.approx([0.7 / 50] * 49), "evenly"
    assert rates[49] == pytest.approx(0.8)
    assert rates[50:300] == pytest.approx([0.8] * 250)
    assert rates[300:600] == pytest.approx([0.08] * 300)
    assert rates[600:800] == pytest.approx([0.008] * 200)
    assert rates[800:] == pytest.approx([0.0008] * 100)


def test_drops_come_at_the_given_epochs():
    rates = schedule(epochs=4, schedule="step", rate_drops=(1, 3))
    assert [rates.rate(s) for s in (9, 10, 29, 30)] == pytest.approx([0.1, 0.01, 0.01, 0.001])


def test_a_warm_up_without_scaling_rises_from_zero():
    assert schedule(warmup_epochs=1).rate(0) == pytest.approx(0.01)
    assert schedule(warmup_epochs=1).rate(9) == pytest.approx(0.1)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 40), st.integers(1, 30), st.floats(0, 0.9))
def test_a_cosine_falls_from_the_full_rate_towards_zero(epochs, each, share):
    cosine = schedule(each=each, epochs=epochs, schedule="cosine", warmup_epochs=share * epochs)
    warmup, total = cosine.warmup_steps, epochs * each
    rates = [cosine.rate(step) for step in range(total)]
    falling = rates[warmup:]
    assert falling == sorted(falling, reverse=True)
    assert not falling or falling[0] == pytest.approx(0.1)
    if falling:
        assert cosine.rate(total) == pytest.approx(0, abs=1e-12)
        middle = falling[len(falling) // 2]
        way = (len(falling) // 2) / len(falling)
        assert middle == pytest.approx(0.05 * (1 + math.cos(math.pi * way)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate_drops": (1,)}, "rate_drops=1 .*schedule=step"),
        ({"rate_drops": (3, 2), "schedule": "step"}, "rate_drops=3,2"),
        ({"rate_drops": (90,), "schedule": "step"}, "1 to 89"),
        ({"target_accuracy": 95.0}, "target_accuracy=95"),
        ({"warmup_epochs": -1.0}, "warmup_epochs=-1"),
    ],
)
def test_invalid_schedules_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        schedule(**fields)
