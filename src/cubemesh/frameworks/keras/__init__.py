"""Keras 3 on TensorFlow: the network as a functional model, trained by `train_on_batch`."""

from __future__ import annotations

from cubemesh.frameworks.keras.program import build, capabilities, preload
from cubemesh.frameworks.tensorflow.ceiling import build_ceiling
from cubemesh.frameworks.tensorflow.runtime import is_out_of_memory

__all__ = ["build", "build_ceiling", "capabilities", "is_out_of_memory", "preload"]
