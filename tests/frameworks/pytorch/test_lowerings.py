"""Every layer type against what PyTorch's functions say it is, values and gradients."""

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from cubemesh.frameworks.pytorch.lowerings import LOWERINGS, AveragePool, may_overwrite
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.networks import layers as L  # noqa: N812
from cubemesh.networks.builder import NetworkBuilder


def across(x, layer):
    sums = torch.zeros_like(x)
    for offset in range(-(layer.size // 2), (layer.size - 1) // 2 + 1):
        for channel in range(x.shape[1]):
            if 0 <= channel + offset < x.shape[1]:
                sums[:, channel] += x[:, channel + offset] ** 2
    return x / (layer.bias + layer.alpha * sums / layer.size) ** layer.beta


def within(x, layer):
    before, after = layer.size // 2, (layer.size - 1) // 2
    squares = F.pad(x**2, (before, after, before, after))
    height, width = x.shape[2:]
    sums = sum(
        squares[:, :, i : i + height, j : j + width]
        for i in range(layer.size)
        for j in range(layer.size)
    )
    return x / (layer.bias + layer.alpha * sums / layer.size**2) ** layer.beta


def normalized(x, p, layer):
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    weight, bias = (p[r][:, None, None] for r in ("weight", "bias"))
    return (x - mean) / torch.sqrt(variance + layer.epsilon) * weight + bias


def spread(weight, apart):
    """A kernel with zeros in the gaps between its cells."""
    down, across = ((n - 1) * d + 1 for n, d in zip(weight.shape[2:], apart, strict=True))
    filled = weight.new_zeros(*weight.shape[:2], down, across)
    filled[:, :, :: apart[0], :: apart[1]] = weight
    return filled


CONV = L.Convolution(filters=6, kernel=(3, 2), stride=(2, 1), padding=(1, 0), groups=2)
NORM = L.BatchNorm(epsilon=1e-3)
ACROSS = L.LocalResponseNorm(size=3, alpha=0.3, beta=0.75, bias=2.0)
ACROSS_EVEN = L.LocalResponseNorm(size=4, alpha=0.3, beta=0.5)
WITHIN = L.LocalResponseNorm(size=3, alpha=0.3, beta=0.75, region="within")
WITHIN_EVEN = L.LocalResponseNorm(size=4, alpha=0.3, beta=0.75, bias=2.0, region="within")
MAX = L.MaxPool(kernel=(3, 3), stride=(2, 2), padding=(1, 1), ceil_mode=True)
MEAN = L.AveragePool(kernel=(3, 2), stride=(2, 2), padding=(1, 0), ceil_mode=True)

CASES = {
    "convolution": (CONV, lambda x, p: F.conv2d(x, p["weight"], p["bias"], (2, 1), (1, 0), 1, 2)),
    "dilated": (
        L.Convolution(filters=6, kernel=(3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 3)),
        lambda x, p: F.conv2d(x, spread(p["weight"], (2, 3)), p["bias"], (2, 1), (2, 1)),
    ),
    "no-bias": (
        L.Convolution(filters=2, kernel=(1, 1), bias=False),
        lambda x, p: torch.einsum("bchw,oc->bohw", x, p["weight"][:, :, 0, 0]),
    ),
    "linear": (L.Linear(features=5), lambda x, p: x @ p["weight"].T + p["bias"]),
    "batch-norm": (NORM, lambda x, p: normalized(x, p, NORM)),
    "across": (ACROSS, lambda x, p: across(x, ACROSS)),
    "across-even": (ACROSS_EVEN, lambda x, p: across(x, ACROSS_EVEN)),
    "within": (WITHIN, lambda x, p: within(x, WITHIN)),
    "within-even": (WITHIN_EVEN, lambda x, p: within(x, WITHIN_EVEN)),
    "relu": (L.ReLU(), lambda x, p: x * (x > 0)),
    "add": (L.Add(), lambda x, p: 2 * x),
    "concat": (L.Concat(), lambda x, p: x.repeat(1, 2, 1, 1)),
    "flatten": (L.Flatten(), lambda x, p: x.reshape(len(x), -1)),
    "max-pool": (MAX, lambda x, p: F.max_pool2d(x, 3, 2, 1, 1, True)),
    "average-pool": (MEAN, lambda x, p: F.avg_pool2d(x, (3, 2), 2, (1, 0), True, True)),
    "global-average-pool": (L.GlobalAveragePool(), lambda x, p: x.sum((2, 3)) / (7 * 8)),
}


def test_the_table_has_a_line_for_every_layer():
    assert set(LOWERINGS) == set(L.ALL_LAYERS.values())
    compared = {type(layer) for layer, _ in CASES.values()} | {L.Dropout}  # in test_module.py
    assert compared == set(L.LAYERS.values())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", CASES)
def test_a_layer_computes_what_it_says(case, layout):
    layer, formula = CASES[case]
    net = NetworkBuilder("one")
    image = net.input("image", (4, 7, 8))
    y = net.add_layer(layer, *([image] * (2 if case in ("add", "concat") else 1)), name="layer")
    net.classify(y)
    network = net.build()
    built = build_modules(network, dtype=torch.float64, memory_format=layout)
    torch.manual_seed(0)
    with torch.no_grad():
        for array in (*built.parameters.values(), *built.state.values()):
            array.uniform_(0.5, 1.5)
    x = torch.randn(3, 4, 7, 8, dtype=torch.float64, requires_grad=True)
    roles = {role: built.parameters[n] for role, n in network.nodes[0].parameters.items()}
    leaves = [x, *roles.values()]
    (actual,) = built.training(x.contiguous(memory_format=layout))
    expected = formula(x, roles)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert actual.shape[1:] == network.nodes[0].shape
    pull = torch.randn_like(expected)
    gradients = torch.autograd.grad(actual, leaves, pull)
    references = torch.autograd.grad(expected, leaves, pull)
    for gradient, reference in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-9, atol=1e-9)


def test_running_statistics_are_a_moving_average():
    net = NetworkBuilder("norm")
    net.classify(net.batch_norm(net.input("image", (4, 7, 8)), momentum=0.3, name="bn"))
    network = net.build()
    built = build_modules(network, dtype=torch.float64)
    built.load(network.draw(0))
    x = torch.randn(3, 4, 7, 8, dtype=torch.float64)
    built.training(x)
    mean, variance = (built.state[f"bn.running_{what}"] for what in ("mean", "variance"))
    torch.testing.assert_close(mean, 0.3 * x.mean((0, 2, 3)))
    torch.testing.assert_close(variance, 0.7 + 0.3 * x.var((0, 2, 3), unbiased=True))
    built.training.eval()
    (y,) = built.evaluation(x)
    shape = (-1, 1, 1)
    expected = (x - mean.view(shape)) / torch.sqrt(variance.view(shape) + 1e-5)
    torch.testing.assert_close(y, expected)


def test_features_are_normalized_too():
    net = NetworkBuilder("norm")
    net.classify(net.batch_norm(net.linear(net.input("image", (6,)), 5)))
    network = net.build()
    built = build_modules(network)
    built.load(network.draw(0))
    (y,) = built.training(torch.randn(50, 6))
    torch.testing.assert_close(y.mean(0), torch.zeros(5), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), ((3, 5), 2, (0, 2))])
def test_average_pooling_with_its_padding_as_an_operation(kernel, stride, padding):
    pool = AveragePool(kernel, stride, padding)
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64).to(memory_format=torch.channels_last)
    x.requires_grad_()
    ours, want = pool.padded(x), pool(x)
    torch.testing.assert_close(ours, want)
    slope = torch.randn_like(want)
    torch.testing.assert_close(
        *(torch.autograd.grad(y, x, slope) for y in (ours, want)), rtol=1e-12, atol=1e-14
    )


def test_in_place_only_where_the_input_has_no_other_reader():
    net = NetworkBuilder("places")
    image = net.input("image", (4, 8, 8))
    first = net.relu(image, name="reads-the-input")
    conv = net.conv(first, 4, kernel=1)
    once = net.relu(conv, name="after-convolution")
    norm = net.batch_norm(net.conv(once, 4, kernel=1))
    total = net.add(norm, once, name="sum")
    again = net.relu(total, name="after-sum")
    pool = net.relu(net.max_pool(again, 2), name="after-pool")
    flat = net.flatten(pool)
    relu = net.relu(flat, name="after-view")
    both = net.concat(net.linear(relu, 5), net.linear(relu, 5))
    relu = net.relu(both, name="after-concat")
    shared = net.linear(relu, 10)
    net.relu(shared, name="after-shared")
    net.relu(shared, name="after-shared-too")
    scores = net.linear(relu, 10)
    net.relu(scores, name="after-head")
    net.classify(scores)
    network = net.build()
    named = {n for n in may_overwrite(network) if n == "sum" or n.startswith(("after", "reads"))}
    assert named == {"after-convolution", "sum", "after-sum", "after-concat"}
