"""Winograd's convolutions against PyTorch's own in fp64, on random shapes, threads and layouts."""

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812
from torch import nn

from cubemesh.cpp_compiler import missing_compiler
from cubemesh.kernels.cpu import winograd
from cubemesh.kernels.fused.conv import PASSES

compiled = pytest.mark.skipif(bool(missing_compiler()), reason=missing_compiler())
TOLERANCE = 2e-6
"""Relative error of a result or a gradient, as norms, of normally distributed values."""
TIMES = 6
"""How many times the error of a direct convolution in float32 it may be."""
GUARD = 64
"""Values before and after an array that must not change."""


def relative(ours, want):
    return ((ours.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def image(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def layer(weight, bias, padding):
    """A convolution with these arrays."""
    conv = nn.Conv2d(weight.shape[1], len(weight), 3, padding=padding, bias=bias is not None)
    conv.weight = nn.Parameter(weight)
    if bias is not None:
        conv.bias = nn.Parameter(bias)
    return conv


def passes(x, weight, bias, grad_output, padding):
    """Result and gradients as the kernels compute them."""
    conv = layer(weight, bias, padding)
    with torch.no_grad():
        y = winograd.convolve(x, conv)
        dx = winograd.input_gradient(grad_output, conv, tuple(x.shape[2:]))
        return y, dx, *winograd.weight_gradient(x, grad_output, conv)


def direct(x, weight, bias, grad_output, padding):
    """The same by PyTorch."""
    given = [array.detach().requires_grad_() for array in (x, weight, bias)]
    y = F.conv2d(*given, padding=padding)
    return y.detach(), *torch.autograd.grad(y, given, grad_output)


@pytest.fixture
def threads():
    """Sets how many there are, and sets it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@compiled
@pytest.mark.parametrize(
    ("shape", "filters", "padding", "number"),
    [
        ((1, 16, 4, 4), 16, (1, 1), 1),
        ((2, 16, 7, 9), 48, (1, 1), 2),
        ((3, 32, 5, 13), 16, (0, 0), 1),
        ((2, 80, 6, 6), 32, (1, 0), 3),
        ((1, 16, 1, 1), 16, (1, 1), 2),
        ((1, 16, 3, 3), 16, (0, 0), 3),
        ((5, 64, 8, 8), 64, (2, 2), 2),
        ((2, 144, 6, 5), 160, (1, 1), 1),
        ((3, 160, 6, 5), 144, (1, 1), 2),  # all threads at the same block
        ((40, 16, 9, 9), 16, (1, 1), 2),  # several blocks
    ],
)
def test_all_passes(shape, filters, padding, number, threads):
    threads(number)
    torch.manual_seed(sum(shape) + filters)
    x, bias = image(*shape), torch.randn(filters)
    weight = torch.randn(filters, shape[1], 3, 3)
    for layout in (torch.contiguous_format, torch.channels_last):
        weight = weight.contiguous(memory_format=layout)
        size = [n + 2 * p - 2 for n, p in zip(shape[2:], padding, strict=True)]
        grad_output = image(shape[0], filters, *size)
        found = passes(x, weight, bias, grad_output, padding)
        wide = [array.double() for array in (x, weight, bias, grad_output)]
        wanted = direct(*wide, padding)
        errors = [relative(*pair) for pair in zip(found, wanted, strict=True)]
        assert max(errors) < TOLERANCE, errors
        assert found[0].is_contiguous(memory_format=torch.channels_last)
        assert found[2].stride() == weight.stride()


@compiled
def test_errors_are_within_the_documented_factor_of_a_direct_convolution():
    torch.manual_seed(0)
    x, weight, grad_output = image(2, 256, 12, 12), torch.randn(64, 256, 3, 3), image(2, 64, 12, 12)
    given = (x, weight, torch.zeros(64), grad_output)
    wanted = direct(*[array.double() for array in given], (1, 1))
    for ours, own, want in zip(passes(*given, (1, 1)), direct(*given, (1, 1)), wanted, strict=True):
        assert relative(ours, want) < TIMES * relative(own, want) + 1e-8
    # The largest error of a single value, by the largest value
    y, want = passes(*given, (1, 1))[0], wanted[0]
    assert ((y - want).abs().max() / want.abs().max()).item() < 2 * TOLERANCE


@compiled
def test_relu_without_a_bias():
    torch.manual_seed(1)
    x, weight = image(2, 32, 6, 7), torch.randn(16, 32, 3, 3)
    x[0, 3, 2, 2] = float("nan")
    y = winograd.convolve(x, layer(weight, None, (1, 1)), relu=True)
    want = F.conv2d(x.double(), weight.double(), padding=1).relu()
    assert bool(y[0, :, 1:4, 1:4].isnan().all())  # NaN stays NaN
    assert relative(y[1], want[1]) < TOLERANCE
    assert float(y[1].min()) == 0


@compiled
@pytest.mark.parametrize(("channels", "number"), [(16, 2), (176, 2)])
def test_nothing_outside_of_the_arrays_is_read_or_written(channels, number, threads):
    """Arrays are surrounded by NaN: read, it would spread; written, it would be a number."""
    threads(number)
    torch.manual_seed(channels)
    library = winograd.library()

    def guarded(count):
        whole = torch.full((count + 2 * GUARD,), float("nan"))
        return whole, whole[GUARD : GUARD + count]

    x, weight, grad_output = image(2, channels, 5, 6), torch.randn(channels, channels, 3, 3), None
    grad_output = image(2, channels, 5, 6)
    sizes = winograd._sizes(x, (channels, 5, 6), (1, 1))
    strides = winograd._longs(weight.stride())
    wholes, given = [], []
    for array in (
        x.permute(0, 2, 3, 1),
        weight,
        grad_output.permute(0, 2, 3, 1),
        torch.zeros(channels),
    ):
        whole, inner = guarded(array.numel())
        inner.copy_(array.flatten())
        wholes.append(whole)
        given.append(inner.data_ptr())
    made = [guarded(n) for n in (x.numel(), weight.numel(), channels)]
    works = [guarded(library.winograd_floats(sizes, kind, number)) for kind in (0, 1)]
    at_x, at_weight, at_gradient, at_bias = given
    at_y, at_dweight, at_dbias = (inner.data_ptr() for _, inner in made)
    library.winograd_convolve(
        sizes, at_x, at_weight, strides, at_bias, at_y, works[0][1].data_ptr(), 0, 0, number
    )
    library.winograd_weight_gradient(
        sizes, at_x, at_gradient, at_dweight, strides, at_dbias, works[1][1].data_ptr(), number
    )
    for whole in [*wholes, *(whole for whole, _ in made + works)]:
        assert bool(whole[:GUARD].isnan().all())
        assert bool(whole[-GUARD:].isnan().all())
    wanted = direct(x, weight, torch.zeros(channels), grad_output, (1, 1))
    y, dweight, dbias = (inner for _, inner in made)
    assert relative(y.view(2, 5, 6, channels).permute(0, 3, 1, 2), wanted[0].double()) < 1e-5
    assert relative(dweight.view(weight.shape), wanted[2].double()) < 1e-5
    assert relative(dbias, wanted[3].double()) < 1e-5


@compiled
def test_threads_may_call_at_once_and_get_the_same(threads):
    threads(2)
    torch.manual_seed(2)
    x, weight, grad_output = image(6, 32, 12, 12), torch.randn(32, 32, 3, 3), image(6, 32, 12, 12)
    given = (x, weight, torch.zeros(32), grad_output, (1, 1))
    want = passes(*given)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: passes(*given), range(6)):
            assert all(map(torch.equal, found, want))


def test_supported_layers():
    assert winograd.supports(nn.Conv2d(16, 32, 3, padding=1, device="meta")) == frozenset(PASSES)
    others = (
        {"kernel_size": 1},
        {"stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"padding": 3},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "circular"},
        {"in_channels": 24},
        {"out_channels": 40},
    )
    for other in others:
        settings = {"in_channels": 32, "out_channels": 32, "kernel_size": 3, **other}
        assert not winograd.supports(nn.Conv2d(**settings, device="meta")), other
