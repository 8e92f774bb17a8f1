"""Modules of a network whose layers several devices divide, by torch.distributed.tensor.

`parallelize_module` divides each linear layer and embedding (ColwiseParallel, RowwiseParallel) and
runs norms on the device's own positions (SequenceParallel); parallel/tensor_layouts.py has chosen
which. The layers read DTensors; each is a view of a plain tensor, the device's own part, to which
its gradient is passed on as soon as it is there. So optimizer, gradient buckets and checkpoints
have plain tensors, and know nothing of DTensor.

A layer with whole parameters that computes a part of the positions has a gradient that is a part of
a sum. `DividedModules.partial` collects their names, and all are added up at once after the
backward pass, where DTensor would send each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from cubemesh.frameworks.contract.divided_network import (
    DividedNetwork,
    Redistribution,
    ValueLayout,
)
from cubemesh.frameworks.contract.group import Group, observed
from cubemesh.frameworks.pytorch.lowerings import ATTRIBUTES, Rotation, SelfAttention
from cubemesh.frameworks.pytorch.module import BuiltNetwork, NetworkModule
from cubemesh.networks.graph import Node
from cubemesh.networks.layers import Dropout

PLACEMENTS: Mapping[ValueLayout, Placement] = {
    "whole": Replicate(),
    "samples": Shard(0),
    "positions": Shard(1),
    "features": Shard(-1),
    "sum": Partial(),
}


@dataclass(frozen=True, kw_only=True)
class Division:
    """A parameter on the devices of a mesh."""

    mesh: DeviceMesh
    shape: torch.Size
    """Of the whole parameter."""
    axis: int | None
    """That is divided; None: every device has the whole."""
    order: Tensor | None = None
    """Rows of the whole in the order in which they are divided; None: as they are."""

    @property
    def placement(self) -> Placement:
        """DTensor's."""
        return Replicate() if self.axis is None else Shard(self.axis)

    def part(self, whole: Tensor) -> Tensor:
        """This device's part."""
        if self.axis is None:
            return whole
        if self.order is not None:
            whole = whole[self.order.to(whole.device)]
        size, rank = self.mesh.size(), self.mesh.get_local_rank()
        each = -(-self.shape[self.axis] // size)  # as torch.chunk and DTensor
        first = min(rank * each, self.shape[self.axis])
        last = min(first + each, self.shape[self.axis])
        return whole.narrow(self.axis, first, last - first)

    def tensor(self, part: Tensor) -> DTensor:
        """The DTensor of the devices' parts."""
        return DTensor.from_local(
            part,
            self.mesh,
            [self.placement],
            run_check=False,
            shape=self.shape,
            stride=_contiguous_stride(self.shape),
        )

    def whole(self, part: Tensor) -> Tensor:
        """The whole, from each device's part; all devices of the mesh must call it."""
        if self.axis is None:
            return part
        gathered: Tensor = self.tensor(part.contiguous()).full_tensor()
        if self.order is not None:
            gathered = gathered[torch.argsort(self.order).to(gathered.device)]
        return gathered


class Moves:
    """Changes the layout of values, and measures how long it waits for other devices."""

    def __init__(self, mesh: DeviceMesh, group: Group) -> None:
        self.mesh = mesh
        self._group = group
        self._waits_here = mesh.device_type == "cpu"

    def move(self, value: DTensor, target: Placement) -> DTensor:
        """`value` in another layout, by a collective where one is needed."""
        if value.placements == (target,):
            return value
        size_bytes = value.to_local().nbytes
        if self._waits_here:
            return observed(
                self._group, lambda: value.redistribute(placements=[target]), size_bytes
            )
        moved = value.redistribute(placements=[target])
        # The device waits, from what is queued next.
        observed(self._group, lambda: None, size_bytes)
        return moved


class _Moved(torch.autograd.Function):
    """A value in another layout, and its gradient in the value's own."""

    @staticmethod
    def forward(
        ctx: Any, value: DTensor, target: Placement, back: Placement, times: int, moves: Moves
    ) -> DTensor:
        ctx.back, ctx.times, ctx.moves = back, times, moves
        moved = moves.move(value, target)
        return moved.view_as(moved) if moved is value else moved  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, *gradients: DTensor) -> tuple[DTensor | None, ...]:
        moved = ctx.moves.move(gradients[0], ctx.back)
        return moved * ctx.times if ctx.times > 1 else moved, None, None, None, None


class Redistributed(nn.Module):
    """A value in another layout."""

    def __init__(self, layer: Redistribution, moves: Moves) -> None:
        super().__init__()
        self.layer, self._moves = layer, moves
        self._source, self._target = PLACEMENTS[layer.source], PLACEMENTS[layer.target]
        back = "whole" if layer.source == "sum" else layer.source
        self._back = PLACEMENTS[back]
        # The loss is the mean over all samples, and gradients of own samples are averaged.
        self._times = moves.mesh.size() if layer.source == "samples" else 1

    def forward(self, x: Tensor) -> Tensor:
        """The device's part of a value → its part in the other layout; a DTensor where divided
        layers read it, whose gradients are added up before they are sent."""
        if self.layer.multiplied and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # as its readers would
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self._moves.mesh, [self._source], run_check=False)
        moved: DTensor = _Moved.apply(  # type: ignore[no-untyped-call]
            x, self._target, self._back, self._times, self._moves
        )
        return moved if self.layer.multiplied else moved.to_local()

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"{self.layer.source} → {self.layer.target}"


class _VocabularyParallel(RowwiseParallel):
    """An embedding divided by its vocabulary, whose result remains the sum over the devices."""

    def __init__(self) -> None:
        super().__init__(input_layouts=Replicate(), use_local_output=False)

    @staticmethod
    def _prepare_output_fn(layouts: Any, local: Any, module: Any, output: Any, mesh: Any) -> Any:
        return output


class DividedDropout(nn.Module):
    """Dropout of a device's part of a value.

    Numbers for a part are drawn by its device, and those for what every device has from a
    generator that all share. With `replicas` all numbers of the global batch are drawn, from one
    seed, and each device uses its own."""

    def __init__(
        self,
        layer: Dropout,
        layout: ValueLayout,
        mesh: DeviceMesh,
        shared: torch.Generator,
        replicas: tuple[int, int] | None,
    ) -> None:
        super().__init__()
        self.rate, self._per_sample = layer.rate, layer.per_sample
        self._axis = {"positions": 1, "features": -1}.get(layout)
        self._part, self._parts = mesh.get_local_rank(), mesh.size()
        self._shared, self._replicas = shared, replicas

    def forward(self, x: Tensor) -> Tensor:
        """(batch, …), unchanged in shape."""
        if not self.training or self.rate == 0.0:
            return x
        if self._replicas is None and self._axis is not None and not self._per_sample:
            return F.dropout(x, self.rate)
        keep = self._drawn(x) >= self.rate
        return x * keep.to(x.dtype).div_(1.0 - self.rate)

    def _drawn(self, x: Tensor) -> Tensor:
        """Numbers from 0 to 1, fp32: the same mask in every precision."""
        of = [1] * (x.dim() - 1) if self._per_sample else list(x.shape[1:])
        if self._replicas is None:
            return torch.rand((len(x), *of), device=x.device, generator=self._shared)
        replica, count = self._replicas
        axis = None if self._per_sample else self._axis
        if axis is not None:
            of[axis if axis < 0 else axis - 1] *= self._parts
        drawn = torch.rand((len(x) * count, *of), device=x.device)
        drawn = drawn[replica * len(x) : (replica + 1) * len(x)]
        return drawn if axis is None else drawn.chunk(self._parts, axis)[self._part]

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"p={self.rate}"


@dataclass(frozen=True, kw_only=True)
class DividedModules:
    """The modules of this device."""

    built: BuiltNetwork
    """Its parameters are the device's parts."""
    divisions: Mapping[str, Division]
    """By parameter."""
    leaves: Mapping[str, nn.Parameter]
    """What the layers read of each parameter, and autograd computes the gradient of."""
    partial: set[str]
    """Parameters whose gradient is a part of a sum over the devices."""


def divide_modules(
    whole: BuiltNetwork,
    divided: DividedNetwork,
    moves: Moves,
    device: str,
    dropout: Callable[[Dropout, ValueLayout], nn.Module],
    of_samples: Callable[[nn.Module], nn.Module] = lambda module: module,
) -> DividedModules:
    """The modules of the divided network on `device`, from those of the whole network without
    memory (on the `meta` device); `dropout` makes the module of a dropout layer, `of_samples` that
    of a layer that computes the device's own samples."""
    network, mesh = divided.network, moves.mesh
    partial: set[str] = set()
    axes = divided.axes
    divisions = {
        name: Division(
            mesh=mesh,
            shape=torch.Size(spec.shape),
            axis=axes[name],
            order=_order(spec.shape[0], divided.packed[name], divided.devices)
            if name in divided.packed
            else None,
        )
        for name, spec in network.parameters.items()
    }
    parameters = {
        name: nn.Parameter(torch.empty_like(divisions[name].part(p.detach()), device=device))
        for name, p in whole.parameters.items()
    }
    state = {name: torch.empty_like(array, device=device) for name, array in whole.state.items()}
    leaves = dict(parameters)
    layers: dict[str, nn.Module] = {}
    for node in network.nodes:
        if isinstance(node.layer, Redistribution):
            layers[node.name] = Redistributed(node.layer, moves)
            continue
        layout = divided.layouts[node.name]
        if isinstance(node.layer, Dropout) and layout != "samples":
            layers[node.name] = dropout(node.layer, layout)
            continue
        module = whole.layers[node.name]
        layers[node.name] = module = of_samples(module) if layout == "samples" else module
        viewed = _divide(node, module, divided, mesh, partial)
        for role, name in node.state.items():
            setattr(module, ATTRIBUTES.get(role, role), state[name])
        for role, name in node.parameters.items():
            if viewed and leaves[name] is parameters[name]:
                leaves[name] = _leaf(name, parameters[name], divisions[name], partial)
            setattr(module, role, leaves[name] if viewed else parameters[name])
    evaluated = tuple(h for h in network.heads if not h.train_only)[-1:]
    built = BuiltNetwork(
        network=network,
        layers=layers,
        layer_types={},
        training=NetworkModule(network, network.heads, layers),
        evaluation=NetworkModule(network, evaluated, layers),
        parameters=parameters,
        state=state,
    )
    return DividedModules(built=built, divisions=divisions, leaves=leaves, partial=partial)


def _leaf(name: str, part: nn.Parameter, division: Division, partial: set[str]) -> nn.Parameter:
    """A DTensor that is a view of the device's part of a parameter, and passes its gradient on."""
    leaf = nn.Parameter(division.tensor(part.detach()))

    def accumulated(leaf: Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        assert isinstance(gradient, DTensor)
        found = gradient.placements[0]
        if found.is_partial() and division.axis is None:
            partial.add(name)
        elif found != division.placement:
            gradient = gradient.redistribute(placements=[division.placement])
        own = gradient.to_local()
        if part.grad is None:
            part.grad = own
        else:
            part.grad.add_(own)

    leaf.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
    return leaf


def _divide(
    node: Node,
    module: nn.Module,
    divided: DividedNetwork,
    mesh: DeviceMesh,
    partial: set[str],
) -> bool:
    """Let a layer's module compute the device's part; whether it needs its parameters as
    DTensors."""
    style = divided.styles.get(node.name)
    if divided.layouts[node.name] == "features" and style is None:
        if isinstance(module, SelfAttention):
            module.heads //= divided.devices
            module.key_value_heads //= divided.devices
        elif isinstance(module, Rotation):
            module.heads //= divided.devices
    if style is None:
        return False
    if style == "positions" and isinstance(module, nn.Linear):
        partial.update(node.parameters.values())
        return False
    judged = any(head.value == node.name for head in divided.network.heads)
    how: ParallelStyle
    if style == "columns":
        how = ColwiseParallel(use_local_output=not judged)
    elif style == "rows":
        how = RowwiseParallel(output_layouts=Partial(), use_local_output=False)
    elif style == "vocabulary":
        how = _VocabularyParallel()
    else:
        how = SequenceParallel(use_local_output=True)
    parallelize_module(module, mesh, how, src_data_rank=None)
    return True


def _order(rows: int, parts: int, devices: int) -> Tensor:
    """The rows of `parts` matrices below one another such that each device gets its part of
    each."""
    each = torch.arange(rows).view(parts, devices, rows // parts // devices)
    return each.transpose(0, 1).reshape(rows)


def _contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))
