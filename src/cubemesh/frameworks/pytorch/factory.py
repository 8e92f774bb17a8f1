"""Programs of ranks that divide a network's layers, its sequences or the state of its training.

Their modules are imported where they are used: PyTorch's sharding takes as long to import as
PyTorch itself, and DTensor half a second."""

from __future__ import annotations

from importlib import import_module

from cubemesh.frameworks.contract.gradient_sync import (
    ContextParallelSync,
    ShardedSync,
    TensorParallelSync,
)
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch.program import PyTorchProgram
from cubemesh.networks.opaque import Opaque

_FOLDER = "cubemesh.frameworks.pytorch.distributed"
_FIRST_VERSIONS = {
    "fully_sharded": "2.6",
    "tensor_parallel": "2.7",
    "compiled": "2.7",
}
"""Module → the first PyTorch with what it imports."""


def divided_program(request: BuildRequest, *, compiled: bool = False) -> PyTorchProgram | None:
    """The program of one of several ranks that divide something, its forward and backward pass
    `compiled`; None where each has all. Unsupported where it cannot be divided."""
    sync = request.sync
    if request.group.size == 1:
        return None
    if isinstance(sync, TensorParallelSync):
        module = "tensor_parallel"
        name = "HybridByLayerProgram" if sync.own_samples else "TensorParallelProgram"
    elif isinstance(sync, ContextParallelSync):
        module, name = "context_parallel", "ContextParallelProgram"
    elif isinstance(sync, ShardedSync):
        _check_sharded(request, sync)
        module = "fully_sharded"
        name = "FullyShardedProgram" if sync.zero_stage > 1 else "ShardedOptimizerProgram"
    else:
        return None
    if compiled:
        module, name = "compiled", f"Compiled{name}"
    try:
        make = getattr(import_module(f"{_FOLDER}.{module}"), name)
    except ImportError as error:
        raise Unsupported(
            f"sync={request.sync.name} needs PyTorch {_FIRST_VERSIONS.get(module, '2.0')} or later "
            f"({error}). Upgrade it, or set sync=all-reduce."
        ) from error
    program: PyTorchProgram = make(request, sync)
    return program


def _check_sharded(request: BuildRequest, sync: ShardedSync) -> None:
    """Unsupported where weights cannot be gathered part by part."""
    as_it_is = any(isinstance(node.layer, Opaque) for node in request.network.nodes)
    if as_it_is and sync.zero_stage > 1:
        raise Unsupported(
            f"sync={request.sync.name}: {request.network.name} runs as it is, as one layer whose "
            "weights cannot be gathered part by part. Set sync=all-reduce or sharded-optimizer."
        )
