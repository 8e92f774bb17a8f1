"""Network builder, one line per layer: `x = net.conv(x, 64, kernel=3, padding=1)`.

Each call appends a node, computes its shape and parameters, and returns the name of its value for
the next call. Nodes are named after their layer and number ("conv3") unless `name` is given.
Inputs, segments and heads are in `assembly.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cubemesh.networks import layers
from cubemesh.networks.assembly import Assembly
from cubemesh.networks.layers import (
    GLOROT,
    HE_OUT,
    ONES,
    SMALL_NORMAL,
    Initializer,
    LocalResponseNorm,
    Pair,
)

Directions = Literal["forward", "concat", "sum"]


INCEPTION_EPSILON = 1e-3
"""Added to the variance; torchvision's and TensorFlow's value for GoogLeNet and the Inceptions."""


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value


class NetworkBuilder(Assembly):
    """A method for each layer of images or of sequences (length, features); `add_layer` takes any,
    `build()` gives the `Network`."""

    def conv(
        self,
        x: str,
        filters: int,
        *,
        kernel: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer = HE_OUT,
        name: str | None = None,
    ) -> str:
        """A two-dimensional convolution."""
        layer = layers.Convolution(
            filters=filters,
            kernel=_pair(kernel),
            stride=_pair(stride),
            padding=_pair(padding),
            dilation=_pair(dilation),
            groups=groups,
            bias=bias,
            initializer=initializer,
        )
        return self.add_layer(layer, x, name=name)

    def linear(
        self,
        x: str,
        features: int,
        *,
        bias: bool = True,
        initializer: Initializer = GLOROT,
        name: str | None = None,
        share: Mapping[str, str] | None = None,
    ) -> str:
        """A fully connected layer."""
        layer = layers.Linear(features=features, bias=bias, initializer=initializer)
        return self.add_layer(layer, x, name=name, share=share)

    def batch_norm(
        self,
        x: str,
        *,
        epsilon: float = 1e-5,
        momentum: float = 0.1,
        scale_initializer: Initializer = ONES,
        name: str | None = None,
    ) -> str:
        """Batch normalization with a learned scale and shift."""
        layer = layers.BatchNorm(
            epsilon=epsilon, momentum=momentum, scale_initializer=scale_initializer
        )
        return self.add_layer(layer, x, name=name)

    def conv_norm_relu(
        self,
        x: str,
        name: str,
        filters: int,
        kernel: int | Pair,
        stride: int = 1,
        padding: int | Pair | None = None,
    ) -> str:
        """The block of GoogLeNet and the Inceptions: convolution without bias, for the
        normalization would take it away again, batch normalization, and ReLU: `<name>.conv`,
        `<name>.bn` (both as in torchvision) and `<name>.relu`. Without a `padding` the size is as
        before, but for the stride."""
        height, width = _pair(kernel)
        x = self.conv(
            x,
            filters,
            kernel=kernel,
            stride=stride,
            padding=(height // 2, width // 2) if padding is None else padding,
            bias=False,
            name=f"{name}.conv",
        )
        x = self.batch_norm(x, epsilon=INCEPTION_EPSILON, name=f"{name}.bn")
        return self.relu(x, name=f"{name}.relu")

    def lrn(self, x: str, layer: LocalResponseNorm, *, name: str | None = None) -> str:
        """Local response normalization."""
        return self.add_layer(layer, x, name=name)

    def relu(self, x: str, *, name: str | None = None) -> str:
        """The rectifier."""
        return self.add_layer(layers.ReLU(), x, name=name)

    def add(self, x: str, y: str, *, name: str | None = None) -> str:
        """The sum of two values."""
        return self.add_layer(layers.Add(), x, y, name=name)

    def concat(self, *values: str, name: str | None = None) -> str:
        """Concatenation along the channels."""
        return self.add_layer(layers.Concat(), *values, name=name)

    def dropout(self, x: str, rate: float, *, name: str | None = None) -> str:
        """Dropout, active in training only."""
        return self.add_layer(layers.Dropout(rate=rate), x, name=name)

    def flatten(self, x: str, *, name: str | None = None) -> str:
        """All axes into one."""
        return self.add_layer(layers.Flatten(), x, name=name)

    def max_pool(
        self,
        x: str,
        kernel: int | Pair,
        *,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> str:
        """Max pooling; the stride is the kernel unless given."""
        layer = layers.MaxPool(
            kernel=_pair(kernel),
            stride=_pair(kernel if stride is None else stride),
            padding=_pair(padding),
            ceil_mode=ceil_mode,
        )
        return self.add_layer(layer, x, name=name)

    def average_pool(
        self,
        x: str,
        kernel: int | Pair,
        *,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> str:
        """Average pooling; the stride is the kernel unless given."""
        layer = layers.AveragePool(
            kernel=_pair(kernel),
            stride=_pair(kernel if stride is None else stride),
            padding=_pair(padding),
            ceil_mode=ceil_mode,
        )
        return self.add_layer(layer, x, name=name)

    def global_average_pool(self, x: str, *, name: str | None = None) -> str:
        """The mean of each channel."""
        return self.add_layer(layers.GlobalAveragePool(), x, name=name)

    def token_input(self, name: str, length: int, vocabulary: int) -> str:
        """An input of tokens, `length` a sample."""
        return self.input(name, (length,), vocabulary=vocabulary)

    def embedding(self, x: str, features: int, *, name: str | None = None) -> str:
        """Tokens as learned vectors; the vocabulary is that of the input `x`."""
        vocabulary = next(i.classes for i in self._inputs if i.name == x)
        assert vocabulary is not None
        return self.add_layer(
            layers.Embedding(vocabulary=vocabulary, features=features), x, name=name
        )

    def layer_norm(self, x: str, *, epsilon: float = 1e-5, name: str | None = None) -> str:
        """Normalization of each position."""
        return self.add_layer(layers.LayerNorm(epsilon=epsilon), x, name=name)

    def gelu(self, x: str, form: Literal["erf", "tanh"] = "erf", *, name: str | None = None) -> str:
        """The Gaussian error linear unit."""
        return self.add_layer(layers.GELU(form=form), x, name=name)

    def attention(
        self, x: str, heads: int, *, causal: bool = False, name: str | None = None
    ) -> str:
        """Attention within a sequence; `x` is queries, keys and values side by side."""
        return self.add_layer(layers.Attention(heads=heads, causal=causal), x, name=name)

    def tokens(self, x: str, *, name: str | None = None) -> str:
        """An image's positions as a sequence."""
        return self.add_layer(layers.Tokens(), x, name=name)

    def class_token(self, x: str, *, name: str | None = None) -> str:
        """A learned position before all others."""
        return self.add_layer(layers.ClassToken(), x, name=name)

    def position_embedding(
        self, x: str, *, initializer: Initializer = SMALL_NORMAL, name: str | None = None
    ) -> str:
        """A learned vector of each position, added."""
        return self.add_layer(layers.PositionEmbedding(initializer=initializer), x, name=name)

    def select(self, x: str, position: int = 0, *, name: str | None = None) -> str:
        """One position."""
        return self.add_layer(layers.SelectPosition(position=position), x, name=name)

    def tanh(self, x: str, *, name: str | None = None) -> str:
        """The hyperbolic tangent."""
        return self.add_layer(layers.Tanh(), x, name=name)

    def lstm(
        self,
        x: str,
        hidden: int,
        begin: str | None = None,
        *,
        directions: Directions = "forward",
        name: str | None = None,
    ) -> str:
        """An LSTM of one layer; `begin` is its first h."""
        return self._recurrence(layers.LSTM(hidden=hidden, directions=directions), x, begin, name)

    def gru(
        self,
        x: str,
        hidden: int,
        begin: str | None = None,
        *,
        directions: Directions = "forward",
        name: str | None = None,
    ) -> str:
        """A GRU of one layer; `begin` is its first h."""
        return self._recurrence(layers.GRU(hidden=hidden, directions=directions), x, begin, name)

    def rnn(
        self,
        x: str,
        hidden: int,
        begin: str | None = None,
        *,
        function: Literal["tanh", "relu"] = "tanh",
        directions: Directions = "forward",
        name: str | None = None,
    ) -> str:
        """A plain recurrence of one layer; `begin` is its first h."""
        layer = layers.RNN(hidden=hidden, function=function, directions=directions)
        return self._recurrence(layer, x, begin, name)

    def _recurrence(
        self, layer: layers.Recurrence, x: str, begin: str | None, name: str | None
    ) -> str:
        return self.add_layer(layer, *((x,) if begin is None else (x, begin)), name=name)

    def input_feeding_decoder(
        self, words: str, begin: str, memory: str, depth: int = 1, *, name: str | None = None
    ) -> str:
        """LSTMs with attention to `memory` that is fed back; `begin` is their first h."""
        layer = layers.InputFeedingDecoder(hidden=self.shape(begin)[0], depth=depth)
        return self.add_layer(layer, words, begin, memory, name=name)

    def columns(self, x: str, *, name: str | None = None) -> str:
        """An image's columns as a sequence."""
        return self.add_layer(layers.Columns(), x, name=name)

    def pair_sum(self, queries: str, keys: str, *, name: str | None = None) -> str:
        """The sum of each query and each key."""
        return self.add_layer(layers.PairSum(), queries, keys, name=name)

    def pair_product(self, queries: str, keys: str, *, name: str | None = None) -> str:
        """The inner product of each query and each key."""
        return self.add_layer(layers.PairProduct(), queries, keys, name=name)

    def mix(self, scores: str, values: str, *, name: str | None = None) -> str:
        """The mean of the values, weighted by the softmax of the scores."""
        return self.add_layer(layers.Mix(keys=self.shape(values)[0]), scores, values, name=name)
