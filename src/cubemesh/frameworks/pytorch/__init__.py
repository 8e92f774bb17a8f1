"""PyTorch framework, eager: programs built from the graph."""

from __future__ import annotations

from cubemesh.frameworks.contract.gradient_sync import (
    ModelParallelSync,
    PipelineSync,
    WeightServerSync,
)
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch.ceiling import build_ceiling
from cubemesh.frameworks.pytorch.distributed.collectives import build_collective
from cubemesh.frameworks.pytorch.distributed.group import join
from cubemesh.frameworks.pytorch.distributed.launch import launch
from cubemesh.frameworks.pytorch.distributed.model_parallel import ModelParallelProgram
from cubemesh.frameworks.pytorch.distributed.pipeline import PipelineProgram
from cubemesh.frameworks.pytorch.factory import divided_program
from cubemesh.frameworks.pytorch.links import measure_links
from cubemesh.frameworks.pytorch.own_step import build_own_step
from cubemesh.frameworks.pytorch.program import PyTorchProgram
from cubemesh.frameworks.pytorch.runtime import (
    capabilities,
    is_out_of_memory,
    other_precision,
    preload,
    setup_process,
)
from cubemesh.kernels.cpu.allocator import release_freed_memory
from cubemesh.networks.opaque import Opaque

__all__ = [
    "build",
    "build_ceiling",
    "build_collective",
    "build_own_step",
    "capabilities",
    "is_out_of_memory",
    "join",
    "launch",
    "measure_links",
    "other_precision",
    "preload",
    "release_freed_memory",
    "setup_process",
]


def build(request: BuildRequest) -> PyTorchProgram:
    """The program for `request`. Unsupported for a synchronized batch normalization where ranks do
    not step together, and in a module that runs as it is."""
    sync = request.sync
    unsynchronized = (
        isinstance(sync, (WeightServerSync, ModelParallelSync))
        and not isinstance(sync, PipelineSync)
        and request.group.size > 1
    )
    if unsynchronized and request.program.batch_norm == "global":
        raise Unsupported(
            f"batch_norm=global: with sync={sync.name} the ranks do not compute the same layers at "
            "the same time. Leave batch_norm out, or set sync=all-reduce."
        )
    as_it_is = any(isinstance(node.layer, Opaque) for node in request.network.nodes)
    if as_it_is and request.group.size > 1 and request.program.batch_norm == "global":
        raise Unsupported(
            f"batch_norm=global: {request.network.name} runs as it is, with its own batch "
            "normalization. Leave batch_norm out."
        )
    if isinstance(sync, ModelParallelSync) and sync.group.size > 1:
        pipelined = isinstance(sync, PipelineSync)
        return (PipelineProgram if pipelined else ModelParallelProgram)(request, sync)
    return divided_program(request) or PyTorchProgram(request)
