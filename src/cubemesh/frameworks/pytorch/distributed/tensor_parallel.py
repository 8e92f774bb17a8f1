"""Tensor-parallel training step: the devices of a replica divide each layer. A hybrid by layer:
the devices divide the fully connected layers alone.

    mesh          data (replicas of the network) × tensor (devices that divide a layer)
    forward       as on one device, with a redistribution wherever a layout changes
    loss          of the device's own scores (loss_parallel): no device has all of them
    backward      gradients of the device's parts, averaged over replicas as they become complete;
                  then those of whole parameters that saw a part of the positions, added up at once
    update        of the device's parts

Weights and optimizer state are stored as one device has them, so that a checkpoint resumes on any
number of devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel

from cubemesh.batches import Array
from cubemesh.frameworks.contract.divided_network import DividedNetwork, ValueLayout
from cubemesh.frameworks.contract.gradient_sync import Bucket, TensorParallelSync
from cubemesh.frameworks.contract.group import (
    RANK_SEEDS,
    Group,
    TransferHandle,
    observed,
    tracked,
)
from cubemesh.frameworks.contract.program import BuildRequest, Snapshot, Unsupported
from cubemesh.frameworks.contract.translation import BeamSearch
from cubemesh.frameworks.contract.validation import check_weights
from cubemesh.frameworks.pytorch.distributed.buckets import (
    GradientBuckets,
    buckets_for,
    gradient_copies,
)
from cubemesh.frameworks.pytorch.distributed.sync_batch_norm import synchronized
from cubemesh.frameworks.pytorch.distributed.tensor_modules import (
    DividedDropout,
    DividedModules,
    Moves,
    divide_modules,
)
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.module import BuiltNetwork, build_modules
from cubemesh.frameworks.pytorch.optimizers import check_divided_arrays
from cubemesh.frameworks.pytorch.precision import state_dict
from cubemesh.frameworks.pytorch.profiling.activation_hooks import InspectCallback
from cubemesh.frameworks.pytorch.program import PyTorchProgram, total_loss
from cubemesh.networks.layers import Attention, BatchNorm, Dropout

_SHARED = "shared_generator"
"""Of a snapshot: the state of the generator of what all devices of a replica draw alike."""


class TensorParallelProgram(PyTorchProgram):
    """The part of this rank; see `Program`. Every rank makes the same calls, those of a replica
    with the same batches."""

    def __init__(self, request: BuildRequest, sync: TensorParallelSync) -> None:
        self._check(request)
        self._whole = request.network
        self._divided = sync.divide(request.network)
        self._replica = sync.group.rank // sync.size
        self._replicas = sync.group.size // sync.size
        kind = torch.device(request.device).type
        if kind == "cuda":  # before the mesh would choose one
            torch.cuda.set_device(request.device)
        mesh = _mesh(kind, self._replicas, sync.size)
        self._mesh = mesh["tensor"]
        self._own_tensor = mesh.get_group("tensor")
        self._group = sync.group
        self._moves = Moves(self._mesh, sync.group)
        sync.use_replicas(_Replicas(mesh.get_group("data"), sync.group))  # type: ignore[arg-type]
        self._own: dict[str, Tensor] | None = None
        """Of an inspected step: the gradients before they are averaged."""
        self._shared = torch.Generator(request.device)
        seed = request.work.seed + RANK_SEEDS * (sync.group.size + self._replica)
        self._shared.manual_seed(seed)
        check_attention(request, self._divided)
        check_recomputed(request, self._divided)
        self._draws_alike = drawn_alike(request, self._divided) != ""
        super().__init__(replace(request, network=self._divided.network))

    def _check(self, request: BuildRequest) -> None:
        """Unsupported for settings that tensor parallelism has not."""
        check_divided_arrays(request)
        settings = request.program
        if settings.decode_location == "device":
            raise Unsupported(
                f"sync={request.sync.name} does not support decoding on the device. Set "
                "decode_location=host."
            )
        normalizes = any(isinstance(node.layer, BatchNorm) for node in request.network.nodes)
        if settings.batch_norm == "global" and normalizes:
            raise Unsupported(
                f"batch_norm=global: with sync={request.sync.name} {request.network.name} "
                "normalizes over the samples of one replica. Leave batch_norm out, or set "
                "sync=all-reduce."
            )

    def _build(self, request: BuildRequest) -> BuiltNetwork:
        own_samples = {
            name for name, layout in self._divided.layouts.items() if layout == "samples"
        }
        whole = build_modules(
            self._whole,
            device="meta",
            dtype=self._dtype,
            memory_format=self._memory_format,
            overwrite=bool(own_samples) and not request.recomputed,
            not_overwriting=[n.name for n in self._whole.nodes if n.name not in own_samples],
        )
        drawn_for_all = (self._replica, self._replicas) if self._settings.deterministic else None

        def dropout(layer: Dropout, layout: ValueLayout) -> nn.Module:
            return DividedDropout(layer, layout, self._mesh, self._shared, drawn_for_all)

        self._modules: DividedModules = divide_modules(
            whole, self._divided, self._moves, self.device, dropout, self._of_samples
        )
        return self._modules.built

    def _of_samples(self, layer: nn.Module) -> nn.Module:
        """The module of a layer that computes the rank's own samples."""
        return layer

    def _make_buckets(self) -> GradientBuckets | None:
        return buckets_for(self._sync, self._built.parameters, self._modules.leaves)

    def _backward(self, placed: Placed) -> None:
        with loss_parallel():
            super()._backward(placed)
        self._add_partial({n: p.grad for n, p in self._built.parameters.items()})

    def _add_partial(self, gradients: Mapping[str, Tensor | None]) -> None:
        """Add up the gradients of parameters whose layers saw a part of the positions."""
        names = [name for name in self._built.parameters if name in self._modules.partial]
        parts = [part for name in names if (part := gradients[name]) is not None]
        if not parts:
            return
        together = torch.cat([part.flatten() for part in parts])
        observed(
            self._group,
            lambda: dist.all_reduce(together, group=self._own_tensor),
            together.nbytes,
        )
        rows = torch.split(together, [part.numel() for part in parts])
        torch._foreach_copy_(
            parts, [row.view(part.shape) for row, part in zip(rows, parts, strict=True)]
        )

    def forward(self, placed: Placed) -> None:
        """Queue the forward pass and the loss."""
        with loss_parallel():
            super().forward(placed)

    def _forward(self, placed: Placed) -> Tensor:
        *inputs, labels = placed
        with self._autocast:
            values = self._run(*inputs)
            return plain(total_loss(self._heads, values, self._labels(labels), plain))

    def _labels(self, labels: Tensor) -> Tensor:
        """Those of the samples that the scores are of."""
        return labels

    def evaluate(self, placed: Placed) -> Array:
        """Scores, on every rank; all ranks of a replica must call it."""
        self.module.eval()
        with torch.no_grad(), self._autocast:
            (scores,) = self._built.evaluation(*placed[:-1])
        self.module.train()
        array: Array = self._scores(plain(scores)).to("cpu", dtype=self._dtype).numpy()
        return array

    def _scores(self, scores: Tensor) -> Tensor:
        """Those of the rank's own samples."""
        return scores

    def translate(self, sources: Array, search: BeamSearch) -> list[list[int]]:
        """Unsupported: its layers are called token by token, on one device."""
        raise Unsupported(
            "a network whose layers are divided over devices does not translate. Leave beam_width "
            "out, or set another sync."
        )

    def inspected_step(self, placed: Placed, inspect: InspectCallback) -> None:
        """See `SupportsStepInspection`. Gradients are those of the whole network, of this replica's
        samples and of all; outputs of layers are not inspected."""
        self._own = {}
        self._backward(placed)
        gradients = {name: p.grad for name, p in self._built.parameters.items()}
        if self._own:
            self._add_partial(self._own)
        own = gradients | self._own
        self._own = None
        for kind, found in (("own gradient", own), ("gradient", gradients)):
            for name in self._whole.parameters:
                gradient = found[name]
                assert gradient is not None
                inspect(kind, name, self._whole_array(name, gradient))
        self._sync.update(self._apply, self._weights_on_device)

    def _inspect_own_gradients(self, bucket: Bucket) -> None:
        if self._own is not None:
            self._own |= gradient_copies(self._built.parameters, bucket)

    def parameters(self) -> dict[str, Array]:
        """Of the whole network, on every rank; all ranks of a replica must call it."""
        return {n: self._whole_array(n, p.detach()) for n, p in self._built.parameters.items()}

    def state(self) -> dict[str, Array]:
        """Every array of the whole network, on every rank; all ranks of a replica must call it."""
        state = {name: state_dict.to_host(array) for name, array in self._built.state.items()}
        return self.parameters() | state

    def load(self, weights: Mapping[str, Array]) -> None:
        """Load the rank's parts from the weights of the whole network."""
        check_weights(weights, self._whole)
        with torch.no_grad():
            for name, parameter in self._built.parameters.items():
                whole = torch.from_numpy(weights[name])
                parameter.copy_(self._modules.divisions[name].part(whole))
            for name, array in self._built.state.items():
                array.copy_(torch.from_numpy(weights[name]))
        self._start_optimizer()

    def snapshot(self) -> Snapshot:
        """See `SupportsSnapshots`: as of one device. All ranks of a replica must call it."""
        own = super().snapshot()
        if not self._draws_alike:
            return own
        return replace(own, plain={**own.plain, _SHARED: self._shared.get_state().tolist()})

    def restore(self, snapshot: Snapshot) -> None:
        """See `SupportsSnapshots`."""
        if _SHARED in snapshot.plain:
            self._shared.set_state(torch.tensor(snapshot.plain[_SHARED], dtype=torch.uint8))
        super().restore(snapshot)

    def _optimizer_arrays(self) -> dict[str, Array]:
        assert self._optimizer is not None, "a training program"
        return state_dict.snapshot_arrays(
            self._optimizer, self._built.parameters, self.device, whole=self._whole_of
        )

    def _restore_optimizer(self, arrays: Mapping[str, Array]) -> None:
        assert self._optimizer is not None, "a training program"

        def part(name: str, value: Tensor) -> Tensor:
            whole = value.shape == self._whole.parameters[name].shape
            return self._modules.divisions[name].part(value) if whole else value

        state_dict.restore_arrays(
            arrays, self._optimizer, self._built.parameters, self.device, part=part
        )

    def _whole_of(self, name: str, part: Tensor) -> Tensor:
        return self._modules.divisions[name].whole(part)

    def _whole_array(self, name: str, part: Tensor) -> Array:
        return state_dict.to_host(self._whole_of(name, part))

    def fingerprint(self) -> int:
        """See `SupportsWeightInspection`: the sum over the ranks of a replica, the same on all."""
        own = torch.tensor(state_dict.fingerprint(self._built.parameters), device=self.device)
        dist.all_reduce(own, group=self._own_tensor)
        return int(own)

    def first_nonfinite(self, placed: Placed) -> str:
        """Of this rank's weights only: a forward pass needs the other ranks."""
        for node in self._whole.nodes:
            for role, name in node.parameters.items():
                if not bool(torch.isfinite(self._built.parameters[name]).all()):
                    return f"the {role} of {node.name}"
        return ""

    def close(self) -> None:
        """Drop every array."""
        del self._modules
        super().close()


class HybridByLayerProgram(TensorParallelProgram):
    """A hybrid by layer: convolutions data parallel, fully connected layers divided. Every rank
    makes the same calls, each with its own samples, as many as the others.

    forward     convolutions of the rank's own samples; their results and labels are gathered; some
                features of each fully connected layer, for the samples of all
    loss        of the rank's own scores (loss_parallel), the mean over all samples
    backward    gradients of the rank's features; of its own samples' results, added up over all
                features; of the convolutions, averaged as they become complete
    update      of the convolutions and of the rank's features
    """

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

    def fingerprint(self) -> int:
        """See `SupportsWeightInspection`: of the sum over the ranks and this rank's convolutions,
        which are the same on all."""
        own = {name: self._built.parameters[name] for name in self._divided.data_parallel}
        return super().fingerprint() ^ state_dict.fingerprint(own)


_MESHES: dict[tuple[str, int, int], tuple[object, DeviceMesh]] = {}
"""By kind of device and sizes, with the group of all ranks that it is of. DTensor remembers a mesh
by its ranks, so that one of the same ranks must have the same groups."""


def _mesh(kind: str, replicas: int, size: int) -> DeviceMesh:
    """The mesh of data × tensor; its groups end with that of all ranks."""
    world, key = dist.group.WORLD, (kind, replicas, size)
    if key not in _MESHES or _MESHES[key][0] is not world:
        mesh = init_device_mesh(kind, (replicas, size), mesh_dim_names=("data", "tensor"))
        _MESHES[key] = world, mesh
    return _MESHES[key][1]


class _Replicas:
    """The ranks with the same part of the network; of `Group` what averages gradients."""

    def __init__(self, ranks: dist.ProcessGroup, group: Group) -> None:
        self._ranks, self._group = ranks, group
        self.rank, self.size = ranks.rank(), ranks.size()

    def all_reduce_mean(self, array: Tensor, low_precision: bool = False) -> TransferHandle:
        """See `Group`."""
        return tracked(self._group, _Mean(array, self._ranks), array.nbytes)


class _Mean:
    """The mean of an array over the ranks of a group, in place."""

    def __init__(self, array: Tensor, group: dist.ProcessGroup) -> None:
        self._array, self._size = array, group.size()
        self._work = dist.all_reduce(array, group=group, async_op=True)

    def wait(self) -> None:
        """See `TransferHandle`."""
        assert self._work is not None
        self._work.wait()
        self._array.div_(self._size)


def drawn_alike(request: BuildRequest, divided: DividedNetwork) -> str:
    """The first dropout whose numbers all devices of a replica draw alike, from their shared
    generator; empty without one."""
    if request.program.deterministic:
        return ""
    for node in divided.network.nodes:
        layer, layout = node.layer, divided.layouts[node.name]
        if not isinstance(layer, Dropout) or not layer.rate or layout == "samples":
            continue
        if layout == "whole" or layer.per_sample:
            return node.name
    return ""


def check_attention(request: BuildRequest, divided: DividedNetwork) -> None:
    """Unsupported where all devices of a replica compute an attention with dropout: each would draw
    other numbers, and whole weights would differ between devices."""
    for node in divided.network.nodes:
        layer, whole = node.layer, divided.layouts[node.name] == "whole"
        draws = isinstance(layer, Attention) and layer.dropout > 0 and whole
        if draws and not request.program.deterministic:
            raise Unsupported(
                f"sync={request.sync.name}: the heads of {node.name} in {request.network.name} are "
                "not divided, and each device would draw other numbers for its dropout. Set "
                "deterministic=true or sync=all-reduce."
            )


def check_recomputed(request: BuildRequest, divided: DividedNetwork) -> None:
    """Unsupported where a segment that is computed again would draw other numbers: the shared
    generator is not set back."""
    name = drawn_alike(request, divided)
    if request.recomputed and name:
        raise Unsupported(
            f"checkpoint_activations={request.program.checkpoint_activations}: with "
            f"sync={request.sync.name} all devices must draw the same numbers for {name}, and "
            "would draw others when it is computed again. Set deterministic=true, or leave "
            "checkpoint_activations out."
        )


def plain(value: Tensor) -> Tensor:
    """A DTensor's whole value; any other tensor."""
    return value.full_tensor() if isinstance(value, DTensor) else value
