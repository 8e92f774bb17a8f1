"""Training over epochs: the experiment `train`, one run to a number of epochs or an accuracy."""

from __future__ import annotations

from typing import Any

from cubemesh.api.run import RunResult, run


def train(network: str, **arguments: Any) -> RunResult:
    """Train `network`; the result has one record. Takes the arguments of `run` and the settings of
    the experiment `train`: epochs, devices, batch_per_device, learning_rate, target_accuracy,
    checkpoints, … (`experiment_settings("train")`)."""
    return run("train", networks=[network], **arguments)
