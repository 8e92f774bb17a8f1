"""Training step of a hybrid by layer: convolutions data parallel, fully connected layers divided.

    forward     convolutions of the rank's own samples; their results and labels are gathered; some
                features of each fully connected layer, for the samples of all
    loss        of the rank's own scores (loss_parallel), the mean over all samples
    backward    gradients of the rank's features; of its own samples' results, added up over all
                features; of the convolutions, averaged as they become complete
    update      of the convolutions and of the rank's features

Layers are divided and values moved as tensor parallelism does (tensor_modules.py).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch.distributed.buckets import GradientBuckets, buckets_for
from cubemesh.frameworks.pytorch.distributed.sync_batch_norm import synchronized
from cubemesh.frameworks.pytorch.distributed.tensor_parallel import TensorParallelProgram
from cubemesh.frameworks.pytorch.optimizers import check_divided_arrays


class HybridByLayerProgram(TensorParallelProgram):
    """The part of this rank; see `Program`. Every rank makes the same calls, each with its own
    samples, as many as the others."""

    def _check(self, request: BuildRequest) -> None:
        """Decoding and batch normalization are of the rank's own samples, as without divided
        layers."""
        check_divided_arrays(request)

    def _of_samples(self, layer: nn.Module) -> nn.Module:
        return synchronized(
            layer,
            group=self._group,
            norm=self._settings.batch_norm == "global",
            dropout=self._settings.deterministic,
        )

    def _make_buckets(self) -> GradientBuckets | None:
        names = self._divided.data_parallel
        return buckets_for(self._sync, {name: self._built.parameters[name] for name in names})

    def _labels(self, labels: Tensor) -> Tensor:
        own = DTensor.from_local(labels, self._moves.mesh, [Shard(0)], run_check=False)
        return self._moves.move(own, Replicate()).to_local()

    def _scores(self, scores: Tensor) -> Tensor:
        return scores.chunk(self._group.size)[self._group.rank]
