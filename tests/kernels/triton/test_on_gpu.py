"""The Triton kernels against PyTorch's own operations in fp64, on random shapes."""

import random
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch import nn

from cubemesh.kernels.fused.additive_attention import FusedAttentionScores
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.conv_relu import FusedConvRelu
from cubemesh.kernels.fused.linear_cross_entropy import linear_cross_entropy
from cubemesh.kernels.fused.pool import FusedAveragePool, FusedMaxPool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here"),
]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}
"""Relative errors of values and gradients, as norms: fp32 sums; one rounding of the result."""
AT_ZERO = 1e-5
"""In values of about 1: some times what single precision is off by. One that is on the other side
of a ReLU is an error of 1e-3 by itself."""
LAUNCHES = 2
"""Of those that are tried for a shape, drawn; compiling one takes a second or two."""
TIMES = 3
"""Launches one after the other: what a launch leaves behind must not reach the next."""


@pytest.fixture(autouse=True)
def seeded():
    """The same values in every run: errors near the tolerance depend on them."""
    torch.manual_seed(0)


def relative(ours, want):
    return ((ours.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def image(shape, dtype, mean=0.0):
    x = torch.randn(shape, device="cuda") * 2 + mean
    return x.to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("add", "relu", "readers"),
    [(0, 0, 1), (0, 1, 1), (0, 1, 2), (1, 1, 1), (1, 1, 2), (1, 0, 3)],
)
def test_normalization_in_launches_that_fit(dtype, add, relu, readers):
    from cubemesh.kernels.triton.batch_norm import autotune

    draw = random.Random(add + 2 * relu + 4 * readers)
    for channels in (32, 256):
        shape = (draw.randint(2, 9), channels, draw.randint(3, 40), draw.randint(3, 40))
        op, x, residual, grad_outputs = operation(shape, dtype, add, relu, readers)
        want = reference(x, residual, op.norm, bool(relu), grad_outputs)
        for pieces in ({"one-launch"}, {"reduce", "apply"}):
            forward, backward = (
                [plan for piece, plan in autotune.candidate_plans(x, which) if piece in pieces]
                for which in (0, 1)
            )
            pairs = [(one, other) for one in forward for other in backward]
            draw.shuffle(pairs)
            ran = 0
            for both in pairs[: 10 * LAUNCHES]:
                errors = run_by(both, op, x, residual, grad_outputs, want)
                assert max(errors, default=0) < TOLERANCE[dtype], (shape, both, errors)
                ran += bool(errors)
                if ran == LAUNCHES:
                    break
            assert ran, (shape, pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("readers", [1, 2])
def test_every_candidate_launch_computes_the_same(dtype, readers):
    """Of a shape as networks have them: parts and slices by the dozen."""
    from cubemesh.kernels.triton.batch_norm import autotune

    op, x, residual, grad_outputs = operation((32, 64, 16, 16), dtype, 0, 1, readers)
    want = reference(x, residual, op.norm, True, grad_outputs)
    safe = autotune.default_plan(x)
    for which in (0, 1):
        ran = Counter()
        for piece, plan in autotune.candidate_plans(x, which):
            both = (plan, safe) if which == 0 else (safe, plan)
            errors = run_by(both, op, x, residual, grad_outputs, want)
            assert max(errors, default=0) < TOLERANCE[dtype], (both, errors)
            ran[piece] += bool(errors)
        assert min(ran[piece] for piece in ("one-launch", "reduce", "apply")) >= 1, ran


@pytest.mark.parametrize("pieces", [{"one-launch"}, {"reduce", "apply"}])
def test_nan_in_a_step_does_not_reach_the_next(pieces):
    """As after an overflow, or before weights are loaded."""
    from cubemesh.kernels.triton.batch_norm import autotune

    op, x, _, grad_outputs = operation((4, 64, 9, 7), torch.float32, 0, 1, 1)
    want = reference(x, None, op.norm, True, grad_outputs)
    plan = next(plan for piece, plan in autotune.candidate_plans(x, 1) if piece in pieces)
    op.kernels = autotune.make_kernels(op, x, plan, plan)
    for bad in (float("nan"), float("inf")):
        poison = torch.full_like(x, bad).requires_grad_()
        result = op(poison)
        assert torch.isnan(result[0]).all(), "as PyTorch's own: a loss must show it"
        torch.autograd.grad(result, [poison], grad_outputs)
        result = op(x)
        found = (
            *result,
            *torch.autograd.grad(result, [x, op.norm.weight, op.norm.bias], grad_outputs),
        )
        assert max(relative(*pair) for pair in zip(found, want, strict=True)) < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("add", "size"), [(0, 7), (1, 16)])  # of 3 · 7² rows no tile is full
def test_a_product_that_computes_sums(dtype, add, size):
    from cubemesh.kernels.triton import conv1x1_bn_stats
    from cubemesh.kernels.triton.batch_norm import autotune

    if torch.cuda.get_device_capability() < conv1x1_bn_stats.TENSOR_DESCRIPTORS:
        pytest.skip("this GPU copies no tiles by descriptor")
    conv = nn.Conv2d(64, 128, 1, bias=False, device="cuda")
    weight = conv.weight.detach().to(dtype).requires_grad_()
    op, _, residual, grad_outputs = operation((3, 128, size, size), dtype, add, 1, 1)
    x = image((3, 64, size, size), dtype, mean=1.0)
    safe = autotune.default_plan(image((3, 128, size, size), dtype))
    own = autotune.make_kernels(op, grad_outputs[0], safe, safe)
    wanted = [x, weight, op.norm.weight, op.norm.bias]
    plain = torch.conv2d(x.double(), weight.double())
    plain = plain + (plain.to(dtype) - plain).detach()  # or a ReLU lets other values through
    norm = nn.functional.batch_norm(
        plain, None, None, op.norm.weight.double(), op.norm.bias.double(), training=True
    )
    result = (norm + residual.double() if add else norm).relu()
    want = (result, *torch.autograd.grad(result, wanted, grad_outputs[0].double()))
    for tiling in conv1x1_bn_stats.TILINGS:
        op.kernels = own.after_conv_stats(safe[1])
        summed = conv1x1_bn_stats.Conv1x1WithStats(conv, op.norm, op.kernels, tiling)
        for _ in range(TIMES):
            op.kernels.sums.zero_()
            op.kernels.zeroes_sums = False
            results = op(summed(x, weight), residual)
            found = (*results, *torch.autograd.grad(results, wanted, grad_outputs))
            errors = [relative(*pair) for pair in zip(found, want, strict=True)]
            assert max(errors) < 3 * TOLERANCE[dtype], (str(tiling), errors)


def operation(shape, dtype, add, relu, readers):
    """A fusion and its arrays: (operation, x, residual, slopes)."""
    norm = nn.BatchNorm2d(shape[1], device="cuda")
    norm.num_batches_tracked = None
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    op = FusedBatchNorm(norm, add=bool(add), relu=bool(relu), readers=readers)
    x = image(shape, dtype, mean=3.0)
    residual = image(shape, dtype) if add else None
    grad_outputs = [image(shape, dtype).detach() for _ in range(readers)]
    if relu:  # near zero either is right: no gradient there
        at_zero = before_relu(x, residual, norm).abs() < AT_ZERO
        grad_outputs = [grad_output.masked_fill(at_zero, 0) for grad_output in grad_outputs]
    return op, x, residual, grad_outputs


def before_relu(x, residual, norm):
    """In fp64."""
    weight, bias = norm.weight.double(), norm.bias.double()
    made = nn.functional.batch_norm(x.detach().double(), None, None, weight, bias, training=True)
    return made if residual is None else made + residual.detach().double()


def run_by(plans, op, x, residual, grad_outputs, want):
    """The largest errors of a few steps by given plans; none where they do not fit on the GPU."""
    from cubemesh.kernels.triton.batch_norm import autotune

    op.kernels = autotune.make_kernels(op, x, *plans)
    made = op.kernels.forward_calls(x, residual, op.norm)
    norm = (op.norm.weight, op.norm.bias)
    back = op.kernels.backward_calls(tuple(grad_outputs[:2]), x, norm, made.results[1:])
    if not all(call.fits(x.device) for call in (*made.calls, *back.calls)):
        return []
    errors = []
    for _ in range(TIMES):
        results = op(x, residual)
        wanted = [x, *([] if residual is None else [residual]), op.norm.weight, op.norm.bias]
        found = (results[-1], *torch.autograd.grad(results, wanted, grad_outputs))
        errors += [relative(*pair) for pair in zip(found, want, strict=True)]
    return errors


def reference(x, residual, norm, relu, grad_outputs):
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
    result = result.relu() if relu else result
    grad_output = sum(s.double() for s in grad_outputs)
    return (result, *torch.autograd.grad(result, [*wanted, own.weight, own.bias], grad_output))


def test_the_running_statistics_are_pytorchs():
    from cubemesh.kernels.triton.batch_norm import autotune

    norm, own = nn.BatchNorm2d(32, device="cuda"), nn.BatchNorm2d(32, device="cuda")
    x = image((4, 32, 9, 7), torch.float32, mean=5.0)
    op = FusedBatchNorm(norm, add=False, relu=False, readers=1)
    op.kernels = autotune.fastest_kernels(op, torch.empty_like(x)) or autotune.make_kernels(
        op, x, *(autotune.default_plan(x),) * 2
    )
    norm.reset_running_stats()
    for _ in range(TIMES):
        op(x)
        own(x)
    torch.testing.assert_close(norm.running_mean, own.running_mean)
    torch.testing.assert_close(norm.running_var, own.running_var)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(3, 50, 50, 64), (2, 7, 33, 80), (1, 1, 1, 16)])
def test_additive_attention_scores(dtype, shape):
    batch, queries, keys, features = shape
    op = FusedAttentionScores(nn.Linear(features, 1, bias=False, device="cuda"))
    op.kernels = True
    q = torch.randn(batch, queries, features, device="cuda").to(dtype).requires_grad_()
    k = torch.randn(batch, keys, features, device="cuda").to(dtype).requires_grad_()
    assert op.usable(q, k)
    scores = op(q, k)
    grad_output = torch.randn(scores.shape, device="cuda").to(dtype)
    ours = torch.autograd.grad(scores, [q, k, op.product.weight], grad_output)
    wide = [x.detach().double().requires_grad_() for x in (q, k, op.product.weight)]
    want = torch.tanh(wide[0].unsqueeze(2) + wide[1].unsqueeze(1)) @ wide[2].T
    assert scores.dtype == dtype
    assert relative(scores, want) < TOLERANCE[dtype]
    for own, other in zip(ours, torch.autograd.grad(want, wide, grad_output.double()), strict=True):
        assert relative(own, other) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil"),
    [(3, 2, 1, False), (2, 2, 0, False), (3, 2, 0, True), (3, 1, 1, False), (5, 3, 2, False)],
)
def test_pooling(dtype, kernel, stride, padding, ceil):
    pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
    op = FusedMaxPool(pool)
    op.kernels = True
    x = image((3, 48, 17, 22), dtype)
    y, want = op(x), pool(x)
    assert torch.equal(y, want)
    grad_output = torch.randn_like(want)
    (ours,), (plain,) = (torch.autograd.grad(r, x, grad_output) for r in (y, want))
    assert relative(ours, plain.double()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, 1), (2, 2, 0), (3, 2, 1), (5, 3, 2)]
)
def test_average_pooling(dtype, kernel, stride, padding):
    """Against contiguous arrays: PyTorch's gradient of channels-last ones is wrong."""
    op = FusedAveragePool(nn.AvgPool2d(kernel, stride, padding))
    op.kernels = op.usable
    x = image((3, 48, 17, 22), dtype)
    y, want = op(x), op.pool(x.double().contiguous())
    assert relative(y, want) < TOLERANCE[dtype]
    grad_output = torch.randn_like(y)
    (ours,) = torch.autograd.grad(y, x, grad_output)
    (plain,) = torch.autograd.grad(want, x, grad_output.double())
    assert relative(ours, plain.double()) < TOLERANCE[dtype]
    assert not FusedAveragePool(nn.AvgPool2d(3, 2, ceil_mode=True)).usable


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pool", [None, nn.MaxPool2d(2), nn.MaxPool2d(3, 2, padding=1)])
def test_a_convolution_with_bias_relu_and_pooling(dtype, pool):
    """In 16 bits against PyTorch's own rounding: one that tips a ReLU is no error of a kernel."""
    conv = nn.Conv2d(16, 48, 3, padding=1, device="cuda").to(memory_format=torch.channels_last)
    x = image((5, 16, 23, 18), dtype)
    op = FusedConvRelu(conv, pool)
    found = {}
    for method in op.methods:
        op.method = method
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype != torch.float32):
            y = op(x)
        slope = torch.linspace(-1, 1, y.numel(), device="cuda").view_as(y).to(y.dtype)
        grads = torch.autograd.grad(y, [x, conv.weight, conv.bias], slope)
        assert [g.dtype for g in grads] == [dtype, torch.float32, torch.float32]
        found[method] = [y.detach(), *grads]
    assert ("cudnn" in found) == (pool is None)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-5
    for method in set(found) - {"operations"}:
        for ours, want in zip(found[method], found["operations"], strict=True):
            assert relative(ours, want.double()) < tolerance, method


@pytest.mark.parametrize(("classes", "tolerance"), [(50257, 6e-3), (130, 6e-3)])
@pytest.mark.parametrize("scale", [1.0, 512.0])
def test_cross_entropy_of_a_product(classes, tolerance, scale):
    x = torch.randn(37, 64, device="cuda", requires_grad=True)
    weight = (torch.randn(classes, 64, device="cuda") / 8).requires_grad_()
    labels = torch.randint(0, classes, (37,), device="cuda")
    labels[5], labels[6] = -1, classes - 1
    logits = x.double() @ weight.double().t()
    want = nn.functional.cross_entropy(logits, labels, ignore_index=-1)
    plain = torch.autograd.grad(want * scale, [x, weight])
    with torch.autocast("cuda", torch.bfloat16):
        loss = linear_cross_entropy(x, weight, labels, -1, scale)
    ours = torch.autograd.grad(loss, [x, weight], torch.full_like(loss, scale))
    assert loss.item() == pytest.approx(want.item(), rel=1e-3)
    for one, other in zip(ours, plain, strict=True):
        assert one.dtype == torch.float32
        assert relative(one, other) < tolerance
    with torch.no_grad():
        assert linear_cross_entropy(x, weight, labels, -1).item() == pytest.approx(
            want.item(), rel=1e-5
        )


def test_cross_entropy_in_single_precision():
    x = torch.randn(9, 32, device="cuda", requires_grad=True)
    weight = torch.randn(5000, 32, device="cuda", requires_grad=True)
    labels = torch.randint(0, 5000, (9,), device="cuda")
    want = nn.functional.cross_entropy(x.double() @ weight.double().t(), labels)
    loss = linear_cross_entropy(x, weight, labels, -1)
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    plain = torch.autograd.grad(want, [x, weight])
    for one, other in zip(torch.autograd.grad(loss, [x, weight]), plain, strict=True):
        assert relative(one, other) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 6e-3)])
def test_cross_entropy_of_a_product_with_bias(dtype, tolerance):
    x = torch.randn(37, 32, device="cuda", requires_grad=True)
    weight = (torch.randn(4100, 32, device="cuda") / 6).requires_grad_()
    bias = torch.randn(4100, device="cuda", requires_grad=True)
    labels = torch.randint(0, 4100, (37,), device="cuda")
    labels[3] = -1
    logits = x.double() @ weight.double().t() + bias.double()
    want = nn.functional.cross_entropy(logits, labels, ignore_index=-1)
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        loss = linear_cross_entropy(x, weight, labels, -1, 1.0, bias)
    assert loss.item() == pytest.approx(want.item(), rel=1e-3)
    given = [x, weight, bias]
    plain = torch.autograd.grad(want, given)
    for one, other in zip(torch.autograd.grad(loss, given), plain, strict=True):
        assert one.dtype == torch.float32
        assert relative(one, other) < tolerance
