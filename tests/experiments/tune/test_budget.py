"""Whether there is time for one more trial."""

from cubemesh.experiments.tune.budget import TrialBudget


def test_a_budget_expects_what_trials_took_and_ends_what_takes_longer():
    now = [0.0]
    time_left = TrialBudget(60.0, lambda: now[0])
    assert time_left.affords("pytorch")
    assert time_left.limit_s(whole=True) == 60.0
    assert time_left.limit_s(whole=False) == 20.0
    time_left.took("pytorch", 5.0)
    time_left.took("pytorch-compiled", 30.0)
    now[0] = 50.2
    assert time_left.affords("pytorch")
    assert not time_left.affords("pytorch-compiled")
    assert time_left.affords("jax"), "nothing is known of it: the shortest stands in"
    assert not time_left.affords("pytorch", "pytorch"), "two that alternate are built several times"
    assert time_left.limit_s(whole=False) == 9.5
    now[0] = 70.0
    assert not time_left.affords("jax")
