"""Training step in PyTorch: forward, loss, backward, update, as a `Program`.

    place ──▶ forward under autocast ──▶ mean loss ──▶ backward ──▶ update ──▶ (queued)
    zero_grad comes first and frees the arrays, so no gradient is alive in a forward pass

On one device it does what handwritten PyTorch does: no hooks, no copies but the batch's, no
synchronization. On several, gradients are gathered into buckets and synchronized (`buckets.py`).
With `nhwc`, weights are converted when loaded and batches when placed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from cubemesh.batches import PADDING, Array, Batch, EncodedBatch
from cubemesh.detection.labels import BOX_WEIGHT, UNITS
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.gradient_sync import (
    Bucket,
    CpuServerSync,
    StatefulSync,
    WeightServerSync,
    synchronize_weights,
)
from cubemesh.frameworks.contract.group import RANK_SEEDS, Group
from cubemesh.frameworks.contract.program import BuildRequest, Snapshot, Unsupported, monotonic_s
from cubemesh.frameworks.contract.translation import BeamSearch
from cubemesh.frameworks.pytorch.distributed.buckets import GradientBuckets, buckets_for
from cubemesh.frameworks.pytorch.distributed.cpu_server import TorchCpuServer
from cubemesh.frameworks.pytorch.distributed.sync_batch_norm import synchronized
from cubemesh.frameworks.pytorch.distributed.weight_server import TorchReplica
from cubemesh.frameworks.pytorch.input.host_to_device import HostToDevice, Placed, array_type
from cubemesh.frameworks.pytorch.module import BuiltNetwork, build_modules
from cubemesh.frameworks.pytorch.optimizers import make_optimizer
from cubemesh.frameworks.pytorch.precision import state_dict
from cubemesh.frameworks.pytorch.precision.layer_passes import PassTypes
from cubemesh.frameworks.pytorch.precision.loss_scaling import make_scaling, update_weights
from cubemesh.frameworks.pytorch.profiling import profiler as profiling
from cubemesh.frameworks.pytorch.profiling.activation_hooks import (
    InspectCallback,
    inspected_layers,
    to_host_array,
)
from cubemesh.frameworks.pytorch.recomputation import recomputing_forward
from cubemesh.frameworks.pytorch.runtime import (
    AUTOCAST_TYPES,
    MEMORY_FORMATS,
    prepare,
    synchronize,
)
from cubemesh.frameworks.pytorch.translation import TokenDecoder, search_translations
from cubemesh.networks.graph import Head
from cubemesh.networks.precision import layer_precisions
from cubemesh.schema.profile import Profile
from cubemesh.schema.spec import ProductPrecision
from cubemesh.schema.work import AccumulatedWork, Infer, InferLoad, Training


class PyTorchProgram:
    """A network and its optimizer on one device, run eagerly; see `Program`."""

    overwrites = True
    """Whether a layer may write over an input that nothing reads afterwards."""
    profiles_layers = True
    """Whether the profiler can attribute time to layers."""

    def __init__(self, request: BuildRequest) -> None:
        settings, work, self.device = request.program, request.work, request.device
        self._kind = torch.device(self.device).type
        self._settings, self._threads = settings, request.threads
        self.apply_process_settings()
        own_seed = 0 if settings.deterministic else RANK_SEEDS * request.group.rank
        self._seed = work.seed + own_seed
        torch.manual_seed(self._seed)
        if self._kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._work = work
        self._dtype = array_type(request)
        self._memory_format = MEMORY_FORMATS[settings.layout]
        self._to_device = HostToDevice(request)
        self._built = self._build(request)
        self.module = self._built.training
        """The network as a module: `print` shows its layers, `module.code` is its forward pass."""
        self._run: Callable[..., tuple[Tensor, ...]] = self.module
        if request.recomputed:
            self._run = recomputing_forward(self._built, request.recomputed)
        self._heads = request.network.heads
        self._weights_on_device = [p.data for p in self._built.parameters.values()]
        # Inference has 16-bit weights, so that no pass casts them.
        infers = isinstance(work, Infer | InferLoad)
        autocast_dtype = None if infers else AUTOCAST_TYPES.get(settings.precision)
        self._autocast = (
            torch.autocast(self._kind, autocast_dtype) if autocast_dtype else nullcontext()
        )
        self._sync = request.sync
        served = isinstance(self._sync, (WeightServerSync, CpuServerSync))
        if served and settings.precision == "fp16":
            raise Unsupported(
                f"sync={self._sync.name} applies gradients on another rank than scaled the loss. "
                "Set precision=bf16 or fp32, or another sync."
            )
        self._inspect: InspectCallback | None = None
        self._micro_batches = work.accumulation_steps if isinstance(work, AccumulatedWork) else 1
        trains = isinstance(self._work, Training)
        self._gradients = self._make_buckets() if trains else None
        if self._gradients is not None:
            self._gradients.before_gather = self._inspect_own_gradients
        self._loss = torch.full((), float("nan"))
        self._start_optimizer()

    def _build(self, request: BuildRequest) -> BuiltNetwork:
        """The network's modules, with arrays on the device."""
        return self._build_modules(request, self.device, self._memory_format)

    def _build_modules(
        self,
        request: BuildRequest,
        device: str,
        memory_format: torch.memory_format,
        not_overwriting: Collection[str] = (),
    ) -> BuiltNetwork:
        settings = request.program
        return build_modules(
            request.network,
            device=device,
            dtype=self._dtype,
            memory_format=memory_format,
            overwrite=self.overwrites and not request.recomputed,
            not_overwriting=not_overwriting,
            layer_types=_layer_types(request),
            float8=_float8_layers(request),
            layer_passes=layer_passes(request),
            replace=partial(
                synchronized,
                group=request.group,
                norm=settings.batch_norm == "global",
                dropout=settings.deterministic,
            ),
        )

    def _make_buckets(self) -> GradientBuckets | None:
        return buckets_for(self._sync, self._built.parameters)

    @property
    def buckets(self) -> Sequence[Bucket]:
        """In the order in which their gradients become ready; empty without synchronization."""
        return self._gradients.buckets if self._gradients else ()

    def place(self, batch: Batch) -> Placed:
        """See `Program`."""
        return self._to_device.place(batch)

    def decode(self, batch: EncodedBatch) -> Batch:
        """See `SupportsDecoding`."""
        return self._to_device.decode(batch)

    def train_step(self, placed: Placed) -> None:
        """Queue forward, backward and update."""
        self._backward(placed)
        update_weights(self._sync, self._apply, self._weights_on_device, self._scaling)

    def inspected_step(self, placed: Placed, inspect: InspectCallback) -> None:
        """See `SupportsStepInspection`."""
        parameters = self._built.parameters
        with inspected_layers(self._built.layers, inspect):
            self._inspect = inspect
            self._backward(placed)
            self._inspect = None
        for name, parameter in parameters.items():
            if self._gradients is None:
                inspect("own gradient", name, to_host_array(parameter.grad))
            if self._sync.updates:
                inspect("gradient", name, to_host_array(parameter.grad))
        update_weights(self._sync, self._apply, self._weights_on_device, self._scaling)

    def parameters(self) -> dict[str, Array]:
        """See `SupportsStepInspection`."""
        return {name: to_host_array(p) for name, p in self._built.parameters.items()}

    def _inspect_own_gradients(self, bucket: Bucket) -> None:
        """Pass a bucket's gradients before synchronization to the callback of an inspected step."""
        if self._inspect is not None:
            for name in bucket.parameters:
                self._inspect(
                    "own gradient", name, to_host_array(self._built.parameters[name].grad)
                )

    def _backward(self, placed: Placed) -> None:
        """Queue forward pass, backward pass and gradient synchronization; of several micro-batches
        the gradients are synchronized in the last backward pass."""
        optimizer = self._optimizer
        if optimizer is None:
            raise UsageError("a program for forward passes has no optimizer and cannot train.")
        optimizer.zero_grad(set_to_none=True)
        if self._gradients is not None:
            self._gradients.start()
        if self._micro_batches == 1:
            self._forward_and_backward(placed)
        else:
            self._accumulate(placed)
        if self._gradients is not None:
            self._gradients.check_complete()
            self._finish_sync(self._gradients)

    def _accumulate(self, placed: Placed) -> None:
        """Queue both passes of each micro-batch. Their losses are weighted, so that they and the
        accumulated gradients add up to those of the whole batch."""
        parts = self._split(placed)
        weights = micro_batch_weights([labels for *_, labels in parts])
        total: Tensor | float = 0.0
        for number, (part, weight) in enumerate(zip(parts, weights, strict=True), start=1):
            if self._gradients is not None:
                self._gradients.paused = number < len(parts)
            self._forward_and_backward(part, weight)
            total = total + self._loss
        assert isinstance(total, Tensor)
        self._loss = total

    def _split(self, placed: Placed) -> list[Placed]:
        """The micro-batches of a placed batch, views of it."""
        count = self._micro_batches
        return list(zip(*(array.chunk(count) for array in placed), strict=True))

    def _forward_and_backward(self, placed: Placed, weight: Tensor | float = 1.0) -> None:
        """Queue both passes, of the loss times `weight`."""
        loss = self._forward(placed)
        if self._micro_batches > 1:
            loss = loss * (weight if isinstance(weight, float) else weight.to(loss.dtype))
        if self._scaling is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._scaling.backward(loss)
        self._loss = loss.detach()  # its autograd graph would live until the next step

    def forward_backward(self, placed: Placed) -> None:
        """Queue forward and backward pass; the gradients of the last pass are freed before."""
        for parameter in self._built.parameters.values():
            parameter.grad = None
        self._forward_and_backward(placed)

    def _finish_sync(self, gradients: GradientBuckets) -> None:
        """Finish the synchronization before any work queued from now on."""
        self._sync.finish()
        gradients.restore_precision(gradients.buckets)

    def _apply(self) -> None:
        """Queue the update of the weights."""
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
            return total_loss(self._heads, self._run(*inputs), labels)

    def evaluate(self, placed: Placed) -> Array:
        """Scores (batch, …, classes) in float32, or float64 with precision fp64."""
        self.module.eval()
        with torch.no_grad(), self._autocast:
            (scores,) = self._built.evaluation(*placed[:-1])
        self.module.train()
        scores = scores.to("cpu", dtype=self._dtype)
        array: Array = scores.numpy()
        return array

    def translate(self, sources: Array, search: BeamSearch) -> list[list[int]]:
        """See `SupportsTranslation`."""
        decoder, trains = TokenDecoder(self._built), self.module.training
        self.module.eval()
        try:
            with torch.no_grad(), self._autocast:
                given = torch.from_numpy(sources).to(self.device)
                return search_translations(decoder, given, search)
        finally:
            self.module.train(trains)

    def infer(self, placed: Placed) -> Tensor:
        """See `SupportsInference`."""
        with torch.inference_mode():
            scores: Tensor = self._built.evaluation(*placed[:-1])[0]
        return scores

    def fetch(self, scores: Tensor) -> Array:
        """See `SupportsInference`."""
        at_least = torch.promote_types(scores.dtype, torch.float32)
        array: Array = scores.to("cpu", dtype=at_least).numpy()
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
        """Copy `weights` to the device, in the program's layout, and reset the optimizer."""
        self._built.load(weights)
        if isinstance(self._work, Infer | InferLoad):
            self.module.eval()
        self._start_optimizer()
        if isinstance(self._sync, WeightServerSync) and self._optimizer is not None:
            make = partial(make_optimizer, self._work)
            self._sync.attach(
                TorchReplica(self._built.parameters, self.buckets, self._optimizer, make)
            )
        if isinstance(self._sync, CpuServerSync) and self._optimizer is not None:
            make = partial(make_optimizer, self._work)
            self._sync.serve(partial(TorchCpuServer, self._built.parameters, self._optimizer, make))

    def synchronize_replicas(self) -> None:
        """See `SupportsReplicaSync`."""
        synchronize_weights(self._sync, self._weights_on_device)

    def share_statistics(self, group: Group) -> None:
        """See `SupportsSharedEvaluation`."""
        statistics = list(self._built.state.values())
        if statistics:
            group.broadcast(statistics, 0).wait()

    def _start_optimizer(self) -> None:
        parameters = self._built.parameters
        sparse = [parameters[name] for name in self._built.network.sparse_gradients]
        self._optimizer = make_optimizer(self._work, list(parameters.values()), sparse)
        self._scaling = make_scaling(self._settings, self._kind)

    def state(self) -> dict[str, Array]:
        """A copy of every array on the host, in float32, or float64 with precision fp64."""
        return self._built.arrays()

    def snapshot(self) -> Snapshot:
        """See `SupportsSnapshots`."""
        assert self._optimizer is not None, "a training program"
        plain: dict[str, Any] = {}
        if self._scaling is not None:
            plain["scaling"] = self._scaling.state()
        if isinstance(self._sync, StatefulSync):
            plain["sync"] = self._sync.state()
        return Snapshot(weights=self.state(), arrays=self._optimizer_arrays(), plain=plain)

    def _optimizer_arrays(self) -> dict[str, Array]:
        """The optimizer's arrays and the states of the generators, on the host."""
        assert self._optimizer is not None, "a training program"
        return state_dict.snapshot_arrays(self._optimizer, self._built.parameters, self.device)

    def _restore_optimizer(self, arrays: Mapping[str, Array]) -> None:
        """Continue from what `_optimizer_arrays` returned."""
        assert self._optimizer is not None, "a training program"
        state_dict.restore_arrays(arrays, self._optimizer, self._built.parameters, self.device)

    def restore(self, snapshot: Snapshot) -> None:
        """See `SupportsSnapshots`."""
        self.load(snapshot.weights)
        self._restore_optimizer(snapshot.arrays)
        if self._scaling is not None:
            self._scaling.restore(snapshot.plain["scaling"])
        if isinstance(self._sync, StatefulSync):
            self._sync.restore(snapshot.plain["sync"])

    def set_learning_rate(self, rate: float) -> None:
        """See `SupportsLearningRate`."""
        assert self._optimizer is not None, "a training program"
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def fingerprint(self) -> int:
        """See `SupportsWeightInspection`."""
        return state_dict.fingerprint(self._built.parameters)

    def first_nonfinite(self, placed: Placed) -> str:
        """See `SupportsWeightInspection`."""
        with self._autocast:
            run = partial(self.module, *placed[:-1])
            return state_dict.first_nonfinite(self._built.layers, run)

    def profile(
        self, run: Callable[[], None], *, layers: bool = False, trace: str | None = None
    ) -> Callable[[], Profile]:
        """See `SupportsProfiling`."""
        return profiling.profile(
            run,
            kind=self._kind,
            layers=self._built.layers if layers and self.profiles_layers else {},
            trace=trace,
        )

    def peak_memory_bytes(self) -> int | None:
        """Peak of PyTorch's allocated GPU memory, without its cache; None on a CPU."""
        if self._kind != "cuda":
            return None
        external = self._gradients.external_bytes if self._gradients is not None else 0
        return torch.cuda.max_memory_allocated(self.device) + external

    def memory_by_kind(self) -> dict[str, int]:
        """See `ReportsMemoryByKind`."""
        parameters = self._built.parameters.values()
        weights = sum(p.nbytes for p in parameters)
        state = self._optimizer.state if self._optimizer is not None else {}
        arrays = [value for own in state.values() for value in own.values()]
        return {
            "weights": weights + sum(array.nbytes for array in self._built.state.values()),
            "gradients": sum(_gradient_bytes(p) for p in parameters),
            "optimizer": sum(a.nbytes for a in arrays if isinstance(a, Tensor)),
        }

    def fragmentation_bytes(self) -> int | None:
        """See `ReportsMemoryByKind`."""
        if self._kind != "cuda":
            return None
        reserved = torch.cuda.max_memory_reserved(self.device)
        return max(0, reserved - torch.cuda.max_memory_allocated(self.device))

    clock = staticmethod(monotonic_s)

    def apply_process_settings(self) -> None:
        """See `SupportsProcessSettings`."""
        settings = self._settings
        prepare(self.device, settings.precision, self._threads, settings.deterministic)

    def close(self) -> None:
        """Drop every array; on a GPU, the allocator's cache as well."""
        if isinstance(self._sync, WeightServerSync):
            self._sync.close()
        if self._gradients is not None:
            self._gradients.close()
        del self._sync
        del self.module, self._run, self._built, self._optimizer, self._scaling, self._loss
        del self._gradients, self._weights_on_device, self._to_device
        if self._kind == "cuda":
            torch.cuda.empty_cache()


def _gradient_bytes(parameter: Tensor) -> int:
    """Of its last gradient, or of a dense one where it has none yet."""
    found = parameter.grad
    if found is None or not found.is_sparse:
        return parameter.nbytes
    return found._values().nbytes + found._indices().nbytes


def total_loss(
    heads: Sequence[Head],
    scores: Sequence[Tensor],
    labels: Tensor,
    plain: Callable[[Tensor], Tensor] = lambda loss: loss,
) -> Tensor:
    """The sum over the heads of weight times mean loss of the batch, without padded positions; a
    scalar. `plain` converts a loss of divided scores."""
    if heads[0].loss == "detection":
        return detection_loss(scores[0], labels)
    labels = labels.flatten()
    losses = [
        plain(F.cross_entropy(values.flatten(0, -2), labels, ignore_index=PADDING))
        if head.loss == "cross_entropy"
        else values.mean()
        for head, values in zip(heads, scores, strict=True)
    ]
    if len(heads) == 1 and heads[0].weight == 1:
        return losses[0]
    return torch.stack([h.weight * x for h, x in zip(heads, losses, strict=True)]).sum()


def detection_loss(values: Tensor, labels: Tensor) -> Tensor:
    """The mean over the batch of the loss of coverage and boxes, of `values` (batch, cells, classes
    + 4) and labels as in `detection/labels.py`; in fp32 at least."""
    batch, cells, columns = values.shape
    classes = columns - 4
    values, own = values.to(torch.promote_types(values.dtype, torch.float32)), labels[:, :cells]
    kinds, offsets = own[..., 0], own[..., 2:].to(values.dtype) / UNITS
    target = kinds[..., None] == torch.arange(classes, device=values.device)
    coverage = (values[..., :classes] - target.to(values.dtype)).square().sum() / 2
    sides = (offsets[..., 2:] - offsets[..., :2]).clamp(min=1 / UNITS)
    distances = (values[..., classes:] - offsets).abs() / torch.cat([sides, sides], dim=-1)
    weights = (kinds >= 0) / own[..., 1].clamp(min=1).to(values.dtype)
    boxes = (distances.sum(dim=-1) * weights).sum()
    return (coverage + BOX_WEIGHT * boxes) / batch


def micro_batch_weights(labels: Sequence[Tensor]) -> list[Tensor | float]:
    """The weight of each micro-batch's mean loss in that of the whole batch: its part of the
    positions that are not padding; alike where each sample has one label, or those of a grid."""
    if labels[0].dim() != 2:
        return [1 / len(labels)] * len(labels)
    counted = torch.stack([(part != PADDING).sum() for part in labels]).double()
    return list(counted / counted.sum())


def _layer_types(request: BuildRequest) -> dict[str, torch.dtype]:
    """Node → compute dtype of its product, where the spec sets one of at most 32 bits by layer."""
    named = layer_precisions(request.network, request.program.precision_of)
    by_pass = layer_passes(request)
    return {
        node: _compute_type(p.forward)
        for node, p in named.items()
        if node not in by_pass and p.forward != "fp8"
    }


def _float8_layers(request: BuildRequest) -> frozenset[str]:
    """Nodes whose products are computed in FP8."""
    named = layer_precisions(request.network, request.program.precision_of)
    return frozenset(node for node, precision in named.items() if precision.forward == "fp8")


def layer_passes(request: BuildRequest) -> dict[str, PassTypes]:
    """Node → compute dtypes of its product by pass, where the spec sets two, or fp64."""
    named = layer_precisions(request.network, request.program.precision_of)
    return {
        node: PassTypes(_compute_type(p.forward), _compute_type(p.backward))
        for node, p in named.items()
        if not p.is_one or p.forward == "fp64"
    }


def _compute_type(precision: ProductPrecision) -> torch.dtype:
    if precision == "fp64":
        return torch.float64
    return AUTOCAST_TYPES.get(precision, torch.float32)
