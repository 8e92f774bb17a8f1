"""The kernels for a CPU against PyTorch's own operations in fp64, on random shapes."""

import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from cubemesh.cpp_compiler import missing_compiler
from cubemesh.frameworks.pytorch.fused_network import FusedNetwork
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.kernels.cpu import cpu_kernels as cpu_kernels
from cubemesh.kernels.cpu.cpu_kernels import CpuBatchNorm
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.conv import FusedConv
from cubemesh.kernels.fused.dropout import FusedDropout, usable
from cubemesh.kernels.fused.pool import FusedMaxPool
from cubemesh.networks.builder import NetworkBuilder

pytestmark = pytest.mark.skipif(bool(missing_compiler()), reason=missing_compiler())
TOLERANCE = 2e-6
"""Relative error of values and gradients, as norms."""


def relative(ours, want):
    return ((ours.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def image(shape, mean=0.0):
    x = torch.randn(shape) * 2 + mean
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


def in_fp64(*arrays):
    return [a.detach().double().requires_grad_() for a in arrays]


@pytest.mark.parametrize(
    ("add", "relu", "readers"),
    [(0, 0, 1), (0, 1, 1), (0, 1, 2), (1, 1, 1), (1, 1, 2), (1, 0, 3), (0, 0, 2)],
)
def test_normalization(add, relu, readers):
    draw = random.Random(add + 2 * relu + 4 * readers)
    for channels in (16, 80):
        shape = (draw.randint(1, 5), channels, draw.randint(3, 20), draw.randint(1, 20))
        norm = nn.BatchNorm2d(channels)
        norm.num_batches_tracked = None
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        op = FusedBatchNorm(norm, add=bool(add), relu=bool(relu), readers=readers)
        x = image(shape, mean=30.0)
        given = [x, *([image(shape)] if add else [])]
        op.kernels = CpuBatchNorm(shape=x.shape, add=op.add, relu=op.relu)
        grad_outputs = [image(shape).detach() for _ in range(readers)]
        own = nn.BatchNorm2d(channels, dtype=torch.float64)
        own.weight.data.copy_(norm.weight)
        own.bias.data.copy_(norm.bias)
        wide = in_fp64(*given)
        want = own(wide[0]) + (wide[1] if add else 0)
        want = want.relu() if relu else want
        grad_output = sum(s.double() for s in grad_outputs)
        wanted = torch.autograd.grad(want, [*wide, *own.parameters()], grad_output)
        results = op(*given)
        found = torch.autograd.grad(results, [*given, *norm.parameters()], grad_outputs)
        errors = [
            relative(*pair) for pair in zip((results[-1], *found), (want, *wanted), strict=True)
        ]
        assert max(errors) < 10 * TOLERANCE, (shape, errors)  # a mean far from zero costs a digit
        torch.testing.assert_close(norm.running_mean.double(), own.running_mean, rtol=1e-5, atol=0)
        torch.testing.assert_close(norm.running_var.double(), own.running_var, rtol=1e-5, atol=0)


def test_nan_stays_nan():
    norm = nn.BatchNorm2d(16)
    norm.num_batches_tracked = None
    x = image((2, 16, 3, 3)).detach()
    x[0, 3, 1, 1] = float("nan")
    op = FusedBatchNorm(norm, add=False, relu=True, readers=1)
    op.kernels = CpuBatchNorm(shape=x.shape, add=False, relu=True)
    (y,) = op(x)
    assert bool(y[:, 3].isnan().all())
    assert not bool(y[:, :3].isnan().any())
    pool = FusedMaxPool(nn.MaxPool2d(2, 1), relu=True)
    pool.kernels = True
    assert int(pool(x).isnan().sum()) == 4


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil"),
    [(2, 2, 0, False), (3, 2, 1, False), (3, 2, 0, True), (3, 1, 1, False), (5, 3, 2, False)],
)
def test_pooling(kernel, stride, padding, ceil, relu):
    pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
    op = FusedMaxPool(pool, relu=relu)
    x = image((3, 48, 17, 12), mean=-2.0)
    want = op(x)
    grad_output = image(want.shape).detach()
    (wanted,) = torch.autograd.grad(want, x, grad_output)
    op.kernels = True
    y = op(x)
    (found,) = torch.autograd.grad(y, x, grad_output)
    assert torch.equal(y, want)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)  # sums of nine, in any order
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_of_equal_values_the_first_is_the_maximum_as_in_pytorch():
    pool = nn.MaxPool2d(3, 2, 1)
    x = torch.ones(1, 16, 7, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
    (want,) = torch.autograd.grad(pool(x).sum(), x)
    op = FusedMaxPool(pool)
    op.kernels = True
    (found,) = torch.autograd.grad(op(x).sum(), x)
    assert torch.equal(found, want)


@pytest.mark.parametrize(("bias", "groups"), [(True, 1), (False, 1), (True, 2)])
def test_a_convolution_with_its_relu(bias, groups):
    conv = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=bias, groups=groups)
    conv.to(memory_format=torch.channels_last)
    op = FusedConv(conv, relu=True)
    op.kernels = True
    x = image((2, 16, 9, 11))
    own = nn.Conv2d(16, 32, 3, 2, 1, bias=bias, groups=groups, dtype=torch.float64)
    own.load_state_dict(conv.state_dict())
    (wide,) = in_fp64(x)
    want, y = own(wide).relu(), op(x)
    grad_output = image(y.shape).detach()
    wanted = torch.autograd.grad(want, [wide, *own.parameters()], grad_output.double())
    found = torch.autograd.grad(y, [x, *conv.parameters()], grad_output)
    errors = [relative(*pair) for pair in zip((y, *found), (want, *wanted), strict=True)]
    assert max(errors) < TOLERANCE, errors


def test_supported_arrays():
    assert cpu_kernels.usable(image((2, 16, 3, 3)))
    assert not cpu_kernels.usable(image((2, 24, 3, 3)))
    assert not cpu_kernels.usable(torch.rand(2, 16, 3, 3))
    assert not cpu_kernels.usable(image((2, 16, 3, 3)).double())
    assert not cpu_kernels.usable(torch.rand(2, 16))


def known_answer(place):
    """The number drawn for a place by the key 0: the largest threshold that it is not under."""
    ones, least, most = torch.ones(64), 0, 2**32 - 1
    while least < most:
        middle = (least + most + 1) // 2
        passed = torch.empty_like(ones)
        cpu_kernels.library().dropout(
            ones.data_ptr(), passed.data_ptr(), ones.numel(), 0, middle, 1.0, 1
        )
        least, most = (middle, most) if passed[place] else (least, middle - 1)
    return least


def test_dropout_draws_what_philox_does():
    # kat_vectors of Random123 (Salmon et al. 2011): philox4x32 10 of zeros
    want = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [known_answer(16 * n) for n in range(4)] == want


@pytest.mark.parametrize("shape", [(3, 16, 33, 7), (5, 1000)])
def test_dropout_zeroes_its_fraction_and_passes_the_other_gradients(shape):
    op = FusedDropout(nn.Dropout(0.3))
    op.kernels = True
    x = (torch.rand(shape) + 1).requires_grad_()
    if len(shape) == 4:
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    torch.manual_seed(3)
    y = op(x)
    passed = y != 0
    torch.testing.assert_close(y[passed], x[passed] / 0.7)
    spread = (0.3 * 0.7 / x.numel()) ** 0.5
    assert abs((~passed).float().mean().item() - 0.3) < 5 * spread
    (found,) = torch.autograd.grad(y, x, torch.ones(shape))  # another layout than x's
    torch.testing.assert_close(found, passed / 0.7)
    assert not torch.equal(op(x), y)
    torch.manual_seed(3)
    assert torch.equal(op(x), y)


def test_dropout_uses_pytorch_for_unsupported_arrays_and_in_evaluation():
    op = FusedDropout(nn.Dropout(0.5))
    op.kernels = True
    x = torch.rand(4, 6)
    assert op(x.double()).dtype == torch.float64
    assert not usable(torch.rand(6, 4).T)
    assert torch.equal(op.eval()(x), x)


def test_the_fused_network_runs_as_kernels_and_computes_the_same():
    net = NetworkBuilder("small")
    x = net.input("image", (3, 12, 12))
    x = net.relu(net.conv(x, 16, kernel=3, padding=1))
    x = net.max_pool(net.relu(net.conv(x, 16, kernel=3, padding=1)), 2)
    x = net.relu(net.batch_norm(net.conv(x, 32, kernel=1)))
    net.classify(net.linear(net.flatten(x), 5))
    network = net.build()
    built = build_modules(network, memory_format=torch.channels_last, overwrite=False)
    given = image((4, 3, 12, 12)).detach()
    found = []
    for tuned in (False, True):
        fused = FusedNetwork(built)
        if tuned:
            fused.tune(given)
            for op in fused.operations:
                if isinstance(op, FusedConv):
                    op.kernels = op.relu
                if isinstance(op, FusedMaxPool):
                    op.kernels = True
                if isinstance(op, FusedBatchNorm):
                    op.kernels = CpuBatchNorm(shape=torch.Size((4, 32, 6, 6)), add=False, relu=True)
            kinds = [type(op) for op in fused.operations]
            assert (FusedConv in kinds, FusedMaxPool in kinds) == (True, True)
            assert fused.unavailable_reason == ""
        built.load(network.draw(0))
        (scores,) = fused(given)
        wanted = list(built.parameters.values())
        found.append((scores.detach(), *torch.autograd.grad(scores.square().sum(), wanted)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
