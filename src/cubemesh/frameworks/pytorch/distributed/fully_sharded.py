"""Sharded training steps in PyTorch: FSDP2 (`fully_shard`) and the sharded optimizer of ZeRO.

    root ── unit 1 ── unit 2 ── … ── head        weights: DTensors, divided along their first axis
            all-gather, forward, free            gathered in bf16 where the network computes in it
            all-gather, backward, reduce-scatter gradients averaged in fp32, each rank's rows alone

The units come from the graph (`sharded_units`); each is a module whose forward pass is generated
from its nodes, so `fully_shard` sees a tree of modules as handwritten code has it (TorchTitan: one
unit a block, the last not freed after its forward pass). What units share, such as tied embeddings,
belongs to the root, which is gathered for the whole step. Arrays are created on the `meta` device
and allocated when they are divided, so that no device ever has all.

The optimizer reads each rank's rows as plain arrays: every update but that of LARS is by element.
On a CPU gloo's collectives block, and are timed through the run's group; on a GPU the profiler
sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from cubemesh.batches import Array
from cubemesh.frameworks.contract.gradient_sync import ShardedSync
from cubemesh.frameworks.contract.group import Group, observed
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.contract.translation import BeamSearch
from cubemesh.frameworks.contract.validation import check_weights
from cubemesh.frameworks.pytorch.distributed.graph_partition import (
    stage_function,
    stages_of,
    write_calls,
)
from cubemesh.frameworks.pytorch.distributed.group import ALL_GATHER, REDUCE_SCATTER
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.lowerings import ATTRIBUTES
from cubemesh.frameworks.pytorch.module import BuiltNetwork, define, identifiers
from cubemesh.frameworks.pytorch.optimizers import (
    check_divided_arrays,
    make_optimizer,
    optimizer_class,
)
from cubemesh.frameworks.pytorch.precision import state_dict
from cubemesh.frameworks.pytorch.profiling.activation_hooks import (
    InspectCallback,
    inspected_layers,
    to_host_array,
)
from cubemesh.frameworks.pytorch.program import PyTorchProgram, total_loss
from cubemesh.frameworks.pytorch.recomputation import recomputed_stage
from cubemesh.frameworks.pytorch.runtime import AUTOCAST_TYPES
from cubemesh.networks.graph import Head, Network, ShardedUnit, follows_weights, sharded_units
from cubemesh.schema.work import Training


class FullyShardedProgram(PyTorchProgram):
    """This rank's part of weights, gradients and optimizer state; see `Program`. Every rank makes
    the same calls, each with its own batches."""

    def __init__(self, request: BuildRequest, sync: ShardedSync) -> None:
        check_divided_arrays(request)
        self._ranks = sync.group
        self._zero_stage = sync.zero_stage
        self._shards: dict[str, nn.Parameter] = {}
        """This rank's rows of each parameter, as the optimizer reads them."""
        dtype = AUTOCAST_TYPES.get(request.program.precision)
        self._low_precision = dtype if follows_weights(request.network) else None
        self._loss_of = self._compiled(
            partial(_loss_of, request.network.heads, self._low_precision is not None)
        )
        super().__init__(request)
        if self._low_precision is not None:
            self._autocast = nullcontext()
        self._run = self._root
        if self._kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _build(self, request: BuildRequest) -> BuiltNetwork:
        """The network's modules with divided arrays, and the root of the units."""
        network, unit_bytes = request.network, request.program.bucket_bytes
        units = sharded_units(network, unit_bytes, by_segment=bool(request.recomputed))
        # FSDP divides contiguous arrays only, and what enters a unit is a view of autograd's.
        built = self._build_modules(
            request, "meta", torch.contiguous_format, _entered(network, units)
        )
        places = _places(built)
        self._root = sharded_root(
            built,
            kind=self._kind,
            ranks=self._ranks,
            zero_stage=self._zero_stage,
            units=units,
            recomputed=request.recomputed,
            dtype=self._low_precision,
            compiled=self._compiled,
        )
        device = torch.device(self.device)
        self._root._apply(  # type: ignore[no-untyped-call]
            lambda t: torch.empty_like(t, device=device) if t.is_meta else t
        )
        state = {name: torch.empty_like(t, device=device) for name, t in built.state.items()}
        for node in built.network.nodes:
            for role, name in node.state.items():
                setattr(built.layers[node.name], ATTRIBUTES.get(role, role), state[name])
        parameters = {name: _parameter(owner, key) for name, (owner, key) in places.items()}
        return replace(built, parameters=parameters, state=state)

    def _compiled(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What computes a unit, or the loss, in a training step."""
        return run

    def _backward(self, placed: Placed) -> None:
        for parameter in self._built.parameters.values():
            parameter.grad = None
        super()._backward(placed)

    def _forward(self, placed: Placed) -> Tensor:
        """The loss of the scores in fp32."""
        *inputs, labels = placed
        with self._autocast:
            loss: Tensor = self._loss_of(self._run(*inputs), labels)
            return loss

    def _start_optimizer(self) -> None:
        local = {name: _local(parameter) for name, parameter in self._built.parameters.items()}
        self._shards = {name: nn.Parameter(rows) for name, rows in local.items()}
        self._optimizer = make_optimizer(self._work, list(self._shards.values()))
        self._scaling = None

    def _apply(self) -> None:
        for name, parameter in self._built.parameters.items():
            gradient = parameter.grad
            self._shards[name].grad = None if gradient is None else _local(gradient)
        super()._apply()

    def inspected_step(self, placed: Placed, inspect: InspectCallback) -> None:
        """See `SupportsStepInspection`. A rank's own gradients are read when the backward pass of
        their unit ends, before they are averaged."""
        with (
            inspected_layers(self._built.layers, inspect),
            _own_gradients(self._built.layers, self._names, inspect),
        ):
            self._backward(placed)
        for name, parameter in self._built.parameters.items():
            gradient = parameter.grad
            assert isinstance(gradient, DTensor), "every parameter has a gradient"
            inspect("gradient", name, to_host_array(gradient.full_tensor()))
        self._sync.update(self._apply, self._weights_on_device)

    @property
    def _names(self) -> dict[tuple[int, str], str]:
        """(layer, its attribute) → parameter."""
        return {(id(owner), key): name for name, (owner, key) in _places(self._built).items()}

    def evaluate(self, placed: Placed) -> Array:
        """Scores of this rank's batch; all ranks must call it equally often."""
        self._root.eval()
        with torch.no_grad(), self._autocast:
            values = self._run(*placed[:-1])
        self._root.train()
        self._reshard()
        heads = self._built.network.heads
        evaluated = [number for number, head in enumerate(heads) if not head.train_only][-1]
        array: Array = values[evaluated].to("cpu", dtype=self._dtype).numpy()
        return array

    def translate(self, sources: Array, search: BeamSearch) -> list[list[int]]:
        """See `SupportsTranslation`: weights are gathered for all of it."""
        for unit in self._units():
            unit.unshard()
        try:
            return super().translate(sources, search)
        finally:
            self._reshard()

    def _units(self) -> list[FSDPModule]:
        """The modules whose weights are gathered together, the root among them."""
        return [module for module in self._root.modules() if isinstance(module, FSDPModule)]

    def _reshard(self) -> None:
        """Free what a pass without a backward pass left gathered: it would be used again after the
        weights have changed."""
        for unit in self._units():
            unit.reshard()

    def load(self, weights: Mapping[str, Array]) -> None:
        """Load this rank's rows from the whole network's weights."""
        check_weights(weights, self._built.network)
        self._reshard()
        with torch.no_grad():
            for name, parameter in self._built.parameters.items():
                _local(parameter).copy_(self._rows(torch.from_numpy(weights[name])))
            for name, array in self._built.state.items():
                array.copy_(torch.from_numpy(weights[name]))
        self._start_optimizer()

    def state(self) -> dict[str, Array]:
        """Every array of the whole network, on every rank; all ranks must call it."""
        state = {name: state_dict.to_host(array) for name, array in self._built.state.items()}
        return {
            **{name: state_dict.to_host(self._whole(p)) for name, p in self._parameters()},
            **state,
        }

    def parameters(self) -> dict[str, Array]:
        """Of the whole network, on every rank; all ranks must call it."""
        return {name: to_host_array(self._whole(p)) for name, p in self._parameters()}

    def fingerprint(self) -> int:
        """Of the whole network; all ranks must call it."""
        return state_dict.fingerprint(
            {name: nn.Parameter(self._whole(p)) for name, p in self._parameters()}
        )

    def first_nonfinite(self, placed: Placed) -> str:
        """Of this rank's rows only: a forward pass needs the other ranks."""
        for name, parameter in self._parameters():
            if not bool(torch.isfinite(_local(parameter)).all()):
                return f"this rank's rows of {name}"
        return ""

    def memory_by_kind(self) -> dict[str, int]:
        """See `ReportsMemoryByKind`."""
        found = super().memory_by_kind()
        local = [_local(p) for p in self._built.parameters.values()]
        found["gradients"] = sum(rows.nbytes for rows in local)
        found["weights"] = found["gradients"] + sum(a.nbytes for a in self._built.state.values())
        return found

    def close(self) -> None:
        """See `Program`."""
        del self._root, self._shards, self._loss_of
        super().close()

    def _optimizer_arrays(self) -> dict[str, Array]:
        assert self._optimizer is not None, "a training program"
        return state_dict.snapshot_arrays(
            self._optimizer, self._shards, self.device, whole=self._whole_of
        )

    def _restore_optimizer(self, arrays: Mapping[str, Array]) -> None:
        assert self._optimizer is not None, "a training program"
        shapes = {name: p.shape for name, p in self._parameters()}

        def part(name: str, value: Tensor) -> Tensor:
            return self._rows(value) if value.shape == shapes[name] else value

        state_dict.restore_arrays(arrays, self._optimizer, self._shards, self.device, part=part)

    def _parameters(self) -> Sequence[tuple[str, DTensor]]:
        return [(name, p) for name, p in self._built.parameters.items() if isinstance(p, DTensor)]

    def _whole(self, parameter: DTensor) -> Tensor:
        with torch.no_grad():
            return parameter.full_tensor()

    def _whole_of(self, name: str, rows: Tensor) -> Tensor:
        """The array of which every rank has the rows that it has of the parameter."""
        like = self._built.parameters[name]
        assert isinstance(like, DTensor)
        return DTensor.from_local(
            rows,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        ).full_tensor()

    def _rows(self, whole: Tensor) -> Tensor:
        """This rank's rows of an array, as `torch.chunk` divides it."""
        each = -(-len(whole) // self._ranks.size)
        return whole[each * self._ranks.rank : each * (self._ranks.rank + 1)]


def _loss_of(
    heads: Sequence[Head], low_precision: bool, values: Sequence[Tensor], labels: Tensor
) -> Tensor:
    """The loss, in fp32 at least."""
    if low_precision:
        values = tuple(value.float() for value in values)
    return total_loss(heads, values, labels)


class ShardedOptimizerProgram(PyTorchProgram):
    """A replica whose optimizer has the state of some parameters and sends what it updates; see
    `Program`."""

    def __init__(self, request: BuildRequest, sync: ShardedSync) -> None:
        if request.program.precision == "fp16":
            raise Unsupported(
                f"sync={request.sync.name} does not support loss scaling. Set precision=bf16 or "
                "fp32, or sync=all-reduce."
            )
        self._ranks = sync.group
        super().__init__(request)

    def _start_optimizer(self) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self._optimizer = self._scaling = None
        if not isinstance(self._work, Training):
            return
        kind, settings = optimizer_class(self._work)
        flat = self._memory_format is torch.contiguous_format  # one message for each rank's arrays
        self._optimizer = ZeroRedundancyOptimizer(
            list(self._built.parameters.values()),
            optimizer_class=kind,
            parameters_as_bucket_view=flat,
            **settings,
        )

    def _apply(self) -> None:
        """Queue the update of this rank's parameters, and wait for the others'."""
        size = sum(p.nbytes for p in self._built.parameters.values())
        observed(self._ranks, super()._apply, size)

    def memory_by_kind(self) -> dict[str, int]:
        """See `ReportsMemoryByKind`."""
        own: Any = self._optimizer
        arrays = [a for state in own.optim.state.values() for a in state.values()]
        held = sum(a.nbytes for a in arrays if isinstance(a, Tensor))
        return {**super().memory_by_kind(), "optimizer": held}

    def _optimizer_arrays(self) -> dict[str, Array]:
        own: Any = self._optimizer
        return state_dict.snapshot_arrays(own.optim, self._built.parameters, self.device)

    def _restore_optimizer(self, arrays: Mapping[str, Array]) -> None:
        own: Any = self._optimizer
        state_dict.restore_arrays(arrays, own.optim, self._built.parameters, self.device)


class _Unit(nn.Module):
    """The layers of a unit, and the function of their forward pass."""

    def __init__(self, run: Callable[..., Any], layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._run = run
        for name, layer in layers.items():
            self.add_module(name.replace(".", "/"), layer)

    def forward(self, *inputs: Tensor) -> Any:
        """The values that the unit reads → those that others read."""
        return self._run(*inputs)


def sharded_root(
    built: BuiltNetwork,
    *,
    kind: str,
    ranks: Group,
    zero_stage: int,
    units: Sequence[ShardedUnit],
    recomputed: Sequence[str] = (),
    dtype: torch.dtype | None = None,
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda run: run,
) -> nn.Module:
    """A module from the inputs of `built` to the values of its heads whose parameters, those of the
    layers, are divided over `ranks`; `dtype` is that of gathered weights, None their own;
    `compiled` compiles the function of a unit."""
    network = built.network
    nodes = {node.name: node for node in network.nodes}
    *early, last = stages_of(
        network, [(unit.name, tuple(nodes[n] for n in unit.nodes)) for unit in units]
    )
    heads = tuple(head.value for head in network.heads)
    stages = [*early, replace(last, results=heads)]
    called: dict[str, Callable[..., Any]] = {}
    children: dict[str, nn.Module] = {}
    modules: list[nn.Module] = []
    for stage, unit in zip(stages, units, strict=True):
        run = compiled(stage_function(built, stage, built.layers, None))
        if not set(unit.segments).isdisjoint(recomputed):
            run = recomputed_stage(run, built, stage)
        layers = {node.name: built.layers[node.name] for node in stage.nodes}
        if unit.shares or not unit.parameters:
            children |= layers
            called[f"run_{stage.name}"] = run
        else:
            own = children[stage.name] = _Unit(run, layers)
            called[f"run_{stage.name}"] = own
            modules.append(own)
    code = write_calls(identifiers(network), stages, [i.name for i in network.inputs])
    root = _Unit(define(code, f"{network.name}, by units", called)["forward"], children)
    mesh = init_device_mesh(kind, (ranks.size,))
    reduce_dtype = None if dtype is None else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype)
    for module in modules:
        # The backward pass of the last begins at once.
        reshard = zero_stage == 3 and module is not modules[-1]
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(root, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    timed = kind == "cpu" and hasattr(FSDPModule, "set_custom_reduce_scatter")  # PyTorch 2.8
    if timed:
        for module in (*modules, root):
            assert isinstance(module, FSDPModule)
            gather, scatter = _TimedAllGather(ranks), _TimedReduceScatter(ranks)
            module.set_custom_all_gather(gather)  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
    return root


class _Timed:
    """A collective that the run's group times; gloo's block."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer for FSDP."""
        return torch.empty(*size, dtype=dtype, device=device)


class _TimedAllGather(_Timed):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        """Gather the ranks' arrays."""
        call = partial(ALL_GATHER, output_tensor, input_tensor, group=group)
        observed(self._group, call, output_tensor.nbytes)


class _TimedReduceScatter(_Timed):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Add the ranks' arrays; each gets its part."""
        call = partial(REDUCE_SCATTER, output_tensor, input_tensor, op=op, group=group)
        observed(self._group, call, input_tensor.nbytes)


@contextmanager
def _own_gradients(
    layers: Mapping[str, nn.Module], names: Mapping[tuple[int, str], str], inspect: InspectCallback
) -> Iterator[None]:
    """Call `inspect` with the gradient of each gathered parameter, when it is complete."""
    hooked: dict[str, Any] = {}

    def look(name: str, gradient: Tensor) -> None:
        inspect("own gradient", name, to_host_array(gradient))

    def enter(module: nn.Module, inputs: object) -> None:
        for part in module.modules():
            for key, parameter in part._parameters.items():
                name = names.get((id(part), key))
                if name is not None and name not in hooked and parameter is not None:
                    hook = partial(look, name)
                    hooked[name] = parameter.register_hook(hook)  # type: ignore[no-untyped-call]

    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.enter_context(layer.register_forward_pre_hook(enter))
        yield
    for hook in hooked.values():
        hook.remove()


def _entered(network: Network, units: Sequence[ShardedUnit]) -> set[str]:
    """The nodes that read a value of another unit."""
    unit_of = {node: number for number, unit in enumerate(units) for node in unit.nodes}
    return {
        node.name
        for node in network.nodes
        if any(unit_of.get(value) != unit_of.get(node.name) for value in node.inputs)
    }


def _places(built: BuiltNetwork) -> dict[str, tuple[nn.Module, str]]:
    """Parameter → the first layer that has it, or a part of one, and the attribute."""
    found: dict[str, tuple[nn.Module, str]] = {}
    names = {id(parameter): name for name, parameter in built.parameters.items()}
    for layer in built.layers.values():
        for part in layer.modules():
            for key, parameter in part._parameters.items():
                if id(parameter) in names:
                    found.setdefault(names[id(parameter)], (part, key))
    return {name: found[name] for name in built.parameters}


def _parameter(owner: nn.Module, key: str) -> nn.Parameter:
    parameter = owner._parameters[key]
    assert parameter is not None, "as before it was divided"
    return parameter


def _local(value: Tensor) -> Tensor:
    """This rank's rows of a divided array, sharing its memory."""
    with torch.no_grad():  # without autograd nothing is dispatched
        rows: Tensor = value.to_local() if isinstance(value, DTensor) else value.detach()
    return rows
