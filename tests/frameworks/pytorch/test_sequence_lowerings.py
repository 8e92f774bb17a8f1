"""Every layer type of sequences against its formula, values and gradients."""

import math

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.pytorch.module import build_modules  # noqa: E402
from cubemesh.networks import sequence_layers as S  # noqa: E402, N812
from cubemesh.networks.sequence_builder import SequenceBuilder  # noqa: E402


def normalised(x, p):
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


IMAGE, SEQUENCE = (6, 3, 4), (5, 12)
CASES = {
    "layer-norm": (S.LayerNorm(epsilon=1e-3), SEQUENCE, normalised),
    "gelu": (S.GELU(), SEQUENCE, lambda x, p: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
    "gelu-tanh": (S.GELU(form="tanh"), SEQUENCE, lambda x, p: tanh_gelu(x)),
    "attention": (S.Attention(heads=2), SEQUENCE, lambda x, p: attended(x, 2, False)),
    "causal": (S.Attention(heads=4, causal=True), SEQUENCE, lambda x, p: attended(x, 4, True)),
    "tokens": (S.Tokens(), IMAGE, lambda x, p: torch.einsum("bchw->bhwc", x).reshape(3, 12, 6)),
    "class-token": (
        S.ClassToken(),
        SEQUENCE,
        lambda x, p: torch.cat([p["token"].repeat(3, 1, 1), x], 1),
    ),
    "position-embedding": (S.PositionEmbedding(), SEQUENCE, lambda x, p: x + p["weight"]),
    "select-position": (S.SelectPosition(position=2), SEQUENCE, lambda x, p: x[:, 2]),
}


def test_every_layer_of_sequences_is_compared():
    assert {type(layer) for layer, *_ in CASES.values()} == set(S.SEQUENCE_LAYERS.values())


@pytest.mark.parametrize("case", CASES)
def test_a_layer_computes_what_it_says(case):
    layer, shape, formula = CASES[case]
    net = SequenceBuilder("one")
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
