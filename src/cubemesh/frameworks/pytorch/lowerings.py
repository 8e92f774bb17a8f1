"""Lowerings: the PyTorch module of each layer type, one line each.

A lowering returns the module with its arrays on the `meta` device, without memory; `module.py`
replaces them by the network's own, shared ones once. `in_place`: the module may write its result
over its first input, which saves an array the size of the layer; `may_overwrite` decides it from
the graph. Sequences are (batch, length, features)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.experts import BalanceLoss, ExpertMixture
from cubemesh.frameworks.pytorch.records import LogitAndZero, PairwiseProducts, SummedEmbeddings
from cubemesh.networks import layers
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers.sequences import rotation_tables

Lowering = Callable[[Any, layers.Shape, bool], nn.Module]
"""(layer, shape of one sample of its first input, in_place) → module."""


class Sum(nn.Module):
    """The sum of two values."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """A value of the shape both have."""
        return x.add_(y) if self.in_place else x + y

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return "inplace=True" if self.in_place else ""


class Concatenation(nn.Module):
    """Concatenation along the second axis, the one after the batch."""

    def forward(self, *values: Tensor) -> Tensor:
        """Values (batch, channels, …), alike but for their channels → all channels."""
        return torch.cat(values, dim=1)


class ChannelMeans(nn.Module):
    """The mean of each channel over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, channels), or (batch, length, features) →
        (batch, features)."""
        return x.mean((2, 3) if x.dim() == 4 else 1)


class AveragePool(nn.AvgPool2d):
    """On a GPU the padding is an operation of its own: PyTorch 2.11's gradient of a padded pooling
    of channels-last arrays is wrong (github.com/pytorch/pytorch/issues/188344)."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, channels, out_height, out_width)."""
        if x.is_cuda and self.padding not in (0, (0, 0)) and not self.ceil_mode:
            return self.padded(x)
        return super().forward(x)

    def padded(self, x: Tensor) -> Tensor:
        """The same by two operations."""
        if torch.compiler.is_compiling():  # whose gradient is right
            return super().forward(x)
        both = self.padding
        rows, columns = (both, both) if isinstance(both, int) else both
        x = F.pad(x, (columns, columns, rows, rows))
        return F.avg_pool2d(x, self.kernel_size, self.stride)


class ChannelResponseNorm(nn.LocalResponseNorm):
    """Outside autocast 16-bit values are normalized in float32: PyTorch has no such kernel for a
    CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) of any type."""
        if x.itemsize > 2 or torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return super().forward(x.float()).to(x.dtype)


class PatchResponseNorm(nn.Module):
    """x / (k + alpha · mean of x² over a zero-padded size × size patch)^beta, as Caffe's
    WITHIN_CHANNEL."""

    def __init__(self, size: int, alpha: float, beta: float, k: float) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width), unchanged in shape."""
        squares, padding = x * x, self.size // 2
        if self.size % 2 == 0:  # one cell less after the patch's centre than before it
            squares, padding = F.pad(squares, (padding, padding - 1) * 2), 0
        means = F.avg_pool2d(squares, self.size, stride=1, padding=padding)
        return x / means.mul_(self.alpha).add_(self.k).pow(self.beta)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class SelfAttention(nn.Module):
    """Scaled dot-product self-attention, by PyTorch's fastest available kernel."""

    def __init__(self, layer: layers.Attention) -> None:
        super().__init__()
        self.heads, self.key_value_heads = layer.heads, layer.key_value_heads or layer.heads
        self.causal, self.dropout, self.documents = layer.causal, layer.dropout, layer.documents

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Queries, keys and values (batch, length, 3 · features), or each by itself, and the mask
        of documents (batch, length, length) → (batch, length, features)."""
        batch, length, width = x.shape
        mask = None
        if self.documents:
            mask, others = others[-1].unsqueeze(1), others[:-1]
        if not others:
            width //= 3
            packed = x.view(batch, length, 3, self.heads, width // self.heads)
            q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q = x.view(batch, length, self.heads, -1).transpose(1, 2)
            k, v = (
                part.view(batch, length, self.key_value_heads, -1).transpose(1, 2)
                for part in others
            )
        shared = self.heads // self.key_value_heads
        if mask is not None and shared > 1:  # no fused kernel has both
            k, v = (part.repeat_interleave(shared, 1) for part in (k, v))
            shared = 1
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and mask is None,
            enable_gqa=shared > 1,
        )
        return y.transpose(1, 2).reshape(batch, length, width)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"heads={self.heads}, causal={self.causal}"


class DocumentMask(nn.Module):
    """Pairs of positions of one document."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, positions: Tensor) -> Tensor:
        """Places in the document (batch, length) → bool (batch, length, length)."""
        documents = (positions == 0).cumsum(1)
        same = documents[:, :, None] == documents[:, None, :]
        return same.tril() if self.causal else same

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"causal={self.causal}"


class Rotation(nn.Module):
    """Rotary position embedding of each head."""

    def __init__(self, heads: int, base: float, shape: layers.Shape) -> None:
        super().__init__()
        self.heads, self.base = heads, base
        self.length, self.size = shape[0], shape[1] // heads
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """(batch, length, features), unchanged in shape; places in the document (batch, length),
        by default in the sequence."""
        heads = x.view(*x.shape[:2], self.heads, self.size)
        cosines, sines = self._cosines_and_sines(x)
        if positions is not None:
            cosines, sines = cosines[positions], sines[positions]
        one, other = heads.chunk(2, -1)
        turned = torch.cat([one * cosines - other * sines, other * cosines + one * sines], -1)
        return turned.view(x.shape)

    def _cosines_and_sines(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = (x.device, x.dtype)
        if key not in self._tables:
            cosines, sines = rotation_tables(self.length, self.size, self.base)
            self._tables[key] = (
                torch.from_numpy(cosines).to(*key),
                torch.from_numpy(sines).to(*key),
            )
        return self._tables[key]

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"heads={self.heads}, base={self.base:g}"


class Patches(nn.Module):
    """The positions of an image as a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, height · width, channels)."""
        return x.flatten(2).transpose(1, 2)


class Image(nn.Module):
    """A sequence as the positions of an image."""

    def __init__(self, size: layers.Pair) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """(batch, height · width, features) → (batch, features, height, width)."""
        return x.transpose(1, 2).reshape(len(x), -1, *self.size)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return str(self.size)


class Transposition(nn.Module):
    """Positions and features exchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features) → (batch, features, length)."""
        return x.transpose(1, 2)


class Selection(nn.Module):
    """Channels of an image, or features of a sequence, by their numbers."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.channels = channels
        self._indices: dict[torch.device, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width), or features in the last of fewer axes."""
        if x.device not in self._indices:
            self._indices[x.device] = torch.tensor(self.channels, device=x.device)
        return x.index_select(1 if x.dim() == 4 else -1, self._indices[x.device])

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"{len(self.channels)} channels"


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _hard_sigmoid(x: Tensor) -> Tensor:
    """In float64 written out: the gradient of PyTorch's kernel has an error of 3e-8 there."""
    return F.relu6(x + 3) / 6 if x.dtype == torch.float64 else F.hardsigmoid(x)


def _squared_relu(x: Tensor) -> Tensor:
    return torch.relu(x).square()


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "quick-gelu": _quick_gelu,
    "mish": F.mish,
    "hard-sigmoid": _hard_sigmoid,
    "hard-swish": F.hardswish,
    "relu6": F.relu6,
    "squared-relu": _squared_relu,
}


class Activation(nn.Module):
    """A function of each value."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.name, self.function = function, _FUNCTIONS[function]

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, unchanged."""
        return self.function(x)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return self.name


class Product(nn.Module):
    """The product of two values."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Two of one shape, or (batch, channels, height, width) and (batch, channels)."""
        return x * (y if y.dim() == x.dim() else y[:, :, None, None])


class LearnedScale(nn.Module):
    """A learned factor for each channel or feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width), or features in the last of fewer axes."""
        return x * (self.weight[:, None, None] if x.dim() == 4 else self.weight)


class SampleDropout(nn.Module):
    """Dropout of whole samples (stochastic depth)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(batch, …), unchanged in shape."""
        if not self.training or not self.rate:
            return x
        ones = torch.ones([len(x)] + [1] * (x.dim() - 1), dtype=x.dtype, device=x.device)
        return x * F.dropout(ones, self.rate)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"rate={self.rate}"


class PrependedToken(nn.Module):
    """A learned class token before all positions."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features) → (batch, 1 + length, features)."""
        return torch.cat([self.token.to(x.dtype).expand(len(x), 1, -1), x], dim=1)


class AddedPositions(nn.Module):
    """Learned position embeddings, added."""

    def __init__(self, layer: layers.PositionEmbedding, shape: layers.Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layer.rows or shape[0], shape[1]))
        self.rows = slice(layer.first, layer.first + (1 if layer.shared else shape[0]))
        self.every = self.rows == slice(0, len(self.weight))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """(batch, length, features), unchanged in shape; places in the document (batch, length),
        by default in the sequence."""
        if positions is not None:
            return x + F.embedding(positions + self.rows.start, self.weight)
        return x + (self.weight if self.every else self.weight[self.rows])


class Position(nn.Module):
    """One position of a sequence."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features) → (batch, features)."""
        return x[:, self.position]

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return str(self.position)


class _HiddenStates(nn.RNNBase):
    """One recurrent layer that returns h at every position; cuDNN's on a GPU."""

    def __init__(self, layer: layers.Recurrence, features: int, **settings: Any) -> None:
        settings.update(batch_first=True, bidirectional=layer.ways == 2)
        # PyTorch's own class comes next, which takes sizes alone.
        super().__init__(features, layer.hidden, **settings)  # type: ignore[arg-type]
        self.directions = layer.directions

    def forward(self, x: Tensor, begin: Tensor | None = None) -> Tensor:
        """(batch, length, features), first h (batch, hidden) → (batch, length, hidden), or twice
        as wide of two directions side by side."""
        if begin is None:
            y: Tensor = super().forward(x)[0]
        else:
            first = begin.unsqueeze(0)
            is_lstm = isinstance(self, nn.LSTM)
            y = super().forward(x, (first, torch.zeros_like(first)) if is_lstm else first)[0]
        if self.directions != "sum":
            return y
        one, other = y.chunk(2, -1)
        return one + other


class LSTM(_HiddenStates, nn.LSTM):  # type: ignore[misc]
    """`nn.LSTM` of one layer."""


class GRU(_HiddenStates, nn.GRU):  # type: ignore[misc]
    """`nn.GRU` of one layer."""


class RNN(_HiddenStates, nn.RNN):  # type: ignore[misc]
    """`nn.RNN` of one layer."""


DecoderState = tuple[list[tuple[Tensor, Tensor]], Tensor]


class InputFeedingDecoder(nn.Module):
    """LSTMs on one another with attention and a readout, position by position: each reads the
    readout of the position before."""

    def __init__(self, layer: layers.InputFeedingDecoder, shape: layers.Shape) -> None:
        super().__init__()
        given = (shape, (layer.hidden,), (1, layer.hidden))
        for role, spec in layer.parameters(*given).items():
            self.register_parameter(role, nn.Parameter(torch.empty(spec.shape)))
        self._prefixes, self._hidden = layer.prefixes, layer.hidden

    def forward(self, words: Tensor, begin: Tensor, memory: Tensor) -> Tensor:
        """(batch, length, features), (batch, hidden), (batch, positions, hidden) → (batch, length,
        hidden)."""
        state, outputs = self.begin(begin), []
        for word in words.unbind(1):
            fed, state = self.step(word, memory, state)
            outputs.append(fed)
        return torch.stack(outputs, 1)

    def begin(self, begin: Tensor) -> DecoderState:
        """The state before the first position: h and cell of every LSTM, and the last readout."""
        states = [(begin, torch.zeros_like(begin)) for _ in self._prefixes]
        return states, torch.zeros_like(begin)

    def step(
        self, word: Tensor, memory: Tensor, state: DecoderState
    ) -> tuple[Tensor, DecoderState]:
        """The readout (batch, hidden) at one position, and the state after it."""
        own = cast(dict[str, Tensor], self._parameters)
        before, fed = state
        x, states = torch.cat([word, fed], 1), []
        for prefix, last in zip(self._prefixes, before, strict=True):
            roles = ("weight", "hidden_weight", "bias", "hidden_bias")
            states.append(torch.lstm_cell(x, last, *(own[prefix + role] for role in roles)))
            x = states[-1][0]
        query = F.linear(x, own["attention_weight"])
        scores = torch.bmm(memory.to(query.dtype), query.unsqueeze(2))
        shares = torch.softmax(scores, 1).to(memory.dtype)
        mean = torch.bmm(shares.transpose(1, 2), memory).squeeze(1)
        fed = torch.tanh(F.linear(torch.cat([mean, x.to(mean.dtype)], 1), own["readout_weight"]))
        return fed, (states, fed)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"hidden={self._hidden}, depth={len(self._prefixes)}"


class Frames(nn.Module):
    """The columns of an image as a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, width, channels · height)."""
        return x.flatten(1, 2).transpose(1, 2)


class Pairs(nn.Module):
    """The sum, or the inner product, of each query and each key."""

    def __init__(self, product: bool) -> None:
        super().__init__()
        self.product = product

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(batch, queries, features), (batch, keys, features) → (batch, queries, keys, …)."""
        if self.product:
            return torch.bmm(queries, keys.transpose(1, 2)).unsqueeze(3)
        return queries.unsqueeze(2) + keys.unsqueeze(1)


class WeightedMean(nn.Module):
    """The mean of values, weighted by the softmax of scores."""

    def forward(self, scores: Tensor, values: Tensor) -> Tensor:
        """(batch, queries, keys, 1), (batch, keys, features) → (batch, queries, features)."""
        return torch.bmm(torch.softmax(scores.squeeze(3), 2).to(values.dtype), values)


def _convolution(layer: layers.Convolution, shape: layers.Shape, in_place: bool) -> nn.Module:
    return nn.Conv2d(
        shape[0],
        layer.filters,
        layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
        bias=layer.bias,
    )


def _batch_norm(layer: layers.BatchNorm, shape: layers.Shape, in_place: bool) -> nn.Module:
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    norm = kind(shape[0], eps=layer.epsilon, momentum=layer.momentum)
    # Only used with momentum=None, which no layer here has; it would cost a launch per step.
    norm.num_batches_tracked = None
    return norm


def _response_norm(
    layer: layers.LocalResponseNorm, shape: layers.Shape, in_place: bool
) -> nn.Module:
    kind = PatchResponseNorm if layer.region == "within" else ChannelResponseNorm
    return kind(layer.size, alpha=layer.alpha, beta=layer.beta, k=layer.bias)


def _max_pool(layer: layers.MaxPool, shape: layers.Shape, in_place: bool) -> nn.Module:
    return nn.MaxPool2d(layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)


def _average_pool(layer: layers.AveragePool, shape: layers.Shape, in_place: bool) -> nn.Module:
    return AveragePool(layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)


LOWERINGS: dict[type[layers.Layer], Lowering] = {
    layers.Convolution: _convolution,
    layers.Linear: lambda layer, shape, _: nn.Linear(shape[-1], layer.features, bias=layer.bias),
    layers.BatchNorm: _batch_norm,
    layers.LocalResponseNorm: _response_norm,
    layers.ReLU: lambda layer, shape, in_place: nn.ReLU(inplace=in_place),
    layers.Add: lambda layer, shape, in_place: Sum(in_place),
    layers.Concat: lambda layer, shape, _: Concatenation(),
    layers.Dropout: lambda layer, shape, _: (
        SampleDropout(layer.rate) if layer.per_sample else nn.Dropout(layer.rate)
    ),
    layers.Flatten: lambda layer, shape, _: nn.Flatten(),
    layers.MaxPool: _max_pool,
    layers.AveragePool: _average_pool,
    layers.GlobalAveragePool: lambda layer, shape, _: ChannelMeans(),
    layers.LayerNorm: lambda layer, shape, _: nn.LayerNorm(shape[-1], eps=layer.epsilon),
    layers.GELU: lambda layer, shape, _: nn.GELU("none" if layer.form == "erf" else "tanh"),
    layers.Attention: lambda layer, shape, _: SelfAttention(layer),
    layers.DocumentMask: lambda layer, shape, _: DocumentMask(layer.causal),
    layers.Tokens: lambda layer, shape, _: Patches(),
    layers.Embedding: lambda layer, shape, _: nn.Embedding(layer.vocabulary, layer.features),
    layers.ClassToken: lambda layer, shape, _: PrependedToken(shape[1]),
    layers.PositionEmbedding: lambda layer, shape, _: AddedPositions(layer, shape),
    layers.SelectPosition: lambda layer, shape, _: Position(layer.position),
    layers.Tanh: lambda layer, shape, _: nn.Tanh(),
    layers.LSTM: lambda layer, shape, _: LSTM(layer, shape[1]),
    layers.GRU: lambda layer, shape, _: GRU(layer, shape[1]),
    layers.RNN: lambda layer, shape, _: RNN(layer, shape[1], nonlinearity=layer.function),
    layers.InputFeedingDecoder: lambda layer, shape, _: InputFeedingDecoder(layer, shape),
    layers.Columns: lambda layer, shape, _: Frames(),
    layers.PairSum: lambda layer, shape, _: Pairs(product=False),
    layers.PairProduct: lambda layer, shape, _: Pairs(product=True),
    layers.Mix: lambda layer, shape, _: WeightedMean(),
    layers.RMSNorm: lambda layer, shape, _: nn.RMSNorm(shape[-1], eps=layer.epsilon),
    layers.RotaryEmbedding: lambda layer, shape, _: Rotation(layer.heads, layer.base, shape),
    layers.ToImage: lambda layer, shape, _: Image(layer.size),
    layers.Transpose: lambda layer, shape, _: Transposition(),
    layers.SelectChannels: lambda layer, shape, _: Selection(layer.channels),
    layers.PixelShuffle: lambda layer, shape, _: nn.PixelShuffle(layer.factor),
    layers.Sigmoid: lambda layer, shape, _: nn.Sigmoid(),
    layers.Activation: lambda layer, shape, _: (
        nn.LeakyReLU(layer.slope) if layer.function == "leaky-relu" else Activation(layer.function)
    ),
    layers.Multiply: lambda layer, shape, _: Product(),
    layers.Experts: lambda layer, shape, _: ExpertMixture(layer, shape),
    layers.LoadBalance: lambda layer, shape, _: BalanceLoss(layer.active),
    layers.EmbeddingBags: lambda layer, shape, _: SummedEmbeddings(layer),
    layers.DotInteraction: lambda layer, shape, _: PairwiseProducts(),
    layers.BinaryScores: lambda layer, shape, _: LogitAndZero(),
    layers.Scale: lambda layer, shape, _: LearnedScale(shape[0 if len(shape) == 3 else -1]),
}

ATTRIBUTES = {"running_variance": "running_var"}
"""Role in the layer → name of PyTorch's attribute, where they differ."""
_OF_ONE_WAY = {
    "weight": "weight_ih_l0",
    "hidden_weight": "weight_hh_l0",
    "bias": "bias_ih_l0",
    "hidden_bias": "bias_hh_l0",
}
RECURRENT_ATTRIBUTES = _OF_ONE_WAY | {
    f"reverse_{role}": f"{name}_reverse" for role, name in _OF_ONE_WAY.items()
}
"""The same for a recurrent layer."""

_RESULT_UNREAD = (layers.Add, layers.BatchNorm, layers.Concat, layers.Convolution, layers.Linear)
"""Layers whose backward pass does not read their result."""


def lower(node: Node, shape: layers.Shape, in_place: bool) -> nn.Module:
    """The module for `node`, its arrays on the `meta` device; `shape` is that of one sample of its
    first input."""
    with torch.device("meta"):
        return LOWERINGS[type(node.layer)](node.layer, shape, in_place)


def may_overwrite(network: Network) -> frozenset[str]:
    """Names of the nodes whose first input may be overwritten: no other node and no head reads it,
    nor does the backward pass of the layer that computed it."""
    readers = Counter(value for node in network.nodes for value in node.inputs)
    readers.update(head.value for head in network.heads)
    producers = {node.name: node.layer for node in network.nodes}
    return frozenset(
        node.name
        for node in network.nodes
        if readers[node.inputs[0]] == 1
        and isinstance(producers.get(node.inputs[0]), _RESULT_UNREAD)
    )
