"""ASKED WHAT: one question a file, answered from records.

To add an experiment: write a file with a `plan`, an `answer` and an `EXPERIMENT`, and add one line
to `EXPERIMENTS`.
"""

from __future__ import annotations

from cubemesh.errors import unknown_name
from cubemesh.experiments import (
    batch_accuracy,
    ceilings,
    cluster,
    collectives,
    cpu_modes,
    devices,
    frameworks,
    image_size,
    input_pipeline,
    interconnect,
    lr_scaling,
    minibatch,
    model_size,
    power,
    precision,
    seq2seq,
    sequential_equivalence,
    strategies,
    strong_scaling,
    time_breakdown,
    time_to_accuracy,
    training,
    tune,
    validation,
    weak_scaling,
)
from cubemesh.experiments.base import Context, Experiment, Scale
from cubemesh.experiments.suites import SUITES, Ask, Suite

__all__ = [
    "EXPERIMENTS",
    "SUITES",
    "Ask",
    "Context",
    "Experiment",
    "Scale",
    "Suite",
    "entry",
]

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        minibatch.EXPERIMENT,
        tune.EXPERIMENT,
        batch_accuracy.EXPERIMENT,
        frameworks.EXPERIMENT,
        image_size.EXPERIMENT,
        input_pipeline.EXPERIMENT,
        model_size.EXPERIMENT,
        precision.EXPERIMENT,
        seq2seq.EXPERIMENT,
        power.EXPERIMENT,
        devices.EXPERIMENT,
        cluster.EXPERIMENT,
        validation.EXPERIMENT,
        ceilings.EXPERIMENT,
        collectives.EXPERIMENT,
        cpu_modes.EXPERIMENT,
        time_breakdown.EXPERIMENT,
        training.EXPERIMENT,
        weak_scaling.EXPERIMENT,
        strong_scaling.EXPERIMENT,
        strategies.EXPERIMENT,
        interconnect.EXPERIMENT,
        training.EXPERIMENT,
        sequential_equivalence.EXPERIMENT,
        lr_scaling.EXPERIMENT,
        time_to_accuracy.EXPERIMENT,
    )
}


def entry(name: str) -> Experiment:
    """The experiment called `name`; UsageError naming the nearest when there is none."""
    if name not in EXPERIMENTS:
        hint = "`cubemesh experiments` lists them."
        raise unknown_name(
            "experiment or suite", name, [*EXPERIMENTS, *SUITES], hint, "experiments"
        )
    return EXPERIMENTS[name]
