"""Registry of experiments and suites.

To add an experiment: write a file with a `plan`, an `answer` and an `EXPERIMENT`, and add one line
to `EXPERIMENT_MODULES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from cubemesh.errors import unknown_name
from cubemesh.experiments.core.experiment import Context, Experiment, Scale
from cubemesh.experiments.suites import SUITES, Suite

__all__ = [
    "EXPERIMENTS",
    "SUITES",
    "Context",
    "Experiment",
    "Scale",
    "Suite",
    "entry",
]


EXPERIMENT_MODULES: dict[str, str] = {
    "performance-check": "experiments.performance_check.experiment",
    "acceptance": "experiments.acceptance.experiment",
    "minibatch": "experiments.minibatch.experiment",
    "tune": "experiments.tune.experiment",
    "batch-accuracy": "experiments.batch_accuracy.experiment",
    "frameworks": "experiments.frameworks",
    "best-batch": "experiments.best_batch",
    "image-size": "experiments.image_size",
    "input-pipeline": "experiments.input_pipeline.experiment",
    "model-size": "experiments.model_size",
    "precision": "experiments.precision",
    "inference": "experiments.inference",
    "inference-load": "experiments.inference_load",
    "inference-precision": "experiments.inference_precision",
    "seq2seq": "experiments.seq2seq.experiment",
    "power": "experiments.power.experiment",
    "devices": "experiments.devices",
    "cluster": "experiments.cluster.experiment",
    "validation": "papers.validation.experiment",
    "ceilings": "experiments.ceilings.experiment",
    "collectives": "experiments.collectives.experiment",
    "cpu-modes": "experiments.cpu_modes.experiment",
    "time-breakdown": "experiments.time_breakdown.experiment",
    "own-step": "experiments.own_step",
    "train": "experiments.train.experiment",
    "weak-scaling": "experiments.scaling.weak",
    "strong-scaling": "experiments.scaling.strong",
    "strategies": "experiments.strategies",
    "layouts": "experiments.layouts.experiment",
    "interconnect": "experiments.interconnect.experiment",
    "sequential-equivalence": "experiments.sequential_equivalence.experiment",
    "lr-scaling": "experiments.lr_scaling.experiment",
    "time-to-accuracy": "experiments.time_to_accuracy",
}
"""Name → the module of its `EXPERIMENT`, below `cubemesh`."""


class Registry(Mapping[str, Experiment]):
    """Name → experiment. Its module is imported when it is first looked up, as a process seldom
    runs more than one."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> Experiment:
        module = import_module(f"cubemesh.{self._modules[name]}")
        experiment: Experiment = module.EXPERIMENT
        return experiment

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


EXPERIMENTS: Mapping[str, Experiment] = Registry(EXPERIMENT_MODULES)


def entry(name: str) -> Experiment:
    """The experiment called `name`; UsageError naming the nearest when there is none."""
    if name not in EXPERIMENTS:
        hint = "`cubemesh experiments` lists them."
        raise unknown_name(
            "experiment or suite", name, [*EXPERIMENTS, *SUITES], hint, "experiments"
        )
    return EXPERIMENTS[name]
