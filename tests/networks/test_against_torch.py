"""Shapes, operations, saved arrays and peak memory, compared with PyTorch's own counts.

The graph is run by a small interpreter, on PyTorch's `meta` device: every array has its size and
its lifetime and nothing is computed, so whole networks at their own image size take no time.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.networks import build, layers
from cubemesh.networks.activation_memory import LABEL_BYTES
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.cost import costs, totals
from cubemesh.networks.memory import forecast
from layer_samples import NARROW

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch.utils.flop_counter import FlopCounterMode

from alive_arrays import Alive, storage

NAMES = [
    *("little-cnn", "cifarnet", "alexnet", "overfeat", "vgg16", "googlenet", "googlenet-paper"),
    *("inception-bn", "inception-v3", "resnet-18", "resnet-50", "vit-b16", "gpt2"),
    *("dlrm-small", "dlrm-benchmark"),
]
SMALLER = ["efficientnet-b0", "convnext-t", "bert-base", "llama3-8b", "unet"]
"""Compared with few or narrow layers, as their deep networks repeat them."""
BATCH = 16


def _lrn(layer, x):
    squares = x * x
    if layer.region == "within":
        mean = F.avg_pool2d(squares, layer.size, stride=1, padding=layer.size // 2)
    else:
        before, after = layer.size // 2, (layer.size - 1) // 2
        squares = F.pad(squares, (0, 0, 0, 0, before, after)).unsqueeze(1)
        mean = F.avg_pool3d(squares, (layer.size, 1, 1), stride=1).squeeze(1)
    return x / (mean * layer.alpha + layer.bias) ** layer.beta


def _attention(layer, x, *others, fused=True):
    if others:
        shared = layer.key_value_heads or layer.heads
        q, k, v = (
            part.unflatten(2, (heads, -1)).transpose(1, 2)
            for part, heads in zip((x, *others), (layer.heads, shared, shared), strict=True)
        )
        k, v = (part.repeat_interleave(layer.heads // shared, 1) for part in (k, v))
    else:
        q, k, v = x.unflatten(2, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    if fused and x.is_meta:  # as on a CPU or GPU, whose kernels keep no score
        fused_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        y, _ = fused_attention(q, k, v, 0.0, layer.causal)
    else:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=layer.causal)
    return y.transpose(1, 2).flatten(2)


def _rotated(layer, x):
    one, other = x.unflatten(2, (layer.heads, 2, -1)).unbind(3)
    angle = torch.zeros((), device=x.device)
    turned = one * angle - other * angle, other * angle + one * angle
    return torch.stack(turned, 3).flatten(2)


def _dropout(layer, x):
    if layer.per_sample:
        return x * torch.bernoulli(torch.ones(len(x), *(1,) * (x.dim() - 1), device=x.device))
    return torch.native_dropout(x, layer.rate, True)[0]


def _per_channel(x, y):
    return y[:, :, None, None] if y.dim() < x.dim() else y


def _with_token(x, token):
    return torch.cat([token.expand(len(x), 1, -1), x], 1)


def _bags(layer, own, x):
    indices = x.unflatten(1, (len(layer.rows), layer.indices)).unbind(1)
    if layer.indices == 1:
        found = [F.embedding(i[:, 0], own[f"table{n}"]) for n, i in enumerate(indices, 1)]
    else:
        found = [F.embedding_bag(i, own[f"table{n}"], mode="sum") for n, i in enumerate(indices, 1)]
    return torch.stack(found, 1)


def _interaction(x, vectors):
    both = torch.cat([x[:, None], vectors], 1)
    products = both @ both.transpose(1, 2)
    rows, columns = torch.tril_indices(both.shape[1], both.shape[1], -1, device=x.device)
    places = rows * both.shape[1] + columns
    return torch.cat([x, products.flatten(1).index_select(1, places)], 1)


LOWER = {
    layers.Convolution: lambda n, p, x: F.conv2d(
        x, p["weight"], p.get("bias"), n.stride, n.padding, n.dilation, n.groups
    ),
    layers.Linear: lambda n, p, x: F.linear(x, p["weight"], p.get("bias")),
    layers.BatchNorm: lambda n, p, x: F.batch_norm(
        x, p["running_mean"], p["running_variance"], p["weight"], p["bias"], True, n.momentum
    ),
    layers.LocalResponseNorm: lambda n, p, x: _lrn(n, x),
    layers.ReLU: lambda n, p, x: torch.relu(x),
    layers.Add: lambda n, p, x, y: x + y,
    layers.Concat: lambda n, p, *values: torch.cat(values, 1),
    layers.Dropout: lambda n, p, x: _dropout(n, x),
    layers.Flatten: lambda n, p, x: x.flatten(1),
    layers.MaxPool: lambda n, p, x: F.max_pool2d(x, n.kernel, n.stride, n.padding, 1, n.ceil_mode),
    layers.AveragePool: lambda n, p, x: F.avg_pool2d(x, n.kernel, n.stride, n.padding, n.ceil_mode),
    layers.GlobalAveragePool: lambda n, p, x: x.mean((2, 3)),
    layers.RMSNorm: lambda n, p, x: F.rms_norm(x, x.shape[-1:], p["weight"], n.epsilon),
    layers.RotaryEmbedding: lambda n, p, x: _rotated(n, x),
    layers.Activation: lambda n, p, x: F.silu(x),
    layers.Sigmoid: lambda n, p, x: torch.sigmoid(x),
    layers.Multiply: lambda n, p, x, y: x * _per_channel(x, y),
    layers.PixelShuffle: lambda n, p, x: F.pixel_shuffle(x, n.factor),
    layers.Scale: lambda n, p, x: x * p["weight"][:, None, None],
    layers.ToImage: lambda n, p, x: x.transpose(1, 2).unflatten(2, n.size),
    layers.LayerNorm: lambda n, p, x: F.layer_norm(
        x, x.shape[-1:], p["weight"], p["bias"], n.epsilon
    ),
    layers.Embedding: lambda n, p, x: F.embedding(x, p["weight"]),
    layers.EmbeddingBags: lambda n, p, x: _bags(n, p, x),
    layers.DotInteraction: lambda n, p, x, vectors: _interaction(x, vectors),
    layers.BinaryScores: lambda n, p, x: F.pad(x, (1, 0)),
    layers.GELU: lambda n, p, x: F.gelu(x),
    layers.Attention: lambda n, p, *x: _attention(n, *x),
    layers.Tokens: lambda n, p, x: x.flatten(2).transpose(1, 2),
    layers.ClassToken: lambda n, p, x: _with_token(x, p["token"]),
    layers.PositionEmbedding: lambda n, p, x: x + p["weight"][: 1 if n.shared else x.shape[1]],
    layers.SelectPosition: lambda n, p, x: x[:, n.position],
}


def network_of(name):
    if name in SMALLER:
        return NARROW[name]() if name in NARROW else build(name, 32, 10)
    return build(name)


class Interpreted:
    """A network on the meta device by default; values are dropped after their last
    reader."""

    def __init__(self, network, device="meta"):
        self.network = network
        self.device = device
        self.arrays = {
            name: torch.zeros(spec.shape, device=device, requires_grad=name in network.parameters)
            for name, spec in {**network.parameters, **network.state}.items()
        }

    def loss(self, batch):
        network = self.network
        kinds = {"float": torch.float, "integer": torch.long}
        values = {
            i.name: torch.zeros(batch, *i.shape, dtype=kinds[i.dtype], device=self.device)
            for i in network.inputs
        }
        shape = (batch * math.prod(network.targets[0].shape),)
        labels = torch.zeros(shape, dtype=torch.long, device=self.device)
        last_reader = {value: n.name for n in network.nodes for value in n.inputs}
        for node in network.nodes:
            own = {role: self.arrays[name] for role, name in (node.parameters | node.state).items()}
            inputs = [values[i] for i in node.inputs]
            values[node.name] = LOWER[type(node.layer)](node.layer, own, *inputs)
            assert values[node.name].shape[1:] == node.shape, node.name
            del inputs
            for value in node.inputs:
                if last_reader[value] == node.name:
                    values.pop(value, None)
        heads = [(h.weight, values.pop(h.value)) for h in network.heads]
        return sum(
            weight * F.cross_entropy(scores.flatten(0, -2), labels) for weight, scores in heads
        )

    def saved_bytes(self, batch):
        """Bytes of all storages autograd saves in a forward pass, parameters and state left out."""
        own = {storage(a)._cdata for a in self.arrays.values()}
        saved = {}

        def pack(tensor):
            saved[storage(tensor)._cdata] = tensor  # referenced, so that no address is reused
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = self.loss(batch)
        assert loss.requires_grad
        return sum(storage(t).nbytes() for key, t in saved.items() if key not in own)


@pytest.mark.parametrize("name", [*NAMES, *SMALLER])
def test_matrix_operations_agree_with_the_flop_counter(name, monkeypatch):
    network = network_of(name)
    # The counter knows the CPU's kernel not at all, and of GPUs' counts what they compute twice.
    unfused = partial(_attention, fused=False)
    monkeypatch.setitem(LOWER, layers.Attention, lambda n, p, *x: unfused(n, *x))
    model, cost = Interpreted(network), totals(network, batch=2)
    with FlopCounterMode(display=False) as forward:
        loss = model.loss(2)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert cost.forward.matrix_flops == pytest.approx(forward.get_total_flops(), rel=0.001)
    if not any(getattr(node.layer, "groups", 1) > 1 for node in network.nodes):
        # Of a convolution in groups the counter takes a weight gradient for one of all channels.
        assert cost.backward.matrix_flops == pytest.approx(backward.get_total_flops(), rel=0.001)


@pytest.mark.parametrize("name", [*NAMES, "efficientnet-b0", "convnext-t", "bert-base", "unet"])
def test_saved_bytes_agree_with_what_autograd_saves(name):
    network = network_of(name)
    fed_bytes = forecast(network, BATCH).input_bytes
    found = Interpreted(network).saved_bytes(BATCH) - fed_bytes
    assert totals(network, BATCH).forward.saved_bytes == pytest.approx(found, rel=0.001)


@pytest.mark.parametrize("name", ["little-cnn", "cifarnet", "googlenet", "resnet-18"])
def test_saved_bytes_agree_with_what_autograd_saves_in_mixed_precision(name):
    network = build(name, image_size=32)
    with torch.autocast("cpu", torch.bfloat16):
        found = Interpreted(network, "cpu").saved_bytes(4) - 4 * LABEL_BYTES
    products = (layers.Convolution, layers.Linear)
    multiplied = [n for n in network.nodes if isinstance(n.layer, products)]
    names = {p for node in multiplied for p in node.parameters.values()}
    # Autograd saves the narrow copies of the weights as well.
    copies = 2 * sum(math.prod(network.parameters[name].shape) for name in names)
    saved_bytes = totals(network, 4, "bf16").forward.saved_bytes
    assert saved_bytes + copies == pytest.approx(found, rel=0.005)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        *((name, 16) for name in NAMES),
        *((name, 1) for name in ("alexnet", "googlenet", "resnet-18", "gpt2", "dlrm-benchmark")),
        *(("efficientnet-b0", 16), ("convnext-t", 16), ("bert-base", 16), ("unet", 16)),
    ],
)
def test_peak_agrees_with_the_arrays_alive_in_a_step(name, batch):
    network = network_of(name)
    model = Interpreted(network)
    with Alive(model.arrays.values()) as alive:
        model.loss(batch).backward()
    expected = forecast(network, batch)
    standing = expected.weight_bytes + expected.optimizer_bytes
    # Response normalization is many operations, with temporaries that are not forecast.
    tolerance = 0.1 if name == "cifarnet" else 0.005 if name in SMALLER else 0.001
    assert expected.total_bytes - standing == pytest.approx(alive.peak, rel=tolerance)


windows = st.tuples(
    st.integers(1, 40), st.integers(1, 7), st.integers(1, 5), st.integers(0, 3), st.booleans()
)


@settings(max_examples=200, deadline=None)
@given(windows)
def test_pooling_windows_are_those_of_torch(window):
    size, kernel, stride, padding, ceil_mode = window
    padding = min(padding, kernel // 2)
    layer = layers.MaxPool(
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(padding, padding),
        ceil_mode=ceil_mode,
    )
    if size + 2 * padding < kernel:
        with pytest.raises(UsageError, match="does not fit"):
            layer.output_shape((2, size, size))
    else:
        x = torch.empty(1, 2, size, size, device="meta")
        expected = F.max_pool2d(x, kernel, stride, padding, 1, ceil_mode)
        assert layer.output_shape((2, size, size)) == expected.shape[1:]


@settings(max_examples=100, deadline=None)
@given(
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    kernel=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.sampled_from([1, 2, 4]),
)
def test_convolution_shapes_and_operations_are_those_of_torch(
    size, kernel, stride, padding, dilation, groups
):
    net = NetworkBuilder("one")
    x = net.input("image", (4, *size))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if any(s + 2 * p < r for s, r, p in zip(size, reach, padding, strict=True)):
        with pytest.raises(UsageError, match="does not fit"):
            net.conv(x, 8, kernel=kernel, padding=padding, dilation=dilation)
        return
    x = net.conv(
        x, 8, kernel=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    net.classify(net.flatten(x))
    network = net.build()
    with FlopCounterMode(display=False) as counter:
        Interpreted(network).loss(2)  # asserts the shape of every value
    assert totals(network, batch=2).forward.matrix_flops == counter.get_total_flops()


@pytest.mark.parametrize("directions", ["forward", "concat", "sum"])
@pytest.mark.parametrize("kind", [layers.GRU, layers.RNN])
def test_operations_and_parameters_of_recurrent_layers_are_those_of_torch(kind, directions):
    """Of PyTorch's own modules, whose steps the counter sees on a CPU; an LSTM there is one
    operator."""
    net = NetworkBuilder("one")
    layer = kind(hidden=6, directions=directions)
    net.classify(net.add_layer(layer, net.input("x", (5, 4)), name="layer"))
    network = net.build()
    bidirectional = directions != "forward"
    module = getattr(torch.nn, kind.__name__)(4, 6, batch_first=True, bidirectional=bidirectional)
    assert network.parameter_count == sum(p.numel() for p in module.parameters())
    x = torch.rand(2, 5, 4, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        y, _ = module(x)
    cost = costs(network, batch=2)["layer"]
    assert cost.forward.matrix_flops == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    # The gradient of the first h, which is zero and no parameter, is not computed.
    unneeded = 2 * 2 * layer.ways * layer.gates * 6 * 6
    assert 0 <= cost.weight_gradient.matrix_flops * 2 - counter.get_total_flops() <= 2 * unneeded
