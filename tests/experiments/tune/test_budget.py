"""Whether there is time for one more trial."""

from cubemesh.experiments.tune.budget import Budget


def test_a_budget_expects_what_trials_took_and_ends_what_takes_longer():
    now = [0.0]
    budget = Budget(60.0, lambda: now[0])
    assert budget.affords("pytorch")
    assert budget.limit_s(whole=True) == 60.0
    assert budget.limit_s(whole=False) == 20.0
    budget.took("pytorch", 5.0)
    budget.took("pytorch-compiled", 30.0)
    now[0] = 50.2
    assert budget.affords("pytorch")
    assert not budget.affords("pytorch-compiled")
    assert budget.affords("jax"), "nothing is known of it: the shortest stands in"
    assert not budget.affords("pytorch", "pytorch"), "two that alternate are built several times"
    assert budget.limit_s(whole=False) == 9.5
    now[0] = 70.0
    assert not budget.affords("jax")
