"""1×1 convolutions as matrix products against PyTorch's own in fp64."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from cubemesh.kernels.cpu import gemm_conv as gemm_conv
from cubemesh.kernels.cpu.autotune import CpuAutotuner
from cubemesh.kernels.fused.conv import PASSES, FusedConv

TOLERANCE = 1e-6


def relative(ours, want):
    return ((ours.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "filters", "stride", "bias", "relu"),
    [
        (17, 40, 1, True, True),
        (40, 7, 1, False, False),
        (130, 131, 1, False, False),
        (16, 32, 2, True, False),
        (130, 140, (3, 2), False, True),
    ],
)
def test_all_passes(channels, filters, stride, bias, relu, layout):
    torch.manual_seed(channels)
    conv = nn.Conv2d(channels, filters, 1, stride, bias=bias).to(memory_format=layout)
    twin = nn.Conv2d(channels, filters, 1, stride, bias=bias, dtype=torch.float64)
    twin.load_state_dict(conv.state_dict())
    op = FusedConv(conv, relu=relu)
    op.alternative_passes = frozenset(PASSES)
    x = torch.randn(3, channels, 7, 6).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    wide = x.detach().double().requires_grad_()
    y, want = op(x), twin(wide).relu() if relu else twin(wide)
    grad_output = torch.randn(y.shape)
    found = torch.autograd.grad(y, [x, *conv.parameters()], grad_output)
    wanted = torch.autograd.grad(want, [wide, *twin.parameters()], grad_output.double())
    errors = [relative(*pair) for pair in zip((y, *found), (want, *wanted), strict=True)]
    assert max(errors) < TOLERANCE, errors
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    assert found[1].stride() == conv.weight.stride()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "stride", "padding", "bias"),
    [
        (16, 40, 3, 2, 1, True),
        (40, 24, 3, 2, 0, False),
        (130, 17, (2, 5), (1, 3), (0, 2), False),
    ],
)
def test_the_weight_gradient_of_larger_kernels(
    channels, filters, kernel, stride, padding, bias, layout
):
    torch.manual_seed(filters)
    conv = nn.Conv2d(channels, filters, kernel, stride, padding, bias=bias)
    conv.to(memory_format=layout)
    twin = nn.Conv2d(channels, filters, kernel, stride, padding, bias=bias, dtype=torch.float64)
    twin.load_state_dict(conv.state_dict())
    op = FusedConv(conv, relu=False)
    assert op.supported_passes == {"weight"}
    op.alternative_passes = frozenset({"weight"})
    x = torch.randn(3, channels, 8, 9).contiguous(memory_format=torch.channels_last)
    y, want = op(x), twin(x.double())
    grad_output = torch.randn(y.shape)
    found = torch.autograd.grad(y, list(conv.parameters()), grad_output)
    wanted = torch.autograd.grad(want, list(twin.parameters()), grad_output.double())
    assert max(relative(*pair) for pair in zip(found, wanted, strict=True)) < TOLERANCE
    assert found[0].stride() == conv.weight.stride()


def test_supported_passes():
    assert gemm_conv.supports(nn.Conv2d(16, 5, 1, stride=2)) == frozenset(PASSES)
    assert gemm_conv.supports(nn.Conv2d(16, 5, 3, stride=2, padding=1)) == {"weight"}
    for other in (
        {"in_channels": 3},
        {"groups": 2},
        {"dilation": 2},
        {"padding": "same"},
        {"padding_mode": "reflect"},
    ):
        settings = {"in_channels": 16, "out_channels": 4, "kernel_size": 3, **other}
        assert not gemm_conv.supports(nn.Conv2d(**settings)), other


def test_it_is_tried_in_channels_last_only():
    for layout, tried in ((torch.channels_last, True), (torch.contiguous_format, False)):
        tuning = CpuAutotuner()
        x = torch.rand(2, 16, 8, 8).contiguous(memory_format=layout)
        with torch.no_grad():
            tuning.choose(FusedConv(nn.Conv2d(16, 32, 1), relu=False), x)
        assert bool(tuning._passes) is tried
        assert tuning.unavailable_reason == ""
