"""Context-parallel training step: the devices of a replica divide the positions of each sequence.

    mesh          data (replicas of the network) × context (devices that divide a sequence)
    forward       of the device's own positions; before each attention an all-gather of keys and
                  values
    loss          of the device's own positions, over the number of those of all devices
    backward      a reduce-scatter of the gradients of keys and values; gradients of the weights,
                  averaged over all ranks as they become complete

Keys and values are gathered whole, as Llama 3's training does (Grattafiori et al.,
arXiv:2407.21783, section 3.3.2). torch's ring attention (torch.distributed.tensor.experimental) has
kernels for GPUs in 16 bits only, and this computes in every precision on CPUs too. Every rank has
all weights and optimizer state, as with all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.batches import PADDING, Array
from cubemesh.frameworks.contract.divided_network import DividedSequence, GatheredKeys
from cubemesh.frameworks.contract.gradient_sync import Bucket, ContextParallelSync
from cubemesh.frameworks.contract.group import Group, observed
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch.distributed.buckets import gradient_copies
from cubemesh.frameworks.pytorch.distributed.group import ALL_GATHER, REDUCE_SCATTER
from cubemesh.frameworks.pytorch.input.host_to_device import Placed
from cubemesh.frameworks.pytorch.lowerings import AddedPositions, Rotation
from cubemesh.frameworks.pytorch.module import BuiltNetwork, NetworkModule
from cubemesh.frameworks.pytorch.precision import state_dict
from cubemesh.frameworks.pytorch.precision.loss_scaling import update_weights
from cubemesh.frameworks.pytorch.profiling.activation_hooks import InspectCallback
from cubemesh.frameworks.pytorch.program import PyTorchProgram
from cubemesh.networks.graph import Head
from cubemesh.networks.layers import Attention, Dropout, PositionEmbedding

_FLASH_CAPABILITY = (8, 0)
_FLASH_TYPES = (torch.float16, torch.bfloat16)
_MOST_FLASH_FEATURES = 256
"""Of a head, in FlashAttention's kernels; their number divides by 8."""


class ContextParallelProgram(PyTorchProgram):
    """This rank's positions of the sequences; see `Program`. Every rank makes the same calls, those
    of a replica with the same batches."""

    def __init__(self, request: BuildRequest, sync: ContextParallelSync) -> None:
        self._divided = sync.divide_sequence(request.network)
        self._context = ContextGroup(sync, self._divided, request.device)
        self._replica = sync.group.rank // sync.size
        self._replicas = sync.group.size // sync.size
        self._own: dict[str, Tensor] | None = None
        """Of an inspected step: the gradients before they are averaged."""
        super().__init__(request)

    def _build(self, request: BuildRequest) -> BuiltNetwork:
        whole = super()._build(request)
        network, layers = self._divided.network, dict(whole.layers)
        flash = has_flash(self.device)
        masks = CausalMasks()
        for node in network.nodes:
            layer, module = node.layer, layers.get(node.name)
            if isinstance(layer, GatheredKeys):
                layers[node.name] = KeyGather(layer, self._context)
            elif isinstance(layer, Attention):
                layers[node.name] = PartAttention(
                    layer, self._divided, self._context.part, masks, flash
                )
            elif isinstance(layer, Dropout) and request.program.deterministic:
                layers[node.name] = _PartDropout(
                    layer.rate, self._context, (self._replica, self._replicas)
                )
            elif isinstance(module, Rotation):
                module.__class__ = _PartRotation
                module.own = self._context.positions
            elif isinstance(module, AddedPositions):
                assert isinstance(layer, PositionEmbedding)
                if not layer.shared:
                    module.__class__ = _PartPositions
                    module.own = self._context.positions
        evaluated = tuple(h for h in network.heads if not h.train_only)[-1:]
        return replace(
            whole,
            network=network,
            layers=layers,
            training=NetworkModule(network, network.heads, layers, whole.layer_types),
            evaluation=NetworkModule(network, evaluated, layers, whole.layer_types),
        )

    def _backward(self, placed: Placed) -> None:
        super()._backward(placed)
        self._average_loss()

    def forward_backward(self, placed: Placed) -> None:
        """See `SupportsForwardBackward`."""
        super().forward_backward(placed)
        self._average_loss()

    def forward(self, placed: Placed) -> None:
        """Queue the forward pass and the loss."""
        super().forward(placed)
        self._average_loss()

    def _average_loss(self) -> None:
        """The loss of the replica's samples, from those of its devices' positions."""
        self._loss = self._context.mean(self._loss)

    def _forward(self, placed: Placed) -> Tensor:
        """The loss of this device's positions times the number of devices, over the number of
        positions of all: the mean over the devices is the loss of the samples."""
        *inputs, labels = placed
        counted = (labels != PADDING).sum()
        own = [self._context.own(value) for value in (*inputs, labels)]
        return self._summed_loss(own) * self._context.size / counted

    def _summed_loss(self, own: Sequence[Tensor]) -> Tensor:
        """The sum of the losses of this device's positions, of inputs and labels."""
        *inputs, labels = own
        with self._autocast:
            return summed_loss(self._heads, self._run(*inputs), labels)

    def evaluate(self, placed: Placed) -> Array:
        """Scores of all positions, on every rank; all ranks of a replica must call it."""
        self.module.eval()
        with torch.no_grad(), self._autocast:
            inputs = [self._context.own(value) for value in placed[:-1]]
            (scores,) = self._built.evaluation(*inputs)
            scores = self._context.gather(scores)
        self.module.train()
        array: Array = scores.to("cpu", dtype=self._dtype).numpy()
        return array

    def inspected_step(self, placed: Placed, inspect: InspectCallback) -> None:
        """See `SupportsStepInspection`. A rank's own gradients are those of its replica's samples;
        outputs of layers are not inspected."""
        self._own = {}
        self._backward(placed)
        own, self._own = self._own, None
        for name, parameter in self._built.parameters.items():
            gradient = parameter.grad
            assert gradient is not None, "every parameter has a gradient"
            mean = self._context.mean(own.pop(name, gradient))
            inspect("own gradient", name, state_dict.to_host(mean))
            inspect("gradient", name, state_dict.to_host(gradient))
        update_weights(self._sync, self._apply, self._weights_on_device, self._scaling)

    def _inspect_own_gradients(self, bucket: Bucket) -> None:
        if self._own is not None:
            self._own |= gradient_copies(self._built.parameters, bucket)

    def first_nonfinite(self, placed: Placed) -> str:
        """Of the weights only: a forward pass needs the other ranks."""
        return state_dict.first_nonfinite(self._built.layers)

    def close(self) -> None:
        """Drop every array."""
        del self._context
        super().close()


class ContextGroup:
    """The ranks that divide a sequence, and which positions of it are this rank's."""

    def __init__(self, sync: ContextParallelSync, divided: DividedSequence, device: str) -> None:
        self.group: Group = sync.group
        self.size, self.part = sync.size, sync.group.rank % sync.size
        self._divided = divided
        self._ranks = _ranks_of(sync.group.rank, sync.group.size, sync.size)
        self._waits_here = torch.device(device).type == "cpu"
        each = divided.part_length
        firsts = divided.parts(self.part)
        self.positions = torch.cat([torch.arange(f, f + each) for f in firsts]).to(device)
        """Of this rank, in order."""
        self.bounds = tuple(slice(first, first + each) for first in firsts)

    def own(self, value: Tensor) -> Tensor:
        """This rank's positions of a value (batch, length, …)."""
        return torch.cat([value[:, bound] for bound in self.bounds], 1)

    def gather(self, own: Tensor) -> Tensor:
        """All positions (batch, length, …), of those of each rank."""
        gathered = own.new_empty(self.size, *own.shape)
        sent = own.contiguous()
        self._communicate(lambda: ALL_GATHER(gathered.flatten(0, 1), sent, group=self._ranks), sent)
        parts = torch.unflatten(gathered, 2, (len(self.bounds), -1))  # ranks, batch, parts, each, …
        if self._divided.causal:
            ordered = torch.cat([parts[:, :, 0], parts[:, :, 1].flip(0)])
        else:
            ordered = parts[:, :, 0]
        return ordered.transpose(0, 1).flatten(1, 2)

    def reduce_scatter(self, whole: Tensor) -> Tensor:
        """The sum over the ranks of this rank's positions of a value (batch, length, …)."""
        each = self._divided.part_length
        parts = torch.unflatten(whole, 1, (-1, each)).transpose(0, 1)  # parts, batch, each, …
        if self._divided.causal:
            one, other = parts.chunk(2)
            sent = torch.stack([one, other.flip(0)], 2).flatten(2, 3)
        else:
            sent = parts.contiguous()
        own = torch.empty_like(sent[0])
        self._communicate(lambda: REDUCE_SCATTER(own, sent.flatten(0, 1), group=self._ranks), sent)
        return own

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the ranks of a value, as a new array."""
        total = value.detach().clone()
        self._communicate(lambda: dist.all_reduce(total, group=self._ranks), total)
        return total.div_(self.size)

    def _communicate(self, call: Any, sent: Tensor) -> None:
        """Call a collective; the run's group records it. On a GPU the device waits, from what is
        queued next."""
        if self._waits_here:
            observed(self.group, call, sent.nbytes)
        else:
            call()
            observed(self.group, lambda: None, sent.nbytes)


_GROUPS: dict[tuple[int, int], tuple[object, list[dist.ProcessGroup]]] = {}
"""By ranks and ranks of a group, with the group of all ranks that they are of."""


def _ranks_of(rank: int, ranks: int, size: int) -> dist.ProcessGroup:
    """The group of `size` ranks with this one; it ends with the group of all ranks."""
    world = dist.group.WORLD
    assert world is not None, "the rank has joined"
    if size == ranks:
        return world
    if (ranks, size) not in _GROUPS or _GROUPS[ranks, size][0] is not world:
        groups = [dist.new_group(list(range(n, n + size))) for n in range(0, ranks, size)]
        _GROUPS[ranks, size] = world, groups
    return _GROUPS[ranks, size][1][rank // size]


class _Gathered(torch.autograd.Function):
    """Keys and values of all positions, and the sum of their gradients at the own ones."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, context: ContextGroup) -> Tensor:
        ctx.context = context
        return context.gather(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.context.reduce_scatter(gradients[0]), None


class KeyGather(nn.Module):
    """Keys and values of all positions, side by side."""

    def __init__(self, layer: GatheredKeys, context: ContextGroup) -> None:
        super().__init__()
        self._packed, self._context = layer.packed, context

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Own queries, keys and values (batch, own length, 3 · features), or keys and values → all
        keys and values (batch, length, 2 · features)."""
        own = x[..., x.shape[-1] // 3 :] if self._packed else torch.cat([x, *others], -1)
        gathered: Tensor = _Gathered.apply(own, self._context)  # type: ignore[no-untyped-call]
        return gathered

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"of {self._context.size} ranks"


class CausalMasks:
    """Boolean masks of queries that end at the last of several keys, each made once."""

    def __init__(self) -> None:
        self._masks: dict[tuple[int, int, torch.device], Tensor] = {}

    def of(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """(queries, keys): the keys that each query reads."""
        key = (queries, keys, device)
        if key not in self._masks:
            ones = torch.ones(queries, keys, dtype=torch.bool, device=device)
            self._masks[key] = ones.tril(keys - queries)
        return self._masks[key]


class PartAttention(nn.Module):
    """Scaled dot-product attention of a device's own queries to all keys."""

    def __init__(
        self,
        layer: Attention,
        divided: DividedSequence,
        part: int,
        masks: CausalMasks,
        flash: bool,
    ) -> None:
        """`flash`: whether the device has FlashAttention's kernels."""
        super().__init__()
        self.heads, self.key_value_heads = layer.heads, layer.key_value_heads or layer.heads
        self.causal, self.dropout = layer.causal, layer.dropout
        self._each, self._masks, self._flash = divided.part_length, masks, flash
        self._firsts = divided.parts(part)

    def forward(self, x: Tensor, gathered: Tensor) -> Tensor:
        """Own queries (batch, own length, features), which keys and values may follow, and all keys
        and values (batch, length, 2 · features) → (batch, own length, features)."""
        batch, length, _ = x.shape
        keys = gathered.shape[-1] // 2
        size = keys // self.key_value_heads
        q = x[..., : size * self.heads].view(batch, length, self.heads, size).transpose(1, 2)
        k, v = (
            part.view(batch, -1, self.key_value_heads, size).transpose(1, 2)
            for part in torch.split(gathered, keys, -1)
        )
        dropout = self.dropout if self.training else 0.0
        if not self.causal:
            shared = self.heads > self.key_value_heads
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, enable_gqa=shared)
        else:
            results = []
            for number, own in enumerate(torch.split(q, self._each, 2)):
                seen = self._firsts[number] + self._each
                results.append(self._causal(own, k[:, :, :seen], v[:, :, :seen], dropout))
            y = torch.cat(results, 2)
        return y.transpose(1, 2).reshape(batch, length, size * self.heads)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Of queries that are the last of the keys' positions."""
        shared = self.heads > self.key_value_heads
        if q.shape[2] == k.shape[2]:
            return F.scaled_dot_product_attention(
                q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=shared
            )
        # FlashAttention aligns the mask with the last key; SDPA with the first.
        if self._flash and _fits_flash(q, k, v):
            result: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
                q, k, v, dropout, True
            )[0]
            return result
        mask = self._masks.of(q.shape[2], k.shape[2], q.device)
        if shared:  # no fused kernel has both
            k, v = (part.repeat_interleave(self.heads // part.shape[1], 1) for part in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"heads={self.heads}, causal={self.causal}"


def has_flash(device: str) -> bool:
    """Whether a device has FlashAttention's kernels."""
    cuda = torch.device(device).type == "cuda"
    return cuda and torch.cuda.get_device_capability(device) >= _FLASH_CAPABILITY


def _fits_flash(*values: Tensor) -> bool:
    """Whether FlashAttention's kernels compute an attention of these."""
    features = values[0].shape[-1]
    low = all(value.dtype in _FLASH_TYPES for value in values)
    return low and features % 8 == 0 and features <= _MOST_FLASH_FEATURES


class _PartRotation(Rotation):
    """Rotary position embedding of a device's own positions."""

    own: Tensor

    def _cosines_and_sines(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = (x.device, x.dtype)
        if key not in self._tables:
            cosines, sines = super()._cosines_and_sines(x)
            self._tables[key] = cosines[self.own], sines[self.own]
        return self._tables[key]


class _PartPositions(AddedPositions):
    """Learned position embeddings of a device's own positions."""

    own: Tensor

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """(batch, own length, features), unchanged in shape."""
        return super().forward(x, self.own)


class _PartDropout(nn.Module):
    """Dropout of a device's positions: every rank draws the numbers of the global batch, from one
    seed, and uses its own."""

    def __init__(self, rate: float, context: ContextGroup, replicas: tuple[int, int]) -> None:
        super().__init__()
        self.rate, self._context, self._replicas = rate, context, replicas

    def forward(self, x: Tensor) -> Tensor:
        """(batch, own length, features), unchanged in shape."""
        if not self.training or self.rate == 0.0:
            return x
        replica, count = self._replicas
        batch, length, features = x.shape
        shape = (batch * count, length * self._context.size, features)
        drawn = torch.rand(shape, device=x.device)  # fp32: the same mask in every precision
        drawn = self._context.own(drawn[replica * batch : (replica + 1) * batch])
        return x * (drawn >= self.rate).to(x.dtype).div_(1.0 - self.rate)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"p={self.rate}"


def summed_loss(heads: Sequence[Head], scores: Sequence[Tensor], labels: Tensor) -> Tensor:
    """The sum over the heads and all positions of weight times loss, without padded positions."""
    labels = labels.flatten()
    losses = [
        head.weight
        * F.cross_entropy(values.flatten(0, -2), labels, ignore_index=PADDING, reduction="sum")
        for head, values in zip(heads, scores, strict=True)
    ]
    return torch.stack(losses).sum()
