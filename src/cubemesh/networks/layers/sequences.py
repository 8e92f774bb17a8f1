"""Layer types of sequences: (length, features) of a sample, of tokens (length,)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from cubemesh.errors import UsageError
from cubemesh.networks.layers.base import (
    GLOROT,
    ONES,
    SMALL_NORMAL,
    ZEROS,
    Initializer,
    Layer,
    Pair,
    ParameterSpec,
    Shape,
    image_shape,
    sequence_shape,
    weight_and_bias,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Layer):
    """Normalization over the last axis of each position (Ba, Kiros and Hinton 2016), by the biased
    variance, then a learned scale and shift."""

    category: ClassVar[str] = "normalization"
    epsilon: float = 1e-5

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` and `bias`, one value a feature."""
        return weight_and_bias((inputs[0][-1],), ONES)


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Layer):
    """x / √(mean of x² + ε) over the last axis of each position, then a learned scale (Zhang and
    Sennrich 2019)."""

    category: ClassVar[str] = "normalization"
    epsilon: float = 1e-6

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight`, one value a feature."""
        return {"weight": ParameterSpec(shape=inputs[0][-1:], initializer=ONES)}


@dataclass(frozen=True, kw_only=True)
class GELU(Layer):
    """x · Φ(x) (Hendrycks and Gimpel 2016), Φ by the error function, or approximated as
    ½ (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    form: Literal["erf", "tanh"] = "erf"


@dataclass(frozen=True, kw_only=True)
class Attention(Layer):
    """softmax(Q Kᵀ / √d) V in each of `heads` heads of d features (Vaswani et al. 2017).

    Its one input holds queries, keys and values side by side, each with its heads side by side; or
    they are three inputs. `causal`: a position sees itself and those before it. `dropout`: the rate
    of the softmax's values that training zeroes. `key_value_heads`: fewer heads of keys and values,
    each read by equally many heads of queries (grouped queries, Ainslie et al. 2023); 0 is as many.
    `documents`: a last input (length, length), a `DocumentMask`, says which positions each sees;
    `causal` is then part of it.
    """

    category: ClassVar[str] = "attention"
    heads: int
    causal: bool = False
    dropout: float = 0.0
    key_value_heads: int = 0
    documents: bool = False

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, features), from (length, 3 · features), or from (length, features) and twice
        (length, features · key_value_heads / heads)."""
        length, features = sequence_shape(self, inputs[0])
        if self.documents:
            *given, mask = inputs
            if mask != (length, length):
                raise UsageError(f"Attention needs a mask {(length, length)}, was given {mask}.")
            inputs = tuple(given)
        if len(inputs) == 1 and not self.key_value_heads:
            if features % (3 * self.heads):
                raise UsageError(
                    f"Attention: {features} features do not divide into queries, keys and values "
                    f"of {self.heads} heads each."
                )
            return (length, features // 3)
        shared = self.key_value_heads or self.heads
        keys = (length, features // self.heads * shared)
        if features % self.heads or self.heads % shared or inputs[1:] != (keys, keys):
            raise UsageError(
                f"Attention of {self.heads} heads, {shared} of keys and values, needs three "
                f"sequences of one length and width of a head, was given {inputs}."
            )
        return (length, features)


@dataclass(frozen=True, kw_only=True)
class DocumentMask(Layer):
    """Which positions each position sees where a row has several documents one after another: those
    of its own document and, if `causal`, none after it. A document begins where its input, the
    place of each position in its document, is 0. One mask serves all attention layers."""

    category: ClassVar[str] = "attention"
    causal: bool = False

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, length), from (length,)."""
        if len(inputs) != 1 or len(inputs[0]) != 1:
            raise UsageError(f"DocumentMask needs positions (length,), was given {inputs}.")
        return (inputs[0][0], inputs[0][0])


@dataclass(frozen=True, kw_only=True)
class RotaryEmbedding(Layer):
    """Rotates each head's features by the position (Su et al. 2021): the pair of features i and
    i + d/2 of a head of d features by the angle position · base^(−2i/d). `documents`: a second
    input (length,) has each position's place in its document."""

    heads: int
    base: float = 10000.0
    documents: bool = False

    def output_shape(self, *inputs: Shape) -> Shape:
        """As the input (length, features)."""
        length, features = sequence_shape(self, inputs[0])
        if features % (2 * self.heads):
            raise UsageError(
                f"RotaryEmbedding: {features} features do not divide into pairs in {self.heads} "
                "heads."
            )
        return (length, features)


def rotation_tables(
    length: int, size: int, base: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosines and sines (length, 1, size / 2) of a rotary embedding in heads of `size` features."""
    import numpy as np

    frequencies = base ** (-2 * np.arange(size // 2) / size)
    angles = np.outer(np.arange(length), frequencies)[:, None]
    return np.cos(angles), np.sin(angles)


@dataclass(frozen=True, kw_only=True)
class Tokens(Layer):
    """An image's positions as a sequence, row by row."""

    category: ClassVar[str] = "view"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(height · width, channels)."""
        channels, height, width = image_shape(self, inputs[0])
        return (height * width, channels)


@dataclass(frozen=True, kw_only=True)
class ToImage(Layer):
    """A sequence as the positions of an image, row by row: the reverse of `Tokens`."""

    category: ClassVar[str] = "view"
    size: Pair

    def output_shape(self, *inputs: Shape) -> Shape:
        """(features, height, width), from (height · width, features)."""
        length, features = sequence_shape(self, inputs[0])
        if length != math.prod(self.size):
            raise UsageError(f"ToImage: {length} positions are no image of {self.size}.")
        return (features, *self.size)


@dataclass(frozen=True, kw_only=True)
class Transpose(Layer):
    """Positions as features and features as positions."""

    category: ClassVar[str] = "view"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(features, length)."""
        length, features = sequence_shape(self, inputs[0])
        return (features, length)


@dataclass(frozen=True, kw_only=True)
class Embedding(Layer):
    """A learned vector for each token of a vocabulary."""

    category: ClassVar[str] = "embedding"
    vocabulary: int
    features: int
    initializer: Initializer = SMALL_NORMAL

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, features), from tokens (length,)."""
        if len(inputs[0]) != 1:
            raise UsageError(f"Embedding needs tokens (length,), was given {inputs[0]}.")
        return (inputs[0][0], self.features)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (vocabulary, features)."""
        shape = (self.vocabulary, self.features)
        return {"weight": ParameterSpec(shape=shape, initializer=self.initializer)}


@dataclass(frozen=True, kw_only=True)
class ClassToken(Layer):
    """A learned position put before all others (Devlin et al. 2018), to be classified by."""

    category: ClassVar[str] = "copy"
    initializer: Initializer = ZEROS

    def output_shape(self, *inputs: Shape) -> Shape:
        """(1 + length, features)."""
        length, features = sequence_shape(self, inputs[0])
        return (1 + length, features)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`token` (features,)."""
        return {"token": ParameterSpec(shape=(inputs[0][1],), initializer=self.initializer)}


@dataclass(frozen=True, kw_only=True)
class PositionEmbedding(Layer):
    """Adds a learned vector to each position: a row of a table of `rows`, by default as many as the
    sequence is long, from row `first` on; `shared`: that row to every position. `documents`: a
    second input (length,) has each position's place in its document, and so its row."""

    rows: int = 0
    first: int = 0
    shared: bool = False
    documents: bool = False
    initializer: Initializer = SMALL_NORMAL

    def output_shape(self, *inputs: Shape) -> Shape:
        """As the input."""
        length, features = sequence_shape(self, inputs[0])
        last = self.first + (1 if self.shared else length)
        if last > (self.rows or length):
            raise UsageError(
                f"PositionEmbedding: a table of {self.rows or length} rows has no row {last - 1}."
            )
        return (length, features)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (rows, features)."""
        length, features = inputs[0]
        shape = (self.rows or length, features)
        return {"weight": ParameterSpec(shape=shape, initializer=self.initializer)}


@dataclass(frozen=True, kw_only=True)
class SelectPosition(Layer):
    """One position of a sequence."""

    category: ClassVar[str] = "view"
    position: int = 0

    def output_shape(self, *inputs: Shape) -> Shape:
        """(features,)."""
        length, features = sequence_shape(self, inputs[0])
        if not 0 <= self.position < length:
            raise UsageError(f"SelectPosition: there is no position {self.position} in {length}.")
        return (features,)


@dataclass(frozen=True, kw_only=True)
class Tanh(Layer):
    """tanh(x)."""


@dataclass(frozen=True, kw_only=True)
class Recurrence(Layer):
    """Base of the recurrent layers: one layer of `hidden` values h, in one direction or in both.

    Weights of the input and of h lie below one another, a block a gate, with two biases, as cuDNN
    has them. `directions`: `forward`, or both, whose h are joined side by side (`concat`) or added
    (`sum`); the second has arrays of its own. A second input is the first h of one direction;
    without it h begins with zeros.
    """

    category: ClassVar[str] = "recurrence"
    gates: ClassVar[int] = 1
    hidden: int
    directions: Literal["forward", "concat", "sum"] = "forward"
    initializer: Initializer = GLOROT

    @property
    def ways(self) -> int:
        """Number of directions."""
        return 1 if self.directions == "forward" else 2

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the roles of each direction's parameters begin with."""
        return ("", "reverse_")[: self.ways]

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, hidden), or twice as wide where the h of both directions are side by side."""
        name, (length, _) = type(self).__name__, sequence_shape(self, inputs[0])
        if len(inputs) == 2 and self.ways == 2:
            raise UsageError(f"{name} of both directions begins from zero and takes no first h.")
        if len(inputs) == 2 and inputs[1] != (self.hidden,):
            raise UsageError(f"{name} begins from ({self.hidden},), was given {inputs[1]}.")
        return (length, self.hidden * (2 if self.directions == "concat" else 1))

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (gates · hidden, features), `hidden_weight` (gates · hidden, hidden), `bias` and
        `hidden_bias` (gates · hidden,); the same of the other direction with `reverse_` before."""
        rows, features = self.gates * self.hidden, inputs[0][1]
        found = {}
        for prefix in self.prefixes:
            for role, shape in (
                ("weight", (rows, features)),
                ("hidden_weight", (rows, self.hidden)),
                ("bias", (rows,)),
                ("hidden_bias", (rows,)),
            ):
                initializer = ZEROS if role.endswith("bias") else self.initializer
                found[prefix + role] = ParameterSpec(shape=shape, initializer=initializer)
        return found


@dataclass(frozen=True, kw_only=True)
class LSTM(Recurrence):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with Gers' forget gate):

        i, f, g, o = W x + b + R h + c,  cell = σ(f) · cell + σ(i) · tanh(g),  h = σ(o) · tanh(cell)

    The cell begins with zeros.
    """

    gates: ClassVar[int] = 4


@dataclass(frozen=True, kw_only=True)
class GRU(Recurrence):
    """Gated recurrent unit, in the form of cuDNN and PyTorch:

        r, z = σ(W x + b + R h + c),  n = tanh(W x + b + r · (R h + c)),  h = (1 − z) · n + z · h

    Cho et al. (2014) multiply h by r before the product with R; here all products of a position are
    one.
    """

    gates: ClassVar[int] = 3


@dataclass(frozen=True, kw_only=True)
class RNN(Recurrence):
    """Plain recurrence (Elman 1990): h = tanh(W x + b + R h + c), or max(…, 0) as in Deep Speech
    (Hannun et al. 2014)."""

    function: Literal["tanh", "relu"] = "tanh"


@dataclass(frozen=True, kw_only=True)
class InputFeedingDecoder(Layer):
    """Decoder of a translator whose attention is an input of its next step (input feeding, Luong,
    Pham and Manning 2015): `depth` LSTMs on one another, attention, and a readout. At each
    position, from a word w and the memory m of the encoder:

        h, cells = LSTMs([w, a], h, cells)      of the last LSTM: h
        share of a position of m = softmax(m · A h),  c = mean of m by these shares
        a = tanh(R [c, h])

    Inputs: words (length, features), the first h of every LSTM (hidden,), and the memory
    (positions, hidden). Cells and a begin with zeros. As each step needs the one before, the LSTMs'
    products cannot be one for all positions.
    """

    category: ClassVar[str] = "recurrence"
    hidden: int
    depth: int = 1
    initializer: Initializer = GLOROT

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, hidden): a at every position."""
        length, _ = sequence_shape(self, inputs[0])
        _, width = sequence_shape(self, inputs[2]) if len(inputs) == 3 else (0, 0)
        if inputs[1:2] != ((self.hidden,),) or width != self.hidden:
            raise UsageError(
                f"InputFeedingDecoder needs words (length, features), a first h ({self.hidden},) "
                f"and a memory (positions, {self.hidden}), was given {inputs}."
            )
        return (length, self.hidden)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """Of the first LSTM `weight` (4 · hidden, features + hidden), `hidden_weight` (4 · hidden,
        hidden), `bias` and `hidden_bias` (4 · hidden,); of the others the same with `lstm2_` and so
        on before, `lstm2_weight` (4 · hidden, hidden); `attention_weight` (hidden, hidden) and
        `readout_weight` (hidden, 2 · hidden)."""
        hidden, found, width = self.hidden, {}, inputs[0][1] + self.hidden
        for prefix in self.prefixes:
            for role, shape in (
                ("weight", (4 * hidden, width)),
                ("hidden_weight", (4 * hidden, hidden)),
                ("bias", (4 * hidden,)),
                ("hidden_bias", (4 * hidden,)),
            ):
                initializer = ZEROS if role.endswith("bias") else self.initializer
                found[prefix + role] = ParameterSpec(shape=shape, initializer=initializer)
            width = hidden
        for role, shape in (
            ("attention_weight", (hidden, hidden)),
            ("readout_weight", (hidden, 2 * hidden)),
        ):
            found[role] = ParameterSpec(shape=shape, initializer=self.initializer)
        return found

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the roles of each LSTM's parameters begin with."""
        return ("", *(f"lstm{n}_" for n in range(2, self.depth + 1)))


@dataclass(frozen=True, kw_only=True)
class Columns(Layer):
    """An image's columns as a sequence: the frames of a spectrogram (channels, frequencies,
    frames)."""

    category: ClassVar[str] = "view"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(width, channels · height)."""
        channels, height, width = image_shape(self, inputs[0])
        return (width, channels * height)


def _query_key(layer: Layer, inputs: tuple[Shape, ...]) -> tuple[int, int, int]:
    """Positions of both, and their features."""
    queries, keys = inputs
    if len(queries) != 2 or len(keys) != 2 or queries[1] != keys[1]:
        raise UsageError(
            f"{type(layer).__name__} needs two sequences of the same width, was given {inputs}."
        )
    return queries[0], keys[0], keys[1]


@dataclass(frozen=True, kw_only=True)
class PairSum(Layer):
    """The sum of each query and each key."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """(queries, keys, features)."""
        return _query_key(self, inputs)


@dataclass(frozen=True, kw_only=True)
class PairProduct(Layer):
    """The inner product of each query and each key."""

    category: ClassVar[str] = "attention"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(queries, keys, 1)."""
        return (*_query_key(self, inputs)[:2], 1)


@dataclass(frozen=True, kw_only=True)
class Mix(Layer):
    """The mean of the values, weighted for each query by the softmax of its scores."""

    category: ClassVar[str] = "attention"
    keys: int

    def output_shape(self, *inputs: Shape) -> Shape:
        """(queries, features), from scores (queries, keys, 1) and values (keys, features)."""
        scores, values = inputs
        if len(scores) != 3 or len(values) != 2 or not scores[1] == self.keys == values[0]:
            raise UsageError(
                "Mix needs scores (queries, keys, 1) and values (keys, features), was given "
                f"{inputs}."
            )
        return (scores[0], values[1])


@dataclass(frozen=True, kw_only=True)
class Experts(Layer):
    """Sparse mixture of gated feed-forward parts (Shazeer et al. 2017; Jiang et al. 2024, section
    2.1). The scores choose `active` of the experts at each position, whose results are weighted:

        y = Σ share_e · down_e (silu(gate_e x) · up_e x)      share = softmax of the chosen scores

    Inputs: x (length, features) and the router's scores (length, experts). No token is dropped: an
    expert computes as many positions as chose it.
    """

    category: ClassVar[str] = "matrix product"
    experts: int
    active: int
    ffn: int
    """Width of an expert's two hidden products."""
    initializer: Initializer = SMALL_NORMAL

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, features)."""
        if not 1 <= self.active <= self.experts:
            raise UsageError(
                f"Experts: active={self.active} must be 1 to {self.experts}, the number of experts."
            )
        length, _ = sequence_shape(self, inputs[0])
        if inputs[1:] != ((length, self.experts),):
            raise UsageError(
                f"Experts needs (length, features) and scores (length, {self.experts}), was given "
                f"{inputs}."
            )
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`gate_weight` and `up_weight` (experts, ffn, features), `down_weight` (experts, features,
        ffn)."""
        width = inputs[0][1]
        into, back = (self.experts, self.ffn, width), (self.experts, width, self.ffn)
        shapes = {"gate_weight": into, "up_weight": into, "down_weight": back}
        return {
            role: ParameterSpec(shape=shape, initializer=self.initializer)
            for role, shape in shapes.items()
        }


@dataclass(frozen=True, kw_only=True)
class LoadBalance(Layer):
    """Auxiliary loss that spreads positions over experts (Fedus et al. 2021, equations 4 to 6), for
    `active` experts a position, summed over the routers whose scores it reads:

        loss = experts · Σ_e f_e · P_e

    f_e is the share of the choices of the whole batch that went to expert e, and has no gradient;
    P_e the mean probability (softmax of all scores) of e. Its least value is 1 a router, where all
    experts are chosen equally often.
    """

    active: int

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, 1): of each position, so that their mean is the loss."""
        length, experts = sequence_shape(self, inputs[0])
        if len(set(inputs)) != 1 or not 1 <= self.active <= experts:
            raise UsageError(
                f"LoadBalance needs scores (length, experts) of one shape, and {self.active} of "
                f"the experts at a position, was given {inputs}."
            )
        return (length, 1)
