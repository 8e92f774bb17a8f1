"""Which program does a request mean? The whole network on one device, or a part of it."""

from __future__ import annotations

from cubemesh.frameworks.api.gradient_sync import ModelParallelSync, WeightServerSync
from cubemesh.frameworks.api.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch.distributed.model_parallel import SplitProgram
from cubemesh.frameworks.pytorch.program import PyTorchProgram


def build(request: BuildRequest) -> PyTorchProgram:
    """The program for `request`. Unsupported for a normalisation over all ranks where they do not
    make the same steps together."""
    sync = request.sync
    apart = isinstance(sync, (WeightServerSync, ModelParallelSync)) and request.group.size > 1
    if apart and request.program.batch_norm == "global":
        raise Unsupported(
            f"batch_norm=global: with sync={sync.name} the ranks do not pass through the "
            "same layers at the same time. Leave batch_norm out, or set sync=all-reduce."
        )
    if isinstance(sync, ModelParallelSync) and sync.group.size > 1:
        return SplitProgram(request, sync)
    return PyTorchProgram(request)
