"""A convolution whose passes run by any algorithm: what it computes, and which are chosen."""

import math
import random

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812
from torch import nn

from cubemesh import networks
from cubemesh.cpp_compiler import missing_compiler
from cubemesh.frameworks.pytorch.fused_network import FusedNetwork
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.kernels.cpu import autotune as autotune
from cubemesh.kernels.cpu import winograd
from cubemesh.kernels.cpu.autotune import CpuAutotuner
from cubemesh.kernels.fused.conv import PASSES, FusedConv
from cubemesh.kernels.fused.dropout import FusedDropout
from cubemesh.networks.builder import NetworkBuilder

compiled = pytest.mark.skipif(bool(missing_compiler()), reason=missing_compiler())
TOLERANCE = 4e-6
"""Relative error of a result or a gradient, as norms; test_winograd.py has tighter ones."""


def relative(ours, want):
    return ((ours.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def image(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


@compiled
@pytest.mark.parametrize("relu", [False, True])
def test_every_pass_by_its_alternative_algorithm(relu):
    draw = random.Random(relu)
    torch.manual_seed(3)
    for own in ((), ("result",), ("input",), ("weight",), ("result", "weight"), PASSES):
        shape = (draw.randint(1, 3), 16 * draw.randint(1, 3), draw.randint(3, 9), 7)
        conv = nn.Conv2d(shape[1], 16, 3, padding=draw.randint(0, 2), bias=draw.random() < 0.5)
        op = FusedConv(conv, relu=relu)
        op.alternative_passes = frozenset(own)
        x = image(*shape).requires_grad_()
        wide = x.detach().double().requires_grad_()
        twin = nn.Conv2d(shape[1], 16, 3, padding=conv.padding, bias=conv.bias is not None)
        twin.double().load_state_dict(conv.state_dict())
        want = twin(wide).relu() if relu else twin(wide)
        y = op(x)
        grad_output = torch.randn(y.shape)  # of another layout than the kernels'
        found = torch.autograd.grad(y, [x, *conv.parameters()], grad_output)
        wanted = torch.autograd.grad(want, [wide, *twin.parameters()], grad_output.double())
        errors = [relative(*pair) for pair in zip((y, *found), (want, *wanted), strict=True)]
        assert max(errors) < TOLERANCE, (own, errors)


@compiled
@pytest.mark.parametrize("fed", [False, True])
def test_each_pass_is_chosen_by_its_own_time(fed, monkeypatch):
    timed = []

    def fastest_s(ways, run):
        for way in ways:
            way()
            run()
        timed.append(op.alternative_passes)
        return [1.0, math.inf if op.alternative_passes == {"weight"} else 0.5]

    op = FusedConv(nn.Conv2d(16, 16, 3, padding=1), relu=False)
    monkeypatch.setattr(autotune, "fastest_s", fastest_s)
    tuning = CpuAutotuner()
    with torch.no_grad():
        tuning.choose(op, image(1, 16, 5, 5), network_input=fed)
        once = len(timed)
        tuning.choose(op, image(1, 16, 5, 5), network_input=fed)  # of the same shape: known
    assert op.alternative_passes == {"result"} | (set() if fed else {"input"})
    assert once == len(timed) == (2 if fed else 3)


def test_without_a_compiler_pytorchs_own_runs(monkeypatch):
    def lacking():
        raise OSError("no compiler")

    monkeypatch.setattr(winograd, "library", lacking)
    op = FusedConv(nn.Conv2d(16, 16, 3, padding=1), relu=False)
    tuning = CpuAutotuner()
    with torch.no_grad():
        tuning.choose(op, image(1, 16, 5, 5))
    assert (op.alternative_passes, tuning.unavailable_reason) == (frozenset(), "no compiler")
    x = image(1, 16, 5, 5)
    assert torch.equal(op(x), op.conv(x))


def residual():
    """Twelve convolutions in blocks with shortcuts, normalized."""
    net = NetworkBuilder("residual")
    x = net.relu(net.conv(net.input("image", (3, 16, 16)), 32, kernel=3, padding=1))
    for _ in range(4):
        y = net.relu(net.batch_norm(net.conv(x, 16, kernel=1, bias=False)))
        y = net.relu(net.batch_norm(net.conv(y, 16, kernel=3, padding=1, bias=False)))
        x = net.relu(net.add(x, net.batch_norm(net.conv(y, 32, kernel=1, bias=False))))
    net.classify(net.linear(net.global_average_pool(x), 5))
    return net.build()


@compiled
@pytest.mark.parametrize("build", [lambda: networks.build("little-cnn", 16, 5), residual])
def test_a_network_agrees_with_fp64_as_every_framework_must(build):
    """By the measure of test_parity.py: four times as far as PyTorch's fp32 at most."""
    network = build()
    torch.manual_seed(4)
    x = torch.rand(4, 3, 16, 16)

    def step(dtype, kernels):
        built = build_modules(
            network, dtype=dtype, memory_format=torch.channels_last, overwrite=False
        )
        built.load(network.draw(0))
        fused = FusedNetwork(built)
        for op in fused.operations:
            if isinstance(op, FusedDropout):
                op.eval()
            if isinstance(op, FusedConv) and kernels:
                op.alternative_passes = frozenset(PASSES) & op.supported_passes
        (scores,) = fused(x.to(dtype).contiguous(memory_format=torch.channels_last))
        F.cross_entropy(scores, torch.arange(4)).backward()
        return [scores.detach()], [p.grad for p in built.parameters.values()]

    def farthest(found, wanted):
        pairs = zip(found, wanted, strict=True)
        return max(((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in pairs)

    wanted, own, ours = (
        step(*how)
        for how in ((torch.float64, False), (torch.float32, False), (torch.float32, True))
    )
    for kind in range(2):
        assert farthest(ours[kind], wanted[kind]) <= 4 * farthest(own[kind], wanted[kind])
