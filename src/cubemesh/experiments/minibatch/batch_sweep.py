"""How far up should the minibatch be doubled here?

A list of minibatches ends before the one whose run would take longer than the scale allows, taking
a doubled minibatch to take twice the time, or at the one that did not run.
"""

from __future__ import annotations

from cubemesh.experiments.core.experiment import Scale
from cubemesh.schema import Budget, RunRecord

RUN_BUDGET_S = {Scale.QUICK: 8.0, Scale.DEFAULT: 40.0, Scale.FULL: float("inf")}


def may_double(record: RunRecord, scale: Scale) -> bool:
    """Whether a run at twice the minibatch of `record` fits the time of one run."""
    step_s = record.figure("step_s")
    return (
        step_s is not None
        and estimated_run_s(2 * step_s, record.spec.budget) <= RUN_BUDGET_S[scale]
    )


def estimated_run_s(step_s: float, budget: Budget) -> float:
    """What a run at this step time takes, roughly: its steps, and half as many to warm up."""
    return max(budget.seconds, step_s * max(budget.steps, budget.windows)) * 1.5
