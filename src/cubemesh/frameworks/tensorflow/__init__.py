"""TensorFlow: each step is one traced graph, run operation by operation."""

from __future__ import annotations

from cubemesh.frameworks.tensorflow.ceiling import build_ceiling
from cubemesh.frameworks.tensorflow.program import build
from cubemesh.frameworks.tensorflow.runtime import capabilities, is_out_of_memory, preload
from cubemesh.frameworks.tensorflow.workers import join, launch

__all__ = [
    "build",
    "build_ceiling",
    "capabilities",
    "is_out_of_memory",
    "join",
    "launch",
    "preload",
]
