"""A convolution and its normalization as one operation, against PyTorch's own two in fp64."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from cubemesh.cpp_compiler import missing_compiler
from cubemesh.frameworks.pytorch.fused_network import FusedNetwork
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.kernels.cpu import autotune as autotune
from cubemesh.kernels.cpu.conv_batch_norm import FusedConvBatchNorm, supports
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.conv import FusedConv
from cubemesh.networks.builder import NetworkBuilder

pytestmark = pytest.mark.skipif(bool(missing_compiler()), reason=missing_compiler())
TOLERANCE = 3e-6
"""Relative error of values and gradients, as norms."""


@pytest.fixture(autouse=True)
def threads():
    """Each test may set them, and draws the same numbers in any order of the tests."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def image(shape, mean=0.0):
    x = torch.randn(shape) * 2 + mean
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


def operation(shape, filters, *, add=False, relu=True, readers=1):
    conv = nn.Conv2d(shape[1], filters, 1, bias=False).to(memory_format=torch.channels_last)
    norm = nn.BatchNorm2d(filters)
    norm.num_batches_tracked = None
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    fused = FusedBatchNorm(norm, add=add, relu=relu, readers=readers)
    return FusedConvBatchNorm(FusedConv(conv, relu=False), fused, torch.Size(shape))


def in_fp64(op, x, residual, grad_outputs):
    """(result, gradients, running mean and variance) by PyTorch's own operations."""
    conv, norm = op.conv.conv, op.norm.norm
    own = nn.BatchNorm2d(norm.num_features, dtype=torch.float64)
    own.weight.data.copy_(norm.weight)
    own.bias.data.copy_(norm.bias)
    given = [a.detach().double().requires_grad_() for a in (x, residual) if a is not None]
    filters = conv.weight.detach().double().requires_grad_()
    result = own(nn.functional.conv2d(given[0], filters))
    result = result + given[1] if residual is not None else result
    if op.norm.relu:
        for grad_output in grad_outputs:  # rounding may tip what is as good as 0 either way
            grad_output[result.abs() < 1e-4] = 0
        result = torch.relu(result)
    wanted = [*given, filters, own.weight, own.bias]
    grads = torch.autograd.grad(result, wanted, sum(s.double() for s in grad_outputs))
    return result, grads, (own.running_mean, own.running_var)


def relative(ours, want):
    return ((ours.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize("threads_used", [1, 2])
@pytest.mark.parametrize(
    ("inputs", "filters"), [(32, 64), (64, 32), (64, 256), (96, 160), (256, 64), (320, 32)]
)
@pytest.mark.parametrize(
    ("add", "relu", "readers"), [(0, 1, 1), (1, 1, 2), (0, 0, 1), (1, 0, 3), (0, 1, 2)]
)
def test_both_passes(threads_used, inputs, filters, add, relu, readers):
    torch.set_num_threads(threads_used)
    shape = (3, inputs, 11, 13)  # 429 rows: several blocks, and no whole number of groups
    op = operation(shape, filters, add=bool(add), relu=bool(relu), readers=readers)
    x, residual = image(shape, mean=3.0), None
    made = (3, filters, 11, 13)
    if add:
        residual = image(made)
    grad_outputs = [image(made).detach() for _ in range(readers)]
    want, want_grads, want_running = in_fp64(op, x, residual, grad_outputs)
    results = op(x, residual)
    assert len(results) == readers
    conv, norm = op.conv.conv, op.norm.norm
    given = [a for a in (x, residual) if a is not None]
    grads = torch.autograd.grad(
        results, [*given, conv.weight, norm.weight, norm.bias], grad_outputs
    )
    assert relative(results[0], want) < TOLERANCE
    for ours, theirs in zip(grads, want_grads, strict=True):
        assert relative(ours, theirs) < TOLERANCE
    for ours, theirs in zip((norm.running_mean, norm.running_var), want_running, strict=True):
        assert relative(ours, theirs) < TOLERANCE


def test_few_rows():
    for rows in (2, 5, 13):
        shape = (1, 32, rows, 1)
        op, x = operation(shape, 32), image(shape)
        grad_outputs = [image(shape).detach()]
        want, want_grads, _ = in_fp64(op, x, None, grad_outputs)
        (result,) = op(x)
        assert relative(result, want) < TOLERANCE
        (dx,) = torch.autograd.grad(result, [x], grad_outputs)
        variance = op.conv.conv(x).var((0, 2, 3), unbiased=False)
        terms = grad_outputs[0].norm() / (variance.min() + op.norm.norm.eps).sqrt()  # they cancel
        error = (dx.double() - want_grads[0]).norm()
        assert error < TOLERANCE * max(1.0, float(want_grads[0].norm()), float(terms))


def test_an_input_without_gradient_gets_none():
    shape = (2, 32, 5, 5)
    op = operation(shape, 64)
    (result,) = op(image(shape).detach())
    result.sum().backward()
    assert op.conv.conv.weight.grad is not None


def test_what_is_no_number_stays_none():
    shape = (2, 32, 6, 6)
    op, x = operation(shape, 32), image(shape).detach()
    x[1, 3, 2, 2] = float("nan")
    (result,) = op(x)
    assert result.isnan().all()


def test_another_shape_runs_as_the_two():
    shape = (4, 32, 6, 6)
    op = operation(shape, 32, readers=2)
    x = image((3, *shape[1:]))
    want, _, _ = in_fp64(op, x, None, [torch.ones(3, 32, 6, 6)])
    one, other = op(x)
    assert one is other, "they are PyTorch's own"
    assert relative(one, want) < TOLERANCE


def test_what_it_takes():
    def layer(inputs=32, filters=32, kernel=1, **more):
        conv = nn.Conv2d(inputs, filters, kernel, **({"bias": False} | more))
        return FusedConv(conv, relu=False)

    x = image((2, 32, 8, 8))
    assert supports(layer(), x)
    assert not supports(layer(filters=48), x)
    assert not supports(layer(bias=True), x)
    assert not supports(layer(kernel=3, padding=1), x)
    assert not supports(layer(stride=2), x)
    assert not supports(layer(groups=2), x)
    assert not supports(FusedConv(nn.Conv2d(32, 32, 1, bias=False), relu=True), x)
    assert not supports(nn.Conv2d(32, 32, 1, bias=False), x)
    assert not supports(layer(), x.detach().contiguous())
    assert not supports(layer(), x.detach().double())


def bottleneck():
    """A block as ResNet-50's, and one whose convolution somebody else reads too."""
    net = NetworkBuilder("bottleneck")
    x = net.input("image", (32, 9, 9))
    with net.segment("block"):
        y = net.relu(net.batch_norm(net.conv(x, 32, kernel=1, bias=False)))
        y = net.relu(net.batch_norm(net.conv(y, 32, kernel=3, padding=1, bias=False)))
        y = net.batch_norm(net.conv(y, 64, kernel=1, bias=False))
        x = net.relu(net.add(y, net.batch_norm(net.conv(x, 64, kernel=1, bias=False))))
    with net.segment("shared"):
        y = net.conv(x, 64, kernel=1, bias=False)
        x = net.relu(net.add(net.batch_norm(y), y))
    with net.segment("classifier"):
        net.classify(net.linear(net.flatten(x), 5))
    return net.build()


@pytest.mark.parametrize("faster", [True, False])
def test_the_fused_network_joins_the_two_where_that_is_faster(monkeypatch, faster):
    monkeypatch.setattr(autotune, "fused_is_faster", lambda both, x: faster)
    network = bottleneck()
    built = build_modules(network, memory_format=torch.channels_last, overwrite=False)
    x = torch.rand(4, 32, 9, 9).contiguous(memory_format=torch.channels_last)

    def learned(run):
        built.load(network.draw(0))
        for parameter in built.parameters.values():
            parameter.grad = None
        for _ in range(2):
            (scores,) = run(x)
            scores.square().mean().backward()
        grads = {name: p.grad.clone() for name, p in built.parameters.items()}
        return {"scores": scores.detach()} | grads | {n: v.clone() for n, v in built.state.items()}

    plain = learned(built.training)
    fused = FusedNetwork(built)
    built.load(network.draw(0))
    fused.tune(x)
    fused_conv_batch_norm = [op for op in fused.operations if isinstance(op, FusedConvBatchNorm)]
    assert len(fused_conv_batch_norm) == (3 if faster else 0), (
        "the 1×1s whose results have no other reader"
    )
    for name, value in learned(fused).items():
        # rounding may let another value through a ReLU, one of 20,000
        assert relative(value, plain[name].double()) < (1e-4 if "running" in name else 0.03), name
