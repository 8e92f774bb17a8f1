"""Weights with 16-bit copies: their layers, and their updates against PyTorch's optimizers."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim

from cubemesh.frameworks.pytorch.precision import low_precision_weights
from cubemesh.frameworks.pytorch.precision.low_precision_weights import LowPrecisionWeights


def test_a_layer_reads_the_copy_and_the_original_keeps_its_weight(monkeypatch):
    monkeypatch.setattr(low_precision_weights, "FEWEST_VALUES", 10)
    large, small = nn.Linear(4, 3), nn.Linear(3, 2)
    copies = LowPrecisionWeights([large.weight, small.weight], torch.bfloat16)
    copies.refresh()
    assert copies.layer(small) is small
    other = copies.layer(large)
    assert other.weight is copies.copy_of(large.weight)
    assert other.bias is large.bias
    assert large.weight.dtype == torch.float32
    x = torch.rand(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(other(x), large(x))
    copies.copy_of(large.weight).grad = torch.ones(3, 4, dtype=torch.bfloat16)
    copies.zero_grad()
    assert copies.copy_of(large.weight).grad is None
    assert not LowPrecisionWeights([small.weight], torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")
@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=0.1),
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
        lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ],
)
def test_updates_equal_those_of_the_optimizer(make, monkeypatch):
    monkeypatch.setattr(low_precision_weights, "FEWEST_VALUES", 10)
    kernel = torch.randn(5, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    ours = [nn.Parameter(array.cuda()) for array in (torch.randn(33, 70), kernel)]
    plain = [nn.Parameter(weight.detach().clone()) for weight in ours]
    one, other = make(ours), make(plain)
    if one.param_groups[0].get("momentum"):
        for weight in ours:
            one.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    copies = LowPrecisionWeights(ours, torch.bfloat16)
    copies.refresh()
    for _ in range(4):
        for weight, same in zip(ours, plain, strict=True):
            gradient = torch.randn_like(weight).bfloat16()
            copies.copy_of(weight).grad, same.grad = gradient * 4, gradient.float()
        copies.update(one, 4.0)
        other.step()
        for weight, same in zip(ours, plain, strict=True):
            torch.testing.assert_close(weight, same, rtol=2e-6, atol=1e-6)
            assert torch.equal(copies.copy_of(weight), weight.bfloat16())
