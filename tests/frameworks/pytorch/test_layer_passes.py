"""A product in one type forward and in another backward, against both computed by autograd."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from cubemesh.frameworks.pytorch.precision.layer_passes import PassTypes, set_pass_types

LAYERS = {
    "convolution": (lambda: nn.Conv2d(4, 6, 3, (2, 1), (1, 2), (1, 2), groups=2), (2, 4, 7, 6)),
    "no-bias": (lambda: nn.Conv2d(4, 6, 3, bias=False), (2, 4, 7, 6)),
    "linear": (lambda: nn.Linear(5, 3), (2, 4, 5)),
}
TYPES = [
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float64, torch.float64),
]


def gradients(layer, x, pull, dtype):
    """Those of the input and the parameters, everything in `dtype`."""
    layer, x = layer.to(dtype), x.detach().to(dtype).requires_grad_()
    return torch.autograd.grad(layer(x), [x, *layer.parameters()], pull.to(dtype))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("types", TYPES, ids=["bf16-fp32", "fp32-bf16", "fp64"])
def test_each_pass_is_that_of_its_type(name, types):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    plain = {dtype: make() for dtype in types}
    for one in plain.values():
        one.load_state_dict(layer.state_dict())
    x = torch.randn(shape, requires_grad=True)
    set_pass_types(layer, PassTypes(*types))
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    wanted = plain[types[0]].to(types[0])(x.to(types[0]))
    assert found.dtype == (torch.float32 if types[0] == torch.float64 else types[0])
    assert torch.equal(found, wanted.to(found.dtype))
    pull = torch.randn_like(found)
    ours = torch.autograd.grad(found, [x, *layer.parameters()], pull)
    theirs = gradients(plain[types[1]], x, pull, types[1])
    for own, reference in zip(ours, theirs, strict=True):
        assert own.dtype == torch.float32
        torch.testing.assert_close(own, reference.float(), rtol=1e-6, atol=1e-6)


def test_what_needs_no_gradient_gets_none():
    layer = set_pass_types(nn.Conv2d(3, 2, 3), PassTypes(torch.bfloat16, torch.float32))
    layer.bias.requires_grad_(False)
    layer(torch.rand(1, 3, 5, 5)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias.grad is None
