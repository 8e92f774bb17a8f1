"""The Triton kernels against PyTorch's own operations in fp64, on random shapes."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch import nn  # noqa: E402

from cubemesh.frameworks.pytorch.fused_norm import FusedNorm  # noqa: E402
from cubemesh.frameworks.pytorch.fused_pool import FusedPool  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here"),
]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}
"""Relative errors of values and gradients, as norms: fp32 sums; one rounding of the result."""
LAUNCHES = 2
"""Of those that are tried for a shape, drawn; compiling one takes a second or two."""
TIMES = 3
"""Launches one after the other: what a launch leaves behind must not reach the next."""


def relative(ours, want):
    return ((ours.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def image(shape, dtype, mean=0.0):
    x = torch.randn(shape, device="cuda") * 2 + mean
    return x.to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("adds", "rectifies", "readers"),
    [(0, 0, 1), (0, 1, 1), (0, 1, 2), (1, 1, 1), (1, 1, 2), (1, 0, 3)],
)
def test_normalisation_in_launches_that_fit(dtype, adds, rectifies, readers):
    from cubemesh.frameworks.pytorch import norm_launch

    draw = random.Random(adds + 2 * rectifies + 4 * readers)
    for channels in (32, 256):
        shape = (draw.randint(2, 9), channels, draw.randint(3, 40), draw.randint(3, 40))
        norm = nn.BatchNorm2d(channels, device="cuda")
        norm.num_batches_tracked = None
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        op = FusedNorm(norm, adds=bool(adds), rectifies=bool(rectifies), readers=readers)
        x = image(shape, dtype, mean=3.0)
        residual = image(shape, dtype) if adds else None
        slopes = [image(shape, dtype).detach() for _ in range(readers)]
        want = reference(x, residual, norm, bool(rectifies), slopes)
        tried = norm_launch.calls(op, x.detach(), residual, tuple(slopes[:2]))
        launches = sorted({call.launch for call in tried}, key=str)
        for launch in draw.sample(launches, min(LAUNCHES, len(launches))):
            op.kernels = norm_launch.kernels(op, x, launch, launch)
            if not all(c.fits() for c in both_calls(op, x, residual, slopes)):
                continue
            for _ in range(TIMES):
                results = op(x, residual)
                wanted = [x, *([residual] if adds else []), norm.weight, norm.bias]
                found = (results[-1], *torch.autograd.grad(results, wanted, slopes))
                errors = [relative(*pair) for pair in zip(found, want, strict=True)]
                assert max(errors) < TOLERANCE[dtype], (shape, str(launch), errors)


def both_calls(op, x, residual, slopes):
    forward = op.kernels.forward_call(x, residual, op.norm)
    yield forward
    norm = (op.norm.weight, op.norm.bias)
    yield op.kernels.backward_call(tuple(slopes[:2]), x, norm, forward.results[1:])


def reference(x, residual, norm, rectifies, slopes):
    """(result, gradients of x, residual, weight, bias) in fp64."""
    own = nn.BatchNorm2d(norm.num_features, device="cuda", dtype=torch.float64)
    own.weight.data.copy_(norm.weight)
    own.bias.data.copy_(norm.bias)
    x = x.detach().double().requires_grad_()
    wanted = [x]
    result = own(x)
    if residual is not None:
        wanted.append(residual.detach().double().requires_grad_())
        result = result + wanted[-1]
    result = result.relu() if rectifies else result
    slope = sum(s.double() for s in slopes)
    return (result, *torch.autograd.grad(result, [*wanted, own.weight, own.bias], slope))


def test_the_running_statistics_are_pytorchs():
    from cubemesh.frameworks.pytorch import norm_launch

    norm, own = nn.BatchNorm2d(32, device="cuda"), nn.BatchNorm2d(32, device="cuda")
    x = image((4, 32, 9, 7), torch.float32, mean=5.0)
    op = FusedNorm(norm, adds=False, rectifies=False, readers=1)
    op.kernels = norm_launch.choose(op, torch.empty_like(x)) or norm_launch.kernels(
        op, x, *(norm_launch.safest(x),) * 2
    )
    norm.reset_running_stats()
    for _ in range(TIMES):
        op(x)
        own(x)
    torch.testing.assert_close(norm.running_mean, own.running_mean)
    torch.testing.assert_close(norm.running_var, own.running_var)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil"),
    [(3, 2, 1, False), (2, 2, 0, False), (3, 2, 0, True), (3, 1, 1, False), (5, 3, 2, False)],
)
def test_pooling(dtype, kernel, stride, padding, ceil):
    pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
    op = FusedPool(pool)
    op.kernels = True
    x = image((3, 48, 17, 22), dtype)
    y, want = op(x), pool(x)
    assert torch.equal(y, want)
    slope = torch.randn_like(want)
    (ours,), (plain,) = (torch.autograd.grad(r, x, slope) for r in (y, want))
    assert relative(ours, plain.double()) < TOLERANCE[dtype]
