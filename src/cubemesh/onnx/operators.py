"""Operators: how each layer type is written in ONNX.

To add a layer type: write a function that adds its operators, and add one line to `OPERATORS`.

A value has the network's shape behind an axis for the batch, whose length is free. In a shape, 0
takes the length of the input's axis and -1 the rest, as in ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array
from cubemesh.networks import layers
from cubemesh.networks.graph import Node
from cubemesh.networks.layers import Layer, Pair, Shape
from cubemesh.networks.layers.sequences import rotation_tables
from cubemesh.onnx.graph import Attribute, Operator

L = TypeVar("L", bound=Layer)


@dataclass
class Operators:
    """The operators and constants of one layer; `node` is its place in the network."""

    node: Node
    shapes: tuple[Shape, ...]
    """Of a sample of each input."""
    weights: Mapping[str, Array]
    operators: list[Operator] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """Of a sample of the result."""
        return self.node.shape

    def call(self, operator: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """Add an operator; the name of its result, by default the layer's own value."""
        result = self.name(to) if to else self.node.name
        plain = {name: _plain_value(value) for name, value in attributes.items()}
        self.operators.append(
            Operator(kind=operator, inputs=inputs, outputs=(result,), attributes=plain)
        )
        return result

    def name(self, part: str) -> str:
        """The name of a value inside the layer."""
        return f"{self.node.name}/{part}"

    def constant(self, part: str, values: Any, dtype: type = np.float32) -> str:
        """A constant of this layer."""
        name = self.name(part)
        self.constants[name] = np.array(values, dtype=dtype, order="C")
        return name

    def integers(self, part: str, *values: int) -> str:
        """A constant vector of integers: axes, or a shape."""
        return self.constant(part, values, np.int64)

    def weight(self, role: str) -> str:
        """A parameter or state array, under the network's name: shared ones are stored once."""
        name = {**self.node.parameters, **self.node.state}[role]
        self.constants[name] = np.ascontiguousarray(self.weights[name], dtype=np.float32)
        return name

    def array(self, role: str) -> NDArray[np.float32]:
        """The values of a parameter that is stored in another layout."""
        return np.asarray(self.weights[self.node.parameters[role]], dtype=np.float32)

    def lstm_step(
        self, x: str, arrays: tuple[str, ...], state: tuple[str, str], to: str, hidden: int
    ) -> tuple[str, str]:
        """Add one step of an LSTM; the names of its h and cell (1, batch, hidden)."""
        h, cell = self.name(f"{to}.h"), self.name(f"{to}.cell")
        self.operators.append(
            Operator(
                kind="LSTM",
                inputs=(x, *arrays, "", *state),
                outputs=("", h, cell),
                attributes={"hidden_size": hidden},
            )
        )
        return h, cell

    def reshape(self, x: str, *shape: int, to: str = "") -> str:
        """Add a reshape."""
        return self.call("Reshape", x, self.integers(f"{to or 'result'}.shape", *shape), to=to)

    def transpose(self, x: str, *axes: int, to: str = "") -> str:
        """Add a transpose."""
        return self.call("Transpose", x, to=to, perm=axes)


Write = Callable[[Operators, Any, tuple[str, ...]], object]
"""Adds the operators of a layer, given its settings and the names of its inputs."""


def _plain_value(value: Any) -> Attribute:
    """An attribute as files have it: lists are tuples, and floats have 32 bits."""
    if isinstance(value, float):
        return float(np.float32(value))
    found: Attribute = tuple(value) if isinstance(value, (list, tuple)) else value
    return found


def _both_sides(padding: Pair) -> list[int]:
    return [*padding, *padding]


def _convolution(to: Operators, layer: layers.Convolution, inputs: tuple[str, ...]) -> None:
    arrays = [to.weight("weight"), *([to.weight("bias")] if layer.bias else [])]
    gaps: dict[str, Any] = {} if layer.dilation == (1, 1) else {"dilations": layer.dilation}
    to.call(
        "Conv",
        *inputs,
        *arrays,
        kernel_shape=layer.kernel,
        strides=layer.stride,
        pads=_both_sides(layer.padding),
        group=layer.groups,
        **gaps,
    )


def _linear(to: Operators, layer: layers.Linear, inputs: tuple[str, ...]) -> None:
    bias = [to.weight("bias")] if layer.bias else []
    if len(to.shapes[0]) == 1:
        to.call("Gemm", *inputs, to.weight("weight"), *bias, transB=1)
        return
    columns = to.transpose(to.weight("weight"), 1, 0, to="weight.transposed")
    if bias:
        to.call("Add", to.call("MatMul", *inputs, columns, to="product"), *bias)
    else:
        to.call("MatMul", *inputs, columns)


def _batch_norm(to: Operators, layer: layers.BatchNorm, inputs: tuple[str, ...]) -> None:
    roles = ("weight", "bias", "running_mean", "running_variance")
    to.call("BatchNormalization", *inputs, *map(to.weight, roles), epsilon=layer.epsilon)


def _response_norm(to: Operators, layer: layers.LocalResponseNorm, inputs: tuple[str, ...]) -> None:
    if layer.region == "across" and layer.size % 2:
        to.call(
            "LRN",
            *inputs,
            size=layer.size,
            alpha=layer.alpha,
            beta=layer.beta,
            bias=layer.bias,
        )
        return
    # Of an even size ONNX has the odd one out on the other side.
    (x,) = inputs
    channels, height, width = to.shape
    square = to.call("Mul", x, x, to="square")
    across = layer.region == "across"
    if across:
        square = to.reshape(square, 0, 1, channels, height * width, to="rows")
    before, after = layer.size // 2, (layer.size - 1) // 2
    mean = to.call(
        "AveragePool",
        square,
        to="mean",
        kernel_shape=[layer.size, 1] if across else [layer.size] * 2,
        strides=[1, 1],
        pads=[before, 0, after, 0] if across else [before, before, after, after],
        count_include_pad=1,
    )
    if across:
        mean = to.reshape(mean, 0, channels, height, width, to="image")
    scaled = to.call("Mul", mean, to.constant("alpha", layer.alpha), to="scaled")
    base = to.call("Add", scaled, to.constant("bias", layer.bias), to="base")
    power = to.call("Pow", base, to.constant("beta", layer.beta), to="power")
    to.call("Div", x, power)


def _pool(operator: str, **more: Any) -> Write:
    def write(to: Operators, layer: layers.MaxPool, inputs: tuple[str, ...]) -> None:
        to.call(
            operator,
            *inputs,
            kernel_shape=layer.kernel,
            strides=layer.stride,
            pads=_both_sides(layer.padding),
            ceil_mode=int(layer.ceil_mode),
            **more,
        )

    return write


def _global_average_pool(to: Operators, layer: Layer, inputs: tuple[str, ...]) -> None:
    if len(to.shapes[0]) == 2:
        to.call("ReduceMean", *inputs, to.integers("axes", 1), keepdims=0)
        return
    to.call("Flatten", to.call("GlobalAveragePool", *inputs, to="mean"), axis=1)


def _plain(operator: str, **attributes: Any) -> Write:
    """A layer that is one operator without arrays."""

    def write(to: Operators, layer: Layer, inputs: tuple[str, ...]) -> None:
        to.call(operator, *inputs, **attributes)

    return write


def _layer_norm(to: Operators, layer: layers.LayerNorm, inputs: tuple[str, ...]) -> None:
    arrays = to.weight("weight"), to.weight("bias")
    to.call("LayerNormalization", *inputs, *arrays, axis=-1, epsilon=layer.epsilon)


def _gelu(to: Operators, layer: layers.GELU, inputs: tuple[str, ...]) -> None:
    to.call("Gelu", *inputs, approximate="none" if layer.form == "erf" else "tanh")


def _attention(to: Operators, layer: layers.Attention, inputs: tuple[str, ...]) -> None:
    length, features = to.shape
    width = features // layer.heads
    mask = ""
    if layer.documents:
        *given, mask = inputs
        inputs = tuple(given)
    if len(inputs) == 3:
        shared = layer.key_value_heads or layer.heads
        queries, keys, values = (
            to.transpose(
                to.reshape(x, 0, length, heads, width, to=f"{part}.heads"), 0, 2, 1, 3, to=part
            )
            for part, x, heads in zip(
                ("queries", "keys", "values"), inputs, (layer.heads, shared, shared), strict=True
            )
        )
        if shared != layer.heads:
            every = np.repeat(np.arange(shared), layer.heads // shared)
            which = to.constant("heads.index", every, np.int64)
            keys = to.call("Gather", keys, which, to="keys.every", axis=1)
            values = to.call("Gather", values, which, to="values.every", axis=1)
    else:
        heads = to.reshape(inputs[0], 0, length, 3, layer.heads, width, to="heads")
        separate = to.transpose(heads, 2, 0, 3, 1, 4, to="separate")
        queries, keys, values = (
            to.call("Gather", separate, to.constant(f"{part}.index", n, np.int64), to=part, axis=0)
            for n, part in enumerate(("queries", "keys", "values"))
        )
    columns = to.transpose(keys, 0, 1, 3, 2, to="keys.transposed")
    scaled = to.call("Mul", queries, to.constant("scale", width**-0.5), to="queries.scaled")
    scores = to.call("MatMul", scaled, columns, to="scores")
    if layer.documents:
        seen = to.call("Unsqueeze", mask, to.integers("mask.heads", 1), to="mask.every")
        hidden = to.constant("hidden", -np.inf)
        scores = to.call("Where", seen, scores, hidden, to="scores.masked")
    elif layer.causal:
        later = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        scores = to.call("Add", scores, to.constant("mask", later), to="scores.masked")
    shares = to.call("Softmax", scores, to="shares", axis=-1)
    mixed = to.transpose(to.call("MatMul", shares, values, to="mixed"), 0, 2, 1, 3, to="positions")
    to.reshape(mixed, 0, length, features)


def _tokens(to: Operators, layer: layers.Tokens, inputs: tuple[str, ...]) -> None:
    length, channels = to.shape
    to.transpose(to.reshape(inputs[0], 0, channels, length, to="rows"), 0, 2, 1)


def _embedding(to: Operators, layer: layers.Embedding, inputs: tuple[str, ...]) -> None:
    to.call("Gather", to.weight("weight"), *inputs, axis=0)


def _embedding_bags(to: Operators, layer: layers.EmbeddingBags, inputs: tuple[str, ...]) -> None:
    own = to.reshape(inputs[0], 0, len(layer.rows), layer.indices, to="indices")
    sums = []
    for n in range(1, len(layer.rows) + 1):
        number = to.constant(f"number{n}", n - 1, np.int64)
        indices = to.call("Gather", own, number, to=f"indices{n}", axis=1)
        rows = to.call("Gather", to.weight(f"table{n}"), indices, to=f"rows{n}", axis=0)
        sums.append(
            to.call("ReduceSum", rows, to.integers(f"axis{n}", 1), to=f"sum{n}", keepdims=1)
        )
    to.call("Concat", *sums, axis=1)


def _dot_interaction(to: Operators, layer: layers.DotInteraction, inputs: tuple[str, ...]) -> None:
    x, vectors = inputs
    first = to.call("Unsqueeze", x, to.integers("second", 1), to="first")
    both = to.call("Concat", first, vectors, to="vectors", axis=1)
    products = to.call("MatMul", both, to.transpose(both, 0, 2, 1, to="columns"), to="products")
    n = 1 + to.shapes[1][0]
    rows, columns = np.tril_indices(n, -1)
    flat = to.call("Flatten", products, to="flat", axis=1)
    places = to.integers("places", *(rows * n + columns))
    used = to.call("Gather", flat, places, to="used", axis=1)
    to.call("Concat", x, used, axis=1)


def _binary_scores(to: Operators, layer: Layer, inputs: tuple[str, ...]) -> None:
    zero = to.call("Sub", *inputs, *inputs, to="zero")
    to.call("Concat", zero, *inputs, axis=1)


def _class_token(to: Operators, layer: layers.ClassToken, inputs: tuple[str, ...]) -> None:
    samples = to.call("Shape", *inputs, to="samples", start=0, end=1)
    rest = to.integers("rest", 1, to.shape[1])
    shape = to.call("Concat", samples, rest, to="token.shape", axis=0)
    token = to.call("Expand", to.weight("token"), shape, to="token")
    to.call("Concat", token, *inputs, axis=1)


def _position_embedding(
    to: Operators, layer: layers.PositionEmbedding, inputs: tuple[str, ...]
) -> None:
    weight = to.weight("weight")
    if layer.documents:
        x, places = inputs
        first = to.constant("first", layer.first, np.int64)
        own = to.call("Add", places, first, to="rows")
        to.call("Add", x, to.call("Gather", weight, own, to="added", axis=0))
        return
    if layer.rows:
        rows = np.arange(layer.first, layer.first + (1 if layer.shared else to.shape[0]))
        weight = to.call("Gather", weight, to.integers("rows", *rows), to="added", axis=0)
    to.call("Add", *inputs, weight)


def _select_position(to: Operators, layer: layers.SelectPosition, inputs: tuple[str, ...]) -> None:
    to.call("Gather", *inputs, to.constant("position", layer.position, np.int64), axis=1)


_GATES = {layers.LSTM: (0, 3, 1, 2), layers.GRU: (1, 0, 2), layers.RNN: (0,)}
"""The order of ONNX's gates (i, o, f, g; z, r, n) among ours (i, f, g, o; r, z, n)."""


def _recurrence(to: Operators, layer: layers.Recurrence, inputs: tuple[str, ...]) -> None:
    def reordered(role: str) -> NDArray[np.float32]:
        """Of every direction."""
        found = []
        for prefix in layer.prefixes:
            array = to.array(prefix + role)
            gates = array.reshape(layer.gates, layer.hidden, *array.shape[1:])
            found.append(gates[list(_GATES[type(layer)])].reshape(array.shape))
        return np.stack(found)

    biases = np.concatenate([reordered("bias"), reordered("hidden_bias")], axis=1)
    arrays = (
        to.constant("weight", reordered("weight")),
        to.constant("hidden_weight", reordered("hidden_weight")),
        to.constant("biases", biases),
    )
    begin = []
    if len(inputs) == 2:
        first = to.call("Unsqueeze", inputs[1], to.integers("begin.axis", 0), to="begin")
        begin = ["", first]
    settings: dict[str, Any] = {"hidden_size": layer.hidden}
    if layer.ways == 2:
        settings["direction"] = "bidirectional"
    if isinstance(layer, layers.GRU):
        settings["linear_before_reset"] = 1
    if isinstance(layer, layers.RNN) and layer.function == "relu":
        settings["activations"] = ["Relu"] * layer.ways
    by_position = to.transpose(inputs[0], 1, 0, 2, to="by_position")
    kind = type(layer).__name__
    found = to.call(kind, by_position, *arrays, *begin, to="recurrence", **settings)
    if layer.directions == "concat":  # (length, directions, batch, hidden)
        to.reshape(to.transpose(found, 2, 0, 1, 3, to="by_sample"), 0, *to.shape)
        return
    axis = to.integers("direction.axis", 1)
    if layer.directions == "sum":
        one_way = to.call("ReduceSum", found, axis, to="one_way", keepdims=0)
    else:
        one_way = to.call("Squeeze", found, axis, to="one_way")
    to.transpose(one_way, 1, 0, 2)


def _input_feeding_decoder(
    to: Operators, layer: layers.InputFeedingDecoder, inputs: tuple[str, ...]
) -> None:
    """Written out position by position: an LSTM of one step for each."""
    words, begin, memory = inputs
    order, hidden = list(_GATES[layers.LSTM]), layer.hidden

    def reordered(role: str) -> NDArray[np.float32]:
        array = to.array(role)
        return array.reshape(4, hidden, *array.shape[1:])[order].reshape(1, *array.shape)

    cells = []
    for prefix in layer.prefixes:
        biases = [reordered(prefix + role) for role in ("bias", "hidden_bias")]
        cells.append(
            (
                to.constant(f"{prefix}weight", reordered(f"{prefix}weight")),
                to.constant(f"{prefix}hidden_weight", reordered(f"{prefix}hidden_weight")),
                to.constant(f"{prefix}biases", np.concatenate(biases, axis=1)),
            )
        )
    query = to.constant("attention_weight", to.array("attention_weight").T)
    readout = to.constant("readout_weight", to.array("readout_weight").T)
    first, second = to.integers("first.axis", 0), to.integers("second.axis", 1)
    zero = to.call("Mul", begin, to.constant("zero", 0.0), to="zeros")
    cell = to.call("Unsqueeze", zero, first, to="cell")
    states = [(to.call("Unsqueeze", begin, first, to="begin"), cell)] * layer.depth
    fed = to.call("Unsqueeze", zero, second, to="nothing")
    columns = to.transpose(memory, 0, 2, 1, to="memory.transposed")
    found = []
    for t in range(to.shape[0]):
        word = to.call("Gather", words, to.integers(f"position{t}", t), to=f"word{t}", axis=1)
        x = to.call("Concat", word, fed, to=f"fed{t}", axis=2)
        x = to.transpose(x, 1, 0, 2, to=f"fed{t}.by_position")
        for i, arrays in enumerate(cells):
            name = f"lstm{i + 1}.{t}"
            states[i] = to.lstm_step(x, arrays, states[i], name, hidden)
            x = states[i][0]
        last = to.transpose(x, 1, 0, 2, to=f"h{t}")
        asked = to.call("MatMul", last, query, to=f"query{t}")
        scores = to.call("MatMul", asked, columns, to=f"scores{t}")
        shares = to.call("Softmax", scores, to=f"shares{t}", axis=-1)
        mean = to.call("MatMul", shares, memory, to=f"mean{t}")
        both = to.call("Concat", mean, last, to=f"read{t}", axis=2)
        fed = to.call("Tanh", to.call("MatMul", both, readout, to=f"readout{t}"), to=f"output{t}")
        found.append(fed)
    to.call("Concat", *found, axis=1)


def _columns(to: Operators, layer: layers.Columns, inputs: tuple[str, ...]) -> None:
    to.reshape(to.transpose(inputs[0], 0, 3, 1, 2, to="by_column"), 0, *to.shape)


def _pair_sum(to: Operators, layer: Layer, inputs: tuple[str, ...]) -> None:
    queries, keys = inputs
    down = to.call("Unsqueeze", queries, to.integers("queries.axis", 2), to="queries")
    across = to.call("Unsqueeze", keys, to.integers("keys.axis", 1), to="keys")
    to.call("Add", down, across)


def _pair_product(to: Operators, layer: Layer, inputs: tuple[str, ...]) -> None:
    queries, keys = inputs
    columns = to.transpose(keys, 0, 2, 1, to="keys.transposed")
    product = to.call("MatMul", queries, columns, to="product")
    to.call("Unsqueeze", product, to.integers("axis", 3))


def _mix(to: Operators, layer: layers.Mix, inputs: tuple[str, ...]) -> None:
    scores, values = inputs
    plain = to.call("Squeeze", scores, to.integers("axis", 3), to="scores")
    to.call("MatMul", to.call("Softmax", plain, to="shares", axis=-1), values)


def _rms_norm(to: Operators, layer: layers.RMSNorm, inputs: tuple[str, ...]) -> None:
    (x,) = inputs
    squares = to.call("Mul", x, x, to="squares")
    mean = to.call("ReduceMean", squares, to.integers("axes", -1), to="mean", keepdims=1)
    shifted = to.call("Add", mean, to.constant("epsilon", layer.epsilon), to="shifted")
    normalized = to.call("Div", x, to.call("Sqrt", shifted, to="root"), to="normalized")
    to.call("Mul", normalized, to.weight("weight"))


def _rotary_embedding(
    to: Operators, layer: layers.RotaryEmbedding, inputs: tuple[str, ...]
) -> None:
    length, features = to.shape
    size = features // layer.heads
    tables = rotation_tables(length, size, layer.base)
    cosines, sines = (
        to.constant(name, table) for name, table in zip(("cosines", "sines"), tables, strict=True)
    )
    if layer.documents:
        cosines, sines = (
            to.call("Gather", table, inputs[1], to=f"{name}.own", axis=0)
            for name, table in (("cosines", cosines), ("sines", sines))
        )
    heads = to.reshape(inputs[0], 0, length, layer.heads, 2, size // 2, to="heads")
    one, other = (
        to.call("Gather", heads, to.constant(f"{part}.index", n, np.int64), to=part, axis=3)
        for n, part in enumerate(("one", "other"))
    )

    def product(x: str, table: str, part: str) -> str:
        return to.call("Mul", x, table, to=part)

    halves = [
        to.call("Sub", product(one, cosines, "a"), product(other, sines, "b"), to="first_half"),
        to.call("Add", product(other, cosines, "c"), product(one, sines, "d"), to="second_half"),
    ]
    to.reshape(to.call("Concat", *halves, to="turned", axis=-1), 0, length, features)


def _document_mask(to: Operators, layer: layers.DocumentMask, inputs: tuple[str, ...]) -> None:
    length = to.shape[0]
    begins = to.call("Equal", inputs[0], to.constant("first", 0, np.int64), to="begins")
    counts = [to.constant(part, n, np.int64) for n, part in enumerate(("none", "one"))]
    ones = to.call("Where", begins, counts[1], counts[0], to="ones")
    numbers = to.call("CumSum", ones, to.constant("axis", 1, np.int64), to="documents")
    rows, columns = (
        to.call("Unsqueeze", numbers, to.integers(f"{part}.axis", axis), to=part)
        for part, axis in (("rows", 2), ("columns", 1))
    )
    if not layer.causal:
        to.call("Equal", rows, columns)
        return
    same = to.call("Equal", rows, columns, to="same")
    earlier = to.constant("earlier", np.tril(np.ones((length, length))), np.bool_)
    to.call("And", same, earlier)


def _chosen(to: Operators, scores: str, part: str, active: int) -> tuple[str, str]:
    """The largest `active` scores of each position, and which they are."""
    values, indices = to.name(f"{part}largest"), to.name(f"{part}chosen")
    count = to.integers(f"{part}active", active)
    to.operators.append(
        Operator(
            kind="TopK", inputs=(scores, count), outputs=(values, indices), attributes={"axis": -1}
        )
    )
    return values, indices


def _scattered(to: Operators, like: str, indices: str, values: str, part: str) -> str:
    """Zeros of the shape of `like`, with `values` at `indices` of the last axis."""
    zeros = to.call("Sub", like, like, to=f"{part}zeros")
    return to.call("ScatterElements", zeros, indices, values, to=f"{part}scattered", axis=-1)


def _experts(to: Operators, layer: layers.Experts, inputs: tuple[str, ...]) -> None:
    """Every expert computes every position, and the shares of those that are not chosen are 0."""
    x, scores = inputs
    largest, chosen = _chosen(to, scores, "", layer.active)
    shares = to.call("Softmax", largest, to="shares", axis=-1)
    dense = _scattered(to, scores, chosen, shares, "")
    by_expert = to.call(
        "Unsqueeze",
        to.transpose(dense, 0, 2, 1, to="by_expert"),
        to.integers("last", 3),
        to="share",
    )
    rows = to.call("Unsqueeze", x, to.integers("second", 1), to="rows")

    def product(rows: str, role: str, part: str) -> str:
        columns = to.transpose(to.weight(role), 0, 2, 1, to=f"{role}.transposed")
        return to.call("MatMul", rows, columns, to=part)

    gate = product(rows, "gate_weight", "gate")
    silu = to.call("Mul", gate, to.call("Sigmoid", gate, to="sigmoid"), to="silu")
    hidden = to.call("Mul", silu, product(rows, "up_weight", "up"), to="hidden")
    weighted = to.call("Mul", product(hidden, "down_weight", "down"), by_expert, to="weighted")
    to.call("ReduceSum", weighted, to.integers("experts", 1), keepdims=0)


def _load_balance(to: Operators, layer: layers.LoadBalance, inputs: tuple[str, ...]) -> None:
    total = ""
    for n, (scores, (_, experts)) in enumerate(zip(inputs, to.shapes, strict=True)):
        part = f"router{n}."
        largest, chosen = _chosen(to, scores, part, layer.active)
        none = to.call("Sub", largest, largest, to=f"{part}none")
        ones = to.call("Add", none, to.constant(f"{part}one", 1.0), to=f"{part}ones")
        counted = _scattered(to, scores, chosen, ones, part)
        batch = to.integers(f"{part}batch", 0, 1)
        shares = to.call("ReduceMean", counted, batch, to=f"{part}shares", keepdims=1)
        probabilities = to.call("Softmax", scores, to=f"{part}probabilities", axis=-1)
        both = to.call("Mul", probabilities, shares, to=f"{part}products")
        last = to.integers(f"{part}last", -1)
        summed = to.call("ReduceSum", both, last, to=f"{part}sum", keepdims=1)
        factor = to.constant(f"{part}factor", experts / layer.active)
        loss = to.call("Mul", summed, factor, to=f"{part}loss")
        total = to.call("Add", total, loss, to=f"{part}total") if total else loss
    to.call("Identity", total)


def _to_image(to: Operators, layer: layers.ToImage, inputs: tuple[str, ...]) -> None:
    to.reshape(to.transpose(inputs[0], 0, 2, 1, to="columns"), 0, *to.shape)


def _transpose(to: Operators, layer: Layer, inputs: tuple[str, ...]) -> None:
    to.transpose(inputs[0], 0, 2, 1)


def _select_channels(to: Operators, layer: layers.SelectChannels, inputs: tuple[str, ...]) -> None:
    axis = 1 if len(to.shape) == 3 else len(to.shape)
    to.call("Gather", *inputs, to.integers("channels", *layer.channels), axis=axis)


def _pixel_shuffle(to: Operators, layer: layers.PixelShuffle, inputs: tuple[str, ...]) -> None:
    channels, height, width = to.shape
    low = (height // layer.factor, width // layer.factor)
    x = to.reshape(inputs[0], 0, channels, layer.factor, layer.factor, *low, to="squares")
    x = to.transpose(x, 0, 1, 4, 2, 5, 3, to="rows")
    to.reshape(x, 0, *to.shape)


def _multiply(to: Operators, layer: Layer, inputs: tuple[str, ...]) -> None:
    x, y = inputs
    if len(to.shapes[1]) < len(to.shapes[0]):
        y = to.call("Unsqueeze", y, to.integers("axes", 2, 3), to="factors")
    to.call("Mul", x, y)


def _scale(to: Operators, layer: Layer, inputs: tuple[str, ...]) -> None:
    weight = to.weight("weight")
    if len(to.shape) == 3:
        weight = to.call("Unsqueeze", weight, to.integers("axes", 1, 2), to="factors")
    to.call("Mul", *inputs, weight)


def _activation(to: Operators, layer: layers.Activation, inputs: tuple[str, ...]) -> None:
    (x,) = inputs
    match layer.function:
        case "silu":
            to.call("Mul", x, to.call("Sigmoid", x, to="sigmoid"))
        case "quick-gelu":
            scaled = to.call("Mul", x, to.constant("factor", 1.702), to="scaled")
            to.call("Mul", x, to.call("Sigmoid", scaled, to="sigmoid"))
        case "mish":
            to.call("Mish", x)
        case "hard-sigmoid":
            to.call("HardSigmoid", x, alpha=1 / 6, beta=0.5)
        case "hard-swish":
            to.call("HardSwish", x)
        case "relu6":
            to.call("Clip", x, to.constant("least", 0.0), to.constant("most", 6.0))
        case "leaky-relu":
            to.call("LeakyRelu", x, alpha=layer.slope)
        case "squared-relu":
            positive = to.call("Relu", x, to="positive")
            to.call("Mul", positive, positive)


OPERATORS: dict[type[Layer], Write] = {
    layers.Convolution: _convolution,
    layers.Linear: _linear,
    layers.BatchNorm: _batch_norm,
    layers.LocalResponseNorm: _response_norm,
    layers.ReLU: _plain("Relu"),
    layers.Add: _plain("Add"),
    layers.Concat: _plain("Concat", axis=1),
    layers.Dropout: _plain("Identity"),
    layers.Flatten: _plain("Flatten", axis=1),
    layers.MaxPool: _pool("MaxPool"),
    layers.AveragePool: _pool("AveragePool", count_include_pad=1),
    layers.GlobalAveragePool: _global_average_pool,
    layers.LayerNorm: _layer_norm,
    layers.GELU: _gelu,
    layers.Attention: _attention,
    layers.Tokens: _tokens,
    layers.Embedding: _embedding,
    layers.ClassToken: _class_token,
    layers.PositionEmbedding: _position_embedding,
    layers.SelectPosition: _select_position,
    layers.Tanh: _plain("Tanh"),
    layers.LSTM: _recurrence,
    layers.GRU: _recurrence,
    layers.RNN: _recurrence,
    layers.InputFeedingDecoder: _input_feeding_decoder,
    layers.Columns: _columns,
    layers.PairSum: _pair_sum,
    layers.PairProduct: _pair_product,
    layers.Mix: _mix,
    layers.RMSNorm: _rms_norm,
    layers.RotaryEmbedding: _rotary_embedding,
    layers.Experts: _experts,
    layers.DocumentMask: _document_mask,
    layers.LoadBalance: _load_balance,
    layers.EmbeddingBags: _embedding_bags,
    layers.DotInteraction: _dot_interaction,
    layers.BinaryScores: _binary_scores,
    layers.ToImage: _to_image,
    layers.Transpose: _transpose,
    layers.SelectChannels: _select_channels,
    layers.PixelShuffle: _pixel_shuffle,
    layers.Sigmoid: _plain("Sigmoid"),
    layers.Activation: _activation,
    layers.Multiply: _multiply,
    layers.Scale: _scale,
}
"""Layer type → its operators."""


def write_layer(node: Node, shapes: tuple[Shape, ...], weights: Mapping[str, Array]) -> Operators:
    """The operators and constants of `node`, whose inputs have `shapes`."""
    to = Operators(node=node, shapes=shapes, weights=weights)
    OPERATORS[type(node.layer)](to, node.layer, node.inputs)
    return to
