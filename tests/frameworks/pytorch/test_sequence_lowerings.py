"""Every layer type of sequences against its formula, values and gradients."""

import math

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.pytorch.distributed.sync_batch_norm import synchronized
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.networks import layers as S  # noqa: N812
from cubemesh.networks.builder import NetworkBuilder


def normalized(x, p):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-3) * p["weight"] + p["bias"]


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attended(x, heads, causal):
    """Head by head and query by query."""
    width = x.shape[-1] // 3
    size = width // heads
    heads_out = []
    for head in range(heads):
        q, k, v = (x[..., i * width + head * size :][..., :size] for i in range(3))
        rows = []
        for i in range(x.shape[1]):
            seen = i + 1 if causal else x.shape[1]
            scores = (q[:, i : i + 1] * k[:, :seen]).sum(-1) / math.sqrt(size)
            rows.append((torch.softmax(scores, -1)[..., None] * v[:, :seen]).sum(1))
        heads_out.append(torch.stack(rows, 1))
    return torch.cat(heads_out, -1)


def rotated(x, heads, base):
    """Each pair of features as a complex number, times a number of length 1."""
    size = x.shape[-1] // heads
    one, other = x.unflatten(-1, (heads, 2, size // 2)).unbind(-2)
    angles = torch.outer(
        torch.arange(x.shape[1], dtype=torch.float64),
        base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size),
    )
    turned = torch.complex(one, other) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.stack([turned.real, turned.imag], -2).flatten(-3)


FUNCTIONS = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "quick-gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "mish": lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
    "hard-sigmoid": lambda x: (x / 6 + 0.5).clamp(0, 1),
    "hard-swish": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    "relu6": lambda x: x.clamp(0, 6),
    "leaky-relu": lambda x: torch.where(x < 0, 0.2 * x, x),
    "squared-relu": lambda x: torch.where(x < 0, 0 * x, x * x),
}
IMAGE, SEQUENCE = (6, 3, 4), (5, 12)
CASES = {
    "layer-norm": (S.LayerNorm(epsilon=1e-3), SEQUENCE, normalized),
    "gelu": (S.GELU(), SEQUENCE, lambda x, p: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
    "gelu-tanh": (S.GELU(form="tanh"), SEQUENCE, lambda x, p: tanh_gelu(x)),
    "attention": (S.Attention(heads=2), SEQUENCE, lambda x, p: attended(x, 2, False)),
    "causal": (S.Attention(heads=4, causal=True), SEQUENCE, lambda x, p: attended(x, 4, True)),
    "tokens": (S.Tokens(), IMAGE, lambda x, p: torch.einsum("bchw->bhwc", x).reshape(3, 12, 6)),
    "columns": (
        S.Columns(),
        IMAGE,
        lambda x, p: torch.einsum("bchw->bwch", x).reshape(3, 4, 18),
    ),
    "class-token": (
        S.ClassToken(),
        SEQUENCE,
        lambda x, p: torch.cat([p["token"].repeat(3, 1, 1), x], 1),
    ),
    "position-embedding": (S.PositionEmbedding(), SEQUENCE, lambda x, p: x + p["weight"]),
    "select-position": (S.SelectPosition(position=2), SEQUENCE, lambda x, p: x[:, 2]),
    "rows-of-a-table": (
        S.PositionEmbedding(rows=9, first=3),
        SEQUENCE,
        lambda x, p: x + p["weight"][3:8],
    ),
    "one-row": (
        S.PositionEmbedding(rows=2, first=1, shared=True),
        SEQUENCE,
        lambda x, p: x + p["weight"][1],
    ),
    "rms-norm": (
        S.RMSNorm(epsilon=1e-3),
        SEQUENCE,
        lambda x, p: x / ((x * x).sum(-1, keepdim=True) / 12 + 1e-3) ** 0.5 * p["weight"],
    ),
    "rotary-embedding": (
        S.RotaryEmbedding(heads=2, base=50.0),
        SEQUENCE,
        lambda x, p: rotated(x, 2, 50.0),
    ),
    "to-image": (
        S.ToImage(size=(3, 4)),
        (12, 6),
        lambda x, p: torch.einsum("bhwc->bchw", x.view(3, 3, 4, 6)),
    ),
    "transpose": (S.Transpose(), SEQUENCE, lambda x, p: torch.einsum("blf->bfl", x)),
    "select-channels": (
        S.SelectChannels(channels=(4, 0)),
        IMAGE,
        lambda x, p: torch.stack([x[:, 4], x[:, 0]], 1),
    ),
    "select-features": (
        S.SelectChannels(channels=(4, 0)),
        SEQUENCE,
        lambda x, p: torch.stack([x[..., 4], x[..., 0]], -1),
    ),
    "pixel-shuffle": (
        S.PixelShuffle(),
        (8, 3, 4),
        lambda x, p: torch.einsum("bcijhw->bchiwj", x.view(3, 2, 2, 2, 3, 4)).reshape(3, 2, 6, 8),
    ),
    "sigmoid": (S.Sigmoid(), IMAGE, lambda x, p: 1 / (1 + torch.exp(-x))),
    "scale": (S.Scale(), IMAGE, lambda x, p: torch.einsum("bchw,c->bchw", x, p["weight"])),
    "scale-features": (S.Scale(), SEQUENCE, lambda x, p: x * p["weight"]),
    "mean": (S.GlobalAveragePool(), SEQUENCE, lambda x, p: x.sum(1) / 5),
    **{
        name: (S.Activation(function=name, slope=0.2), SEQUENCE, lambda x, p, f=function: f(x))
        for name, function in FUNCTIONS.items()
    },
}


def test_every_layer_of_sequences_is_compared():
    compared = {type(layer) for layer, *_ in CASES.values()} | {S.Embedding}
    compared |= {S.InputFeedingDecoder}  # in test_sequence_networks.py
    compared |= {S.Tanh, S.LSTM, S.GRU, S.RNN, S.PairSum, S.PairProduct, S.Mix, S.Multiply}  # below
    compared |= {S.Experts, S.LoadBalance, S.DocumentMask}  # in test_experts.py, test_packing.py
    compared |= {S.EmbeddingBags, S.DotInteraction, S.BinaryScores}  # in test_records.py
    assert compared - {S.GlobalAveragePool} == set(S.SEQUENCE_LAYERS.values())


def test_a_gate_multiplies_each_channel():
    image, gate = torch.randn(3, *IMAGE, dtype=torch.float64), torch.rand(3, 6, dtype=torch.float64)
    found, _ = built_of(lambda net, x, y: net.add_layer(S.Multiply(), x, y), x=image, y=gate)
    assert torch.equal(found, torch.einsum("bchw,bc->bchw", image, gate))


def test_separate_queries_keys_and_values_attend_as_packed_ones():
    packed = torch.randn(3, *SEQUENCE, dtype=torch.float64)
    q, k, v = packed.chunk(3, -1)
    layer = S.Attention(heads=2, causal=True)
    found, _ = built_of(lambda net, *x: net.add_layer(layer, *x), q=q, k=k, v=v)
    torch.testing.assert_close(found, attended(packed, 2, True), rtol=1e-9, atol=1e-9)
    grouped = S.Attention(heads=2, key_value_heads=1)
    k, v = k[..., :2], v[..., :2]
    found, _ = built_of(lambda net, *x: net.add_layer(grouped, *x), q=q, k=k, v=v)
    repeated = attended(torch.cat([q, k, k, v, v], -1), 2, False)
    torch.testing.assert_close(found, repeated, rtol=1e-9, atol=1e-9)


def test_dropout_in_training_only():
    """Of whole samples, and of the softmax of an attention."""
    ones = torch.ones(64, 4, 3, dtype=torch.float64)
    layer = S.Dropout(rate=0.5, per_sample=True)
    net = NetworkBuilder("one")
    net.classify(net.add_layer(layer, net.input("x", (4, 3))))
    built = build_modules(net.build(), dtype=torch.float64)
    of_ranks = synchronized(
        built.layers["dropout1"], group=SingleProcessGroup(), norm=False, dropout=True
    )
    for found in (built.training(ones)[0], of_ranks(ones)):
        assert {tuple(sample.unique().tolist()) for sample in found} == {(0.0,), (2.0,)}
    assert torch.equal(built.training.eval()(ones)[0], ones)
    x = torch.randn(3, *SEQUENCE, dtype=torch.float64)
    net = NetworkBuilder("one")
    net.classify(net.add_layer(S.Attention(heads=2, dropout=0.5), net.input("x", SEQUENCE)))
    built = build_modules(net.build(), dtype=torch.float64)
    assert not torch.equal(built.training(x)[0], built.training(x)[0])
    torch.testing.assert_close(built.training.eval()(x)[0], attended(x, 2, False))


def test_an_embedding_returns_the_row_of_each_token():
    net = NetworkBuilder("one")
    net.classify(net.embedding(net.token_input("tokens", 5, 9), 4, name="e"))
    built = build_modules(net.build(), dtype=torch.float64)
    built.load(net.build().draw(0))
    tokens = torch.tensor([[0, 8, 8, 1, 2]])
    (actual,) = built.training(tokens)
    weight = built.parameters["e.weight"]
    assert torch.equal(actual, weight[tokens[0]][None])
    actual.sum().backward()
    assert weight.grad[:, 0].tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("case", CASES)
def test_a_layer_computes_what_it_says(case):
    layer, shape, formula = CASES[case]
    net = NetworkBuilder("one")
    net.classify(net.add_layer(layer, net.input("x", shape), name="layer"))
    network = net.build()
    built = build_modules(network, dtype=torch.float64)
    torch.manual_seed(0)
    with torch.no_grad():
        for array in built.parameters.values():
            array.uniform_(0.5, 1.5)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    roles = {role: built.parameters[n] for role, n in network.nodes[0].parameters.items()}
    leaves = [x, *roles.values()]
    (actual,) = built.training(x)
    expected = formula(x, roles)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert actual.shape[1:] == network.nodes[0].shape
    pull = torch.randn_like(expected)
    gradients = torch.autograd.grad(actual, leaves, pull)
    references = torch.autograd.grad(expected, leaves, pull)
    for gradient, reference in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-9, atol=1e-9)


def built_of(make, change=lambda roles: None, **inputs):
    """What a network of one layer in float64 gives for `inputs`, and its parameters by role, which
    `change` may write over."""
    net = NetworkBuilder("one")
    net.classify(make(net, *(net.input(n, tuple(x.shape[1:])) for n, x in inputs.items())))
    network = net.build()
    built = build_modules(network, dtype=torch.float64)
    built.load(network.draw(0))
    roles = {role: built.parameters[n] for role, n in network.nodes[-1].parameters.items()}
    change(roles)
    (found,) = built.training(*inputs.values())
    assert found.shape[1:] == network.nodes[-1].shape
    return found, roles


def lstm_step(now, back, h, cell):
    i, f, g, o = (now + back).chunk(4, 1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def gru_step(now, back, h, cell):
    (r, z, n), (r_back, z_back, n_back) = now.chunk(3, 1), back.chunk(3, 1)
    z = torch.sigmoid(z + z_back)
    n = torch.tanh(n + torch.sigmoid(r + r_back) * n_back)
    return (1 - z) * n + z * h, cell


RECURRENT = {
    "lstm": (lambda net, *x, **more: net.lstm(x[0], 6, *x[1:], **more), lstm_step),
    "gru": (lambda net, *x, **more: net.gru(x[0], 6, *x[1:], **more), gru_step),
    "rnn": (
        lambda net, *x, **more: net.rnn(x[0], 6, *x[1:], **more),
        lambda now, back, h, cell: (torch.tanh(now + back), cell),
    ),
    "rnn-relu": (
        lambda net, *x, **more: net.rnn(x[0], 6, *x[1:], function="relu", **more),
        lambda now, back, h, cell: ((now + back).clamp(min=0), cell),
    ),
}


def step_by_step(step, x, h, p, prefix=""):
    weight, hidden_weight, bias, hidden_bias = (
        p[prefix + role] for role in ("weight", "hidden_weight", "bias", "hidden_bias")
    )
    cell, outputs = torch.zeros_like(h), []
    for t in range(x.shape[1]):
        now, back = x[:, t] @ weight.T + bias, h @ hidden_weight.T + hidden_bias
        h, cell = step(now, back, h, cell)
        outputs.append(h)
    return torch.stack(outputs, 1)


def with_biases(roles):
    """Biases begin with zero; here they have values of their own."""
    with torch.no_grad():
        for role, array in roles.items():
            if role.endswith("bias"):
                array.uniform_(-0.5, 0.5)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_step_by_step(name, begun):
    make, step = RECURRENT[name]
    x, h = torch.randn(3, 5, 4, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.float64)
    inputs = {"x": x}
    if begun:
        inputs["h"] = h = torch.randn(3, 6, dtype=torch.float64)
    found, p = built_of(make, with_biases, **inputs)
    torch.testing.assert_close(found, step_by_step(step, x, h, p), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("directions", ["concat", "sum"])
@pytest.mark.parametrize("name", RECURRENT)
def test_the_other_direction_reads_from_the_end(name, directions):
    make, step = RECURRENT[name]
    x, h = torch.randn(3, 5, 4, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.float64)
    found, p = built_of(lambda net, x: make(net, x, directions=directions), with_biases, x=x)
    one = step_by_step(step, x, h, p)
    other = step_by_step(step, x.flip(1), h, p, "reverse_").flip(1)
    both = one + other if directions == "sum" else torch.cat([one, other], 2)
    torch.testing.assert_close(found, both, rtol=1e-9, atol=1e-9)


def test_attention_from_its_parts():
    q, k = (torch.randn(2, n, 3, dtype=torch.float64) for n in (4, 5))
    sums, _ = built_of(lambda net, q, k: net.pair_sum(q, k), q=q, k=k)
    products, _ = built_of(lambda net, q, k: net.pair_product(q, k), q=q, k=k)
    assert torch.equal(sums[1, 2, 3], q[1, 2] + k[1, 3])
    torch.testing.assert_close(products[1, 2, 3, 0], q[1, 2] @ k[1, 3])
    mixed, _ = built_of(lambda net, s, v: net.mix(s, v), s=products, v=k)
    shares = torch.softmax(products[1, 2, :, 0], 0)
    torch.testing.assert_close(mixed[1, 2], (shares[:, None] * k[1]).sum(0))
    flat, _ = built_of(lambda net, x: net.tanh(x), x=q)
    torch.testing.assert_close(flat, q.tanh())
