"""Several micro-batches in a step: the same update as one batch, synchronized once."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.pytorch import build, captured
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel.strategy import NoSync
from cubemesh.schema.work import TrainSteps


class Recorded(NoSync):
    """Sends nothing and records what it is given."""

    bucket_bytes = 256

    def __init__(self):
        super().__init__()
        self.sent = []

    def ready(self, bucket):
        self.sent.append((bucket.index, bucket.gradients.clone()))


def labelled_positions():
    """A network with a label for each position, some of which the batch pads."""
    net = NetworkBuilder("positions")
    x = net.embedding(net.input("tokens", (6,), vocabulary=20), 8)
    net.classify(net.linear(x, 20))
    return net.build()


def normalized():
    net = NetworkBuilder("normalized")
    x = net.batch_norm(net.conv(net.input("image", (3, 6, 6)), 4, kernel=3))
    net.classify(net.linear(net.flatten(x), 10))
    return net.build()


def trained(make, request, network, make_batch, micro_batches, sync=None, **fields):
    """(losses, weights) of three steps of 8 samples, in so many micro-batches."""
    work = TrainSteps(
        network=network.name,
        batch_per_device=8,
        accumulation_steps=micro_batches,
        learning_rate=0.05,
    )
    asked = request(network, work=work, **{"precision": "fp64", **fields})
    program = make(asked if sync is None else dataclasses.replace(asked, sync=sync))
    if make is not build:
        program.compile(program.place(make_batch(network, 8)))
    program.load(network.draw(1))
    losses = []
    for seed in range(3):
        program.train_step(program.place(make_batch(network, 8, seed)))
        losses.append(program.loss())
    state = program.state()
    program.close()
    return losses, state


def assert_same(one, other, tolerance=1e-12):
    assert one[0] == pytest.approx(other[0], rel=tolerance)
    for name, array in one[1].items():
        np.testing.assert_allclose(other[1][name], array, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", [build, captured.build])
def test_micro_batches_update_as_one_batch_does(make, make_request, make_batch, tiny):
    whole = trained(build, make_request, tiny, make_batch, 1)
    assert_same(trained(make, make_request, tiny, make_batch, 4), whole)


def test_padded_positions_count_in_no_micro_batch(make_request, make_batch):
    network = labelled_positions()
    whole = trained(build, make_request, network, make_batch, 1)
    assert_same(trained(build, make_request, network, make_batch, 2), whole)


def test_batch_normalization_takes_its_statistics_from_each_micro_batch(make_request, make_batch):
    network = normalized()
    whole, parts = (trained(build, make_request, network, make_batch, n) for n in (1, 2))
    assert whole[0] != pytest.approx(parts[0], rel=1e-6)


@pytest.mark.parametrize("scale", [1024.0, "dynamic"])
def test_a_scaled_loss_is_unscaled_once(scale, make_request, make_batch, tiny):
    settings = {"precision": "fp16", "loss_scale": scale}
    whole = trained(build, make_request, tiny, make_batch, 1, **settings)
    parts = trained(build, make_request, tiny, make_batch, 4, **settings)
    assert_same(parts, whole, 1e-2)


def test_gradients_are_synchronized_in_the_last_micro_batch_only(make_request, make_batch, tiny):
    syncs = {n: Recorded() for n in (1, 4)}
    for micro_batches, sync in syncs.items():
        trained(build, make_request, tiny, make_batch, micro_batches, sync)
    one, four = (sync.sent for sync in syncs.values())
    assert len({index for index, _ in one}) > 1
    assert [index for index, _ in four] == [index for index, _ in one]
    for (_, summed), (_, expected) in zip(four, one, strict=True):
        torch.testing.assert_close(summed, expected, rtol=1e-12, atol=1e-12)


def test_the_loss_of_a_network_with_two_heads_is_that_of_the_batch(make_request, make_batch):
    net = NetworkBuilder("two-heads")
    x = net.flatten(net.input("image", (3, 4, 4)))
    net.classify(net.linear(x, 10), weight=0.3, train_only=True)
    net.classify(net.linear(x, 10))
    network = net.build()
    whole, parts = (trained(build, make_request, network, make_batch, n) for n in (1, 4))
    assert_same(parts, whole)
