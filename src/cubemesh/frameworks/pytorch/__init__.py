"""PyTorch, eager: programs made from the graph that run as handwritten code would."""

from __future__ import annotations

from cubemesh.frameworks.pytorch.ceiling import build_ceiling
from cubemesh.frameworks.pytorch.distributed.collectives import build_collective
from cubemesh.frameworks.pytorch.distributed.group import join
from cubemesh.frameworks.pytorch.distributed.launch import launch
from cubemesh.frameworks.pytorch.factory import build
from cubemesh.frameworks.pytorch.runtime import (
    capabilities,
    is_out_of_memory,
    other_precision,
    preload,
    setup_process,
)
from cubemesh.kernels.cpu.allocator import release_freed_memory

__all__ = [
    "build",
    "build_ceiling",
    "build_collective",
    "capabilities",
    "is_out_of_memory",
    "join",
    "launch",
    "other_precision",
    "preload",
    "release_freed_memory",
    "setup_process",
]
