"""The time limit of a tuning."""

from cubemesh.experiments.tune.experiment import TrialBudget


def test_a_trial_is_expected_to_take_as_long_as_earlier_ones():
    now = [0.0]
    time_left = TrialBudget(60.0, lambda: now[0])
    assert time_left.affords("pytorch")
    assert time_left.limit_s(whole=True) == 60.0
    assert time_left.limit_s(whole=False) == 20.0
    time_left.add("pytorch", 5.0)
    time_left.add("pytorch-compiled", 30.0)
    now[0] = 50.2
    assert time_left.affords("pytorch")
    assert not time_left.affords("pytorch-compiled")
    assert time_left.affords("jax"), "unknown: as long as the shortest"
    assert not time_left.affords("pytorch", "pytorch"), "an interleaved pair is built several times"
    assert time_left.limit_s(whole=False) == 9.5
    now[0] = 70.0
    assert not time_left.affords("jax")
