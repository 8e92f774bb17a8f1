"""Registry of experiments and suites.

To add an experiment: write a file with a `plan`, an `answer` and an `EXPERIMENT`, and add one line
to `EXPERIMENTS`.
"""

from __future__ import annotations

from cubemesh.errors import unknown_name
from cubemesh.experiments import (
    ceilings,
    devices,
    frameworks,
    image_size,
    inference,
    inference_load,
    inference_precision,
    interconnect,
    model_size,
    precision,
    strategies,
    time_to_accuracy,
)
from cubemesh.experiments.batch_accuracy import experiment as batch_accuracy
from cubemesh.experiments.cluster import experiment as cluster
from cubemesh.experiments.collectives import experiment as collectives
from cubemesh.experiments.core.experiment import Context, Experiment, Scale
from cubemesh.experiments.cpu_modes import experiment as cpu_modes
from cubemesh.experiments.input_pipeline import experiment as input_pipeline
from cubemesh.experiments.lr_scaling import experiment as lr_scaling
from cubemesh.experiments.minibatch import experiment as minibatch
from cubemesh.experiments.performance_check import experiment as performance_check
from cubemesh.experiments.power import experiment as power
from cubemesh.experiments.scaling import strong as strong_scaling
from cubemesh.experiments.scaling import weak as weak_scaling
from cubemesh.experiments.seq2seq import experiment as seq2seq
from cubemesh.experiments.sequential_equivalence import experiment as sequential_equivalence
from cubemesh.experiments.suites import SUITES, Suite
from cubemesh.experiments.time_breakdown import experiment as time_breakdown
from cubemesh.experiments.train import experiment as training
from cubemesh.experiments.tune import experiment as tune
from cubemesh.papers.validation import experiment as validation

__all__ = [
    "EXPERIMENTS",
    "SUITES",
    "Context",
    "Experiment",
    "Scale",
    "Suite",
    "entry",
]

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        performance_check.EXPERIMENT,
        minibatch.EXPERIMENT,
        tune.EXPERIMENT,
        batch_accuracy.EXPERIMENT,
        frameworks.EXPERIMENT,
        image_size.EXPERIMENT,
        input_pipeline.EXPERIMENT,
        model_size.EXPERIMENT,
        precision.EXPERIMENT,
        inference.EXPERIMENT,
        inference_load.EXPERIMENT,
        inference_precision.EXPERIMENT,
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
