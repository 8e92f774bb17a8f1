"""Recomputed segments: the bits of a step that saves everything, and less memory."""

import dataclasses
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from alive_arrays import Alive
from cubemesh.frameworks.pytorch import build
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.program import total_loss
from cubemesh.frameworks.pytorch.recomputation import recomputing_forward
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.memory import forecast, recomputable_segments


def residual_blocks(dropout):
    """Batch normalization, residual sums, and a head in the middle."""

    def dropped(x):
        return net.dropout(x, 0.5) if dropout else x

    net = NetworkBuilder("blocks")
    x = net.input("image", (3, 8, 8))
    with net.segment("stem"):
        x = net.relu(net.batch_norm(net.conv(x, 8, kernel=3, padding=1)))
    for name in ("first", "second"):
        with net.segment(name):
            y = net.relu(net.batch_norm(net.conv(x, 8, kernel=3, padding=1)))
            x = net.relu(net.add(x, dropped(y)))
            if name == "first":
                net.classify(net.linear(net.flatten(x), 10), weight=0.3, train_only=True)
    with net.segment("classifier"):
        net.classify(net.linear(net.flatten(dropped(x)), 10))
    return net.build()


@pytest.fixture
def blocks():
    return residual_blocks(dropout=True)


def trained(make_request, make_batch, network, recomputed, precision, **fields):
    request = make_request(network, precision=precision, **fields)
    program = build(dataclasses.replace(request, recomputed=recomputed))
    program.load(network.draw(1))
    losses, gradients = [], []
    for seed in range(3):
        program.train_step(program.place(make_batch(network, 4, seed)))
        losses.append(program.loss())
        gradients.append({n: p.grad.clone() for n, p in program._built.parameters.items()})
    state = program.state()
    program.close()
    return losses, gradients, state


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_losses_gradients_and_statistics_have_the_same_bits(
    precision, blocks, make_request, make_batch
):
    segments = recomputable_segments(blocks)
    assert segments == ("stem", "first", "second")
    saved, recomputed, one = (
        trained(make_request, make_batch, blocks, chosen, precision)
        for chosen in ((), segments, ("first",))
    )
    for found in (recomputed, one):
        assert found[0] == saved[0]
        for step, expected in zip(found[1], saved[1], strict=True):
            assert all(torch.equal(step[name], expected[name]) for name in expected)
        for name, array in saved[2].items():
            np.testing.assert_array_equal(found[2][name], array)


def test_micro_batches_of_recomputed_segments_too(blocks, make_request, make_batch):
    fields = {"accumulation_steps": 2}
    saved, recomputed = (
        trained(make_request, make_batch, blocks, chosen, "fp32", **fields)
        for chosen in ((), recomputable_segments(blocks))
    )
    assert recomputed[0] == saved[0]


def peak_bytes(network, batch, recomputed, micro_batches):
    """Most bytes alive in both passes of `micro_batches`, besides arrays that a step finds."""
    built = build_modules(network, overwrite=False)
    built.load(network.draw(0))
    run = recomputing_forward(built, recomputed) if recomputed else built.training
    images = torch.rand(batch, *network.inputs[0].shape)
    labels = torch.zeros(batch, dtype=torch.long)
    with Alive([*built.parameters.values(), *built.state.values(), images, labels]) as alive:
        pairs = zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True)
        for part, own in pairs:
            total_loss(network.heads, run(part), own).backward()
    return alive.peak


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_forecast_is_the_memory_of_the_arrays_alive(recomputes, micro_batches):
    # Without dropout, whose mask has a byte for each value on a GPU only.
    network = residual_blocks(dropout=False)
    segments = recomputable_segments(network) if recomputes else ()
    needed = forecast(
        network, 16, recomputed=segments, accumulation_steps=micro_batches, optimizer=None
    )
    state_bytes = 4 * sum(math.prod(s.shape) for s in network.state.values())
    permanent_bytes = 4 * network.parameter_count + state_bytes + needed.input_bytes
    measured = peak_bytes(network, 16, segments, micro_batches)
    assert needed.total_bytes - permanent_bytes == pytest.approx(measured, rel=0.02)


def test_recomputing_needs_less_memory(blocks):
    whole, less = (peak_bytes(blocks, 64, s, 1) for s in ((), recomputable_segments(blocks)))
    assert less < 0.8 * whole
    assert peak_bytes(blocks, 64, (), 4) < 0.5 * whole
