"""Products in FP8, compared with those of the rounded factors and with bf16."""

import pytest
import torch
from torch import nn

from cubemesh.frameworks import pytorch
from cubemesh.frameworks.pytorch import captured
from cubemesh.frameworks.pytorch.precision.float8_linear import (
    Float8Linear,
    cast,
    float8_linear,
    multiply,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(("to", "digits"), [(torch.float8_e4m3fn, 4), (torch.float8_e5m2, 3)])
def test_a_scale_brings_the_largest_magnitude_to_the_largest_number(to, digits):
    x = torch.randn(32, 48, dtype=torch.bfloat16) * 1e-6
    x8, scale = cast(x, to)
    assert x8.dtype == to
    assert scale.dtype == torch.float32
    assert x8.float().abs().max() == torch.finfo(to).max
    near = x.float().abs() > 1e-2 * x.float().abs().max()
    error = ((x8.float() * scale - x.float()) / x.float()).abs()[near].max()
    assert error <= 2**-digits


def test_zeros_have_a_scale():
    x8, scale = cast(torch.zeros(16, 16), torch.float8_e4m3fn)
    assert not x8.float().any()
    assert 0 < float(scale) < 1e-9


def test_a_product_is_that_of_the_rounded_factors():
    a, b = torch.randn(32, 48), torch.randn(64, 48)
    (a8, a_scale), (b8, b_scale) = (cast(x, torch.float8_e4m3fn) for x in (a, b))
    exact = (a8.double() @ b8.double().t()) * a_scale.double() * b_scale.double()
    found = multiply(a8, b8.t(), a_scale, b_scale, torch.float32)
    assert torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [(32,), (2, 3, 16), (5, 7)])
@pytest.mark.parametrize("weight_type", [torch.float32, torch.bfloat16])
def test_results_and_gradients_are_near_those_of_fp32(rows, weight_type):
    x = torch.randn(*rows, 48, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(64, 48, dtype=weight_type, requires_grad=True)
    bias = torch.randn(64, requires_grad=True)
    y = float8_linear(x, weight, bias)
    g = torch.randn(*rows, 64)
    y.backward(g.bfloat16())
    assert y.dtype == torch.bfloat16
    found = [y, x.grad, weight.grad, bias.grad]
    assert [array.dtype for array in found] == [y.dtype, x.dtype, weight.dtype, bias.dtype]
    exact = [x.detach().float().requires_grad_(), weight.detach().float().requires_grad_()]
    offset = bias.detach().requires_grad_()
    expected = nn.functional.linear(exact[0], exact[1], offset)
    expected.backward(g)
    wanted = [expected, exact[0].grad, exact[1].grad, offset.grad]
    for got, want in zip(found, wanted, strict=True):
        assert torch.linalg.norm(got.float() - want) < 0.08 * torch.linalg.norm(want)


def test_a_layer_of_a_network_is_replaced_and_trains(make_request, make_batch):
    work = {"precision": "bf16"}
    narrow = pytorch.build(make_request("little-cnn", precision_of=("*=fp8",), **work))
    wide = pytorch.build(make_request("little-cnn", **work))
    found = [type(layer) for layer in narrow.module.modules() if isinstance(layer, nn.Linear)]
    assert found.count(Float8Linear) == 1  # the classifier has 10 columns
    network = make_request("little-cnn").network
    losses = []
    for one in (narrow, wide):
        one.load(network.draw(0))
        placed = one.place(make_batch(network, 16))
        torch.manual_seed(0)
        for _ in range(3):
            one.train_step(placed)
        losses.append(one.loss())
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_the_captured_step_has_its_products_in_fp8_too(make_request, make_batch):
    request = make_request("little-cnn", precision="bf16", precision_of=("*=fp8",))
    own = captured.build(request)
    own.load(request.network.draw(0))
    placed = own.place(make_batch(request.network, 16))
    own.compile(placed)
    own.load(request.network.draw(0))
    own.train_step(placed)
    eager = pytorch.build(request)
    eager.load(request.network.draw(0))
    eager.train_step(eager.place(make_batch(request.network, 16)))
    assert own.loss() == pytest.approx(eager.loss(), rel=0.05)
    assert any(isinstance(op, Float8Linear) for op in own.fused.operations)
