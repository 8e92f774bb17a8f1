"""Runs and time that a session announces before it starts."""

import re
from dataclasses import replace

import pytest

from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.core.planned_cost import START_S, planned_cost, run_time_s
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.schema import Budget, ProgramSettings, RunSpec, Train, TrainSteps

STEPS = RunSpec(
    work=TrainSteps(network="little-cnn", batch_per_device=8),
    budget=Budget(seconds=2, warmup_seconds=18, repeats=3),
)
TRAINING = RunSpec(work=Train(network="little-cnn", batch_per_device=8))


def test_stored_runs_cost_nothing():
    cost = planned_cost([(STEPS, 1), (TRAINING, 0)], exact=False)
    assert (cost.runs, cost.stored, cost.trainings) == (4, 1, 1)
    assert (cost.low_s, cost.high_s) == (4, 2 * (20 + START_S))
    assert "4 s to 1 min" in cost.text
    assert re.match("At least 4 runs, 1 of them stored: ", cost.text)
    assert planned_cost([(STEPS, 0)], exact=True).text.startswith("3 runs: ")
    assert "time" not in planned_cost([(STEPS, 0)], exact=True).text


@pytest.mark.parametrize("specs", [[(TRAINING, 1)], [(STEPS, 3), (TRAINING, 1)]])
def test_all_stored_names_the_option_that_runs_again(specs):
    assert "--no-cache" in planned_cost(specs, exact=False).text


def test_the_time_of_a_run():
    long = replace(STEPS, budget=replace(STEPS.budget, target_ci=0.01, max_seconds=60))
    assert run_time_s(long) == (2, 60 + 18 + START_S)
    limited = replace(STEPS, budget=replace(STEPS.budget, time_limit_s=5))
    assert run_time_s(limited) == (2, 5)
    assert run_time_s(replace(STEPS, program=ProgramSettings(framework="null"))) == (0, 1)


@pytest.mark.parametrize("name", [name for name, e in EXPERIMENTS.items() if not e.grows])
def test_a_plan_that_does_not_grow_ends_after_its_first_runs(machine, name):
    experiment = EXPERIMENTS[name]
    given = {"step": f"{__file__}:make"} if name == "own-step" else {}  # which it needs
    plan = experiment.plan(experiment.settings(**given), Context(machine=machine))
    if next(plan, None) is not None:
        with pytest.raises(StopIteration):
            plan.send([])
