"""Fused kernels compared with PyTorch's operations, in fp64 on the CPU."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from cubemesh import networks
from cubemesh.frameworks.pytorch.fused_network import FusedNetwork
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.kernels.fused.additive_attention import FusedAttentionScores
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.pool import FusedMaxPool
from cubemesh.kernels.fused.space_to_depth_conv import SpaceToDepthConv, can_fold
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Node
from cubemesh.networks.layers import Convolution


def residual():
    """A stem of three channels with a stride, a pooling, and a block with a shortcut."""
    net = NetworkBuilder("residual")
    x = net.input("image", (3, 16, 16))
    with net.segment("stem"):
        x = net.relu(net.batch_norm(net.conv(x, 8, kernel=7, stride=2, padding=3, bias=False)))
        x = net.max_pool(x, 3, stride=2, padding=1)
    with net.segment("block"):
        y = net.relu(net.batch_norm(net.conv(x, 8, kernel=3, padding=1, bias=False)))
        y = net.batch_norm(net.conv(y, 8, kernel=1, bias=False))
        x = net.relu(net.add(y, net.batch_norm(net.conv(x, 8, kernel=1, bias=False))))
    with net.segment("classifier"):
        net.classify(net.linear(net.flatten(x), 5))
    return net.build()


def gradients(run, built, x):
    for parameter in built.parameters.values():
        parameter.grad = None
    scores = run(x)[0]
    scores.square().sum().backward()
    grads = {name: p.grad.clone() for name, p in built.parameters.items()}
    return scores.detach(), grads, {name: s.clone() for name, s in built.state.items()}


@pytest.mark.parametrize("casts", [False, True])
def test_the_fused_network_equals_the_network(casts):
    network = residual()
    built = build_modules(network, dtype=torch.float64, overwrite=False)
    x = torch.rand(4, 3, 16, 16, dtype=torch.float64)
    built.load(network.draw(0))
    plain = gradients(built.training, built, x)
    built.load(network.draw(0))
    fused = FusedNetwork(built)
    fused.casts_by_segment = casts  # without an autocast there is nothing to narrow
    ours = gradients(fused, built, x)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    assert len(fused.norms) == 4


def test_the_fused_translator_equals_the_translator(make_batch):
    network = networks.build("translator", sequence_length=6, vocabulary=30, hidden=16)
    built = build_modules(network, dtype=torch.float64, overwrite=False)
    built.load(network.draw(0))
    inputs = [torch.from_numpy(array) for array in make_batch(network, 3).inputs]
    fused = FusedNetwork(built)
    assert [type(op) for op in fused.operations].count(FusedAttentionScores) == 1

    def of(run):
        for parameter in built.parameters.values():
            parameter.grad = None
        scores = run(*inputs)[0]
        scores.square().sum().backward()
        return scores.detach(), {name: p.grad.clone() for name, p in built.parameters.items()}

    torch.testing.assert_close(of(fused), of(built.training), rtol=1e-12, atol=1e-12)


def test_a_shared_weight_is_not_cast():
    network = networks.build("gpt2", sequence_length=4, vocabulary=30)
    fused = FusedNetwork(build_modules(network, device="meta", overwrite=False))
    names = [s.name if isinstance(s, Node) else s.last.name for s in fused.steps]
    cast = {names[number] for number in fused._segments}
    (output,) = (head.value for head in network.heads)
    assert output not in cast, "it is the embedding's, too"
    assert len(cast) == 48, "four products of each of twelve blocks"


def test_the_producer_of_a_normalization_has_no_other_reader():
    network = residual()
    fused = FusedNetwork(build_modules(network, overwrite=False))
    makers = fused.producers()
    made = {fused.steps[m].name for m in makers.values()}
    assert made == {n.name for n in network.nodes if isinstance(n.layer, Convolution)}
    for norm, maker in makers.items():
        assert fused.steps[norm].inputs[0] == fused.steps[maker].name


def test_a_value_with_two_readers_has_no_producer():
    net = NetworkBuilder("shared")
    x = net.conv(net.input("image", (3, 8, 8)), 16, kernel=1, bias=False)
    y = net.add(net.batch_norm(x), x)
    net.classify(net.linear(net.flatten(y), 5))
    assert FusedNetwork(build_modules(net.build(), overwrite=False)).producers() == {}


def test_weights_cast_together_round_as_autocast_does():
    network = residual()
    built = build_modules(network, overwrite=False)
    x = torch.rand(4, 3, 16, 16)
    found = []
    for casts in (False, True):
        built.load(network.draw(0))
        fused = FusedNetwork(built)
        fused.casts_by_segment = casts
        with torch.autocast("cpu", torch.bfloat16):
            found.append(gradients(fused, built, x))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert all(g.dtype == torch.float32 for g in found[1][1].values())


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "size"),
    [(7, 2, 3, 16), (3, 2, 1, 12), (11, 4, 2, 64), (3, 2, 0, 20), (5, 3, 2, 21)],
)
def test_a_space_to_depth_convolution_equals_the_convolution(kernel, stride, padding, size):
    conv = nn.Conv2d(3, 4, kernel, stride, padding, dtype=torch.float64)
    assert can_fold(conv, (size, size))
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    plain, ours = conv(x), SpaceToDepthConv(conv, (size, size))(x)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    slope = torch.randn_like(plain)
    for one, other in zip(
        torch.autograd.grad(plain, list(conv.parameters()), slope),
        torch.autograd.grad(ours, list(conv.parameters()), slope),
        strict=True,
    ):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_space_to_depth_is_used_only_where_it_divides_and_gains():
    assert not can_fold(nn.Conv2d(3, 4, 7, 2, 3), (15, 16))
    assert not can_fold(nn.Conv2d(3, 4, 3, 1, 1), (16, 16))
    assert not can_fold(nn.Conv2d(64, 64, 3, 2, 1), (16, 16))
    assert not can_fold(nn.Conv2d(3, 4, (3, 1), (2, 1)), (16, 16))


def test_without_kernels_every_reader_receives_pytorch_s_result():
    norm = nn.BatchNorm2d(8)
    norm.num_batches_tracked = None
    x, other = torch.randn(2, 2, 8, 3, 3)
    op = FusedBatchNorm(norm, add=True, relu=True, readers=2)
    one, two = op(x, other)
    want = torch.relu(nn.functional.batch_norm(x, None, None, training=True) + other)
    torch.testing.assert_close(one, want)
    assert one is two
    assert "PyTorch's own" in repr(op)
    pool = FusedMaxPool(nn.MaxPool2d(3, 2, 1))
    assert torch.equal(pool(x), nn.functional.max_pool2d(x, 3, 2, 1))


def test_tuning_without_a_gpu_chooses_no_kernel():
    network = residual()
    built = build_modules(network, overwrite=False)
    built.load(network.draw(0))
    fused = FusedNetwork(built)
    fused.tune(torch.rand(2, 3, 16, 16))
    assert all(op.kernels is None for op in fused.norms.values())
    assert not fused.casts_by_segment
