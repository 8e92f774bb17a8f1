"""What is one training step in PyTorch? Batch in, loss, gradients, update: a `Program`.

    place ──▶ forward under autocast ──▶ mean loss ──▶ backward ──▶ update ──▶ (queued)
    zero_grad comes first and drops the arrays, so no gradient lives through a forward pass

On one device it does what handwritten PyTorch does and nothing more: no hooks, no copies but the
batch's, no waiting. On several, gradients are gathered into buckets and exchanged (`buckets.py`).
In `nhwc` the weights are converted when they are loaded and the batch when it is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from cubemesh.batches import PADDING, Array, Batch, EncodedBatch
from cubemesh.errors import UsageError
from cubemesh.frameworks.api.gradient_sync import (
    Bucket,
    StatefulSync,
    WeightServerSync,
    synchronize_weights,
)
from cubemesh.frameworks.api.group import RANK_SEEDS
from cubemesh.frameworks.api.program import BuildRequest, Snapshot, Unsupported, monotonic_s
from cubemesh.frameworks.pytorch.distributed.buckets import GradientBuckets, buckets_for
from cubemesh.frameworks.pytorch.distributed.sync_batch_norm import GlobalLayers
from cubemesh.frameworks.pytorch.distributed.weight_server import TorchReplica
from cubemesh.frameworks.pytorch.input.host_to_device import HostToDevice, Placed
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.optimizers import make_optimizer
from cubemesh.frameworks.pytorch.precision import state_dict as snapshots
from cubemesh.frameworks.pytorch.precision.loss_scaling import make_scaling, update_weights
from cubemesh.frameworks.pytorch.profiling import profiler as profiling
from cubemesh.frameworks.pytorch.profiling.activation_hooks import Look, looking_at, on_host
from cubemesh.frameworks.pytorch.runtime import (
    ARRAY_TYPES,
    AUTOCAST_TYPES,
    MEMORY_FORMATS,
    prepare,
    synchronize,
)
from cubemesh.networks.precision import layer_precisions
from cubemesh.schema.profile import Profile
from cubemesh.schema.work import Training


class PyTorchProgram:
    """A network and its optimizer on one device, run eagerly; see `Program` in frameworks/base."""

    overwrites = True
    """Whether a layer may write over its input where nobody needs it any more."""
    shows_layers = True
    """Whether the profiler can tell its layers apart."""

    def __init__(self, request: BuildRequest) -> None:
        settings, work, self.device = request.program, request.work, request.device
        self._kind = torch.device(self.device).type
        self._threads = request.threads
        prepare(self.device, settings.precision, self._threads, settings.deterministic)
        own_seed = 0 if settings.deterministic else RANK_SEEDS * request.group.rank
        self._seed = work.seed + own_seed
        torch.manual_seed(self._seed)
        if self._kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._work = work
        self._dtype = ARRAY_TYPES.get(settings.precision, torch.float32)
        self._memory_format = MEMORY_FORMATS[settings.layout]
        self._placer = HostToDevice(request)
        self._built = build_modules(
            request.network,
            device=self.device,
            dtype=self._dtype,
            memory_format=self._memory_format,
            overwrite=self.overwrites,
            layer_types=_layer_types(request),
            replace=GlobalLayers(
                request.group,
                norm=settings.batch_norm == "global",
                dropout=settings.deterministic,
            ),
        )
        self.module = self._built.training
        """The network as a module: `print` shows its layers, `module.code` is its forward pass."""
        self._weights = tuple(h.weight for h in request.network.heads)
        self._weights_on_device = [p.data for p in self._built.parameters.values()]
        narrow = AUTOCAST_TYPES.get(settings.precision)
        self._autocast = torch.autocast(self._kind, narrow) if narrow else nullcontext()
        self._settings = settings
        self._exchange = request.sync
        if isinstance(self._exchange, WeightServerSync) and settings.precision == "fp16":
            raise Unsupported(
                f"sync={self._exchange.name} applies gradients away from the rank that scaled "
                "their loss. Set precision=bf16 or fp32, or another exchange."
            )
        self._look: Look | None = None
        trains = isinstance(self._work, Training)
        self._gradients = buckets_for(self._exchange, self._built.parameters) if trains else None
        if self._gradients is not None:
            self._gradients.gathering = self._look_at_own
        self._loss = torch.full((), float("nan"))
        self._start_optimizer()

    @property
    def buckets(self) -> Sequence[Bucket]:
        """In the order their gradients become ready; empty where nothing is exchanged."""
        return self._gradients.buckets if self._gradients else ()

    def place(self, batch: Batch) -> Placed:
        """See `Program`."""
        return self._placer.place(batch)

    def decode(self, batch: EncodedBatch) -> Batch:
        """See `SupportsDecoding`."""
        return self._placer.decode(batch)

    def train_step(self, placed: Placed) -> None:
        """Queue forward, backward and update."""
        self._backward(placed)
        update_weights(self._exchange, self._apply, self._weights_on_device, self._scaling)

    def inspected_step(self, placed: Placed, look: Look) -> None:
        """See `SupportsStepInspection`."""
        parameters = self._built.parameters
        with looking_at(self._built.layers, look):
            self._look = look
            self._backward(placed)
            self._look = None
        for name, parameter in parameters.items():
            if self._gradients is None:
                look("own gradient", name, on_host(parameter.grad))
            if self._exchange.updates:
                look("gradient", name, on_host(parameter.grad))
        update_weights(self._exchange, self._apply, self._weights_on_device, self._scaling)

    def parameters(self) -> dict[str, Array]:
        """See `SupportsStepInspection`."""
        return {name: on_host(p) for name, p in self._built.parameters.items()}

    def _look_at_own(self, bucket: Bucket) -> None:
        """Show a bucket's gradients as they came, where somebody looks."""
        if self._look is not None:
            for name in bucket.parameters:
                self._look("own gradient", name, on_host(self._built.parameters[name].grad))

    def _backward(self, placed: Placed) -> None:
        """Queue forward, backward and exchange."""
        optimizer, scaling = self._optimizer, self._scaling
        if optimizer is None:
            raise UsageError("a program built for forward work has no optimizer to train with.")
        optimizer.zero_grad(set_to_none=True)
        if self._gradients is not None:
            self._gradients.start()
        loss = self._forward(placed)
        if scaling is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            scaling.backward(loss)
        if self._gradients is not None:
            self._gradients.check_complete()
            self._end_exchange(self._gradients)
        self._loss = loss.detach()  # or its graph lives on, and the next step's is tied to it

    def _end_exchange(self, gradients: GradientBuckets) -> None:
        """Have every gradient be the exchanged one, for what is queued from now on."""
        self._exchange.finish()
        gradients.widen(gradients.buckets)

    def _apply(self) -> None:
        """Update the weights by their gradients."""
        assert self._optimizer is not None
        if self._scaling is None:
            self._optimizer.step()
        else:
            self._scaling.update(self._optimizer)

    def forward(self, placed: Placed) -> None:
        """Queue the forward pass and the loss."""
        with torch.no_grad():
            self._loss = self._forward(placed)

    def _forward(self, placed: Placed) -> Tensor:
        """The weighted sum over the heads of the mean loss of the batch."""
        *inputs, labels = placed
        with self._autocast:
            return total_loss(self._weights, self.module(*inputs), labels)

    def evaluate(self, placed: Placed) -> Array:
        """Scores (batch, …, classes) in float32, or float64 where the program computes in it."""
        self.module.eval()
        with torch.no_grad(), self._autocast:
            (scores,) = self._built.evaluation(*placed[:-1])
        self.module.train()
        scores = scores.to("cpu", dtype=self._dtype)
        array: Array = scores.numpy()
        return array

    def loss(self) -> float:
        """The last step's loss; NaN before the first."""
        return float(self._loss.item())

    def loss_scale(self) -> tuple[float, str] | None:
        """See `SupportsLossScaling`."""
        scaling = self._scaling
        if scaling is None or self._optimizer is None:
            return None
        return scaling.scale(), scaling.method

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.device)

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy `weights` to the device, in the program's layout, and start the optimizer anew."""
        self._built.load(weights)
        self._start_optimizer()
        if isinstance(self._exchange, WeightServerSync) and self._optimizer is not None:
            self._exchange.attach(self._replica(self._optimizer))

    def _replica(self, optimizer: torch.optim.Optimizer) -> TorchReplica:
        return TorchReplica(
            self._built.parameters,
            self.buckets,
            optimizer,
            lambda parameters: make_optimizer(self._work, parameters),
        )

    def synchronize_replicas(self) -> None:
        """See `SupportsReplicaSync`."""
        synchronize_weights(self._exchange, self._weights_on_device)

    def _start_optimizer(self) -> None:
        parameters = list(self._built.parameters.values())
        self._optimizer = make_optimizer(self._work, parameters)
        self._scaling = make_scaling(self._settings, self._kind)

    def state(self) -> dict[str, Array]:
        """A copy of every array on the host, in float32, or float64 where it is computed in."""
        return self._built.arrays()

    def snapshot(self) -> Snapshot:
        """See `SupportsSnapshots`."""
        assert self._optimizer is not None, "only what trains is taken a snapshot of"
        plain: dict[str, Any] = {}
        if self._scaling is not None:
            plain["scaling"] = self._scaling.state()
        if isinstance(self._exchange, StatefulSync):
            plain["sync"] = self._exchange.state()
        arrays = snapshots.take(self._optimizer, self._built.parameters, self.device)
        return Snapshot(weights=self.state(), arrays=arrays, plain=plain)

    def restore(self, snapshot: Snapshot) -> None:
        """See `SupportsSnapshots`."""
        self.load(snapshot.weights)
        assert self._optimizer is not None, "only what trains goes on"
        snapshots.put_back(snapshot.arrays, self._optimizer, self._built.parameters, self.device)
        if self._scaling is not None:
            self._scaling.restore(snapshot.plain["scaling"])
        if isinstance(self._exchange, StatefulSync):
            self._exchange.restore(snapshot.plain["sync"])

    def set_learning_rate(self, rate: float) -> None:
        """See `SupportsLearningRate`."""
        assert self._optimizer is not None, "only what trains has a rate"
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def fingerprint(self) -> int:
        """See `SupportsWeightInspection`."""
        return snapshots.fingerprint(self._built.parameters)

    def first_nonfinite(self, placed: Placed) -> str:
        """See `SupportsWeightInspection`."""
        with self._autocast:
            run = partial(self.module, *placed[:-1])
            return snapshots.first_nonfinite(self._built.layers, run)

    def profile(
        self, run: Callable[[], None], *, layers: bool = False, trace: str | None = None
    ) -> Callable[[], Profile]:
        """See `SupportsProfiling`."""
        return profiling.profile(
            run,
            kind=self._kind,
            layers=self._built.layers if layers and self.shows_layers else {},
            trace=trace,
        )

    def peak_memory_bytes(self) -> int | None:
        """Of the arrays PyTorch held on the GPU at once, without its cache; None on a CPU."""
        if self._kind != "cuda":
            return None
        apart = self._gradients.apart_bytes if self._gradients is not None else 0
        return torch.cuda.max_memory_allocated(self.device) + apart

    def clock(self) -> float:
        """The process's monotonic clock."""
        return monotonic_s()

    def apply_process_settings(self) -> None:
        """See `SupportsProcessSettings`."""
        prepare(
            self.device,
            self._settings.precision,
            self._threads,
            self._settings.deterministic,
        )

    def close(self) -> None:
        """Drop every array; on a GPU, the allocator's cache as well."""
        if isinstance(self._exchange, WeightServerSync):
            self._exchange.close()
        if self._gradients is not None:
            self._gradients.close()
        del self._exchange
        del self.module, self._built, self._optimizer, self._scaling, self._loss
        del self._gradients, self._weights_on_device, self._placer
        if self._kind == "cuda":
            torch.cuda.empty_cache()


def total_loss(weights: Sequence[float], scores: Sequence[Tensor], labels: Tensor) -> Tensor:
    """The sum over the heads of weight times mean loss of the batch, or of all its positions but
    those of padding; a scalar."""
    labels = labels.flatten()
    losses = [
        F.cross_entropy(values.flatten(0, -2), labels, ignore_index=PADDING) for values in scores
    ]
    if tuple(weights) == (1.0,):
        return losses[0]
    return torch.stack([w * x for w, x in zip(weights, losses, strict=True)]).sum()


def _layer_types(request: BuildRequest) -> dict[str, torch.dtype]:
    """Node → type its product is computed in, where the spec says so by layer."""
    named = layer_precisions(request.network, request.program.precision_of)
    return {node: AUTOCAST_TYPES.get(p, torch.float32) for node, p in named.items()}
