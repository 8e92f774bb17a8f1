"""TensorFlow's networks as the benchmarks have them by hand: the programs must compute the same. In
fp32, for the fused batch normalization is not of float64 there.
"""

import importlib

import pytest

pytest.importorskip("tensorflow")

from cubemesh.frameworks import entry
from handwritten_steps import MOMENTUM, NAMES, RATE, assert_same_losses, network_by_hand


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("framework", ["tensorflow", "tensorflow-xla"])
def test_losses_of_three_steps_equal_those_of_handwritten_code(
    framework, name, make_request, make_batch, without_dropout, monkeypatch
):
    network = without_dropout(network_by_hand(name))
    weights, batch = network.draw(1), make_batch(network, 4)
    request = make_request(network, layout="nhwc", learning_rate=RATE, momentum=MOMENTUM)
    program = entry(framework).load().build(request)
    program.load(weights)
    by_hand = importlib.import_module("handwritten_tensorflow")
    monkeypatch.setattr(by_hand.tf.nn, "dropout", lambda x, rate: x)
    step = by_hand.train_step(
        network.name,
        [weights[name] for name in network.parameters],
        [weights[name] for name in network.state],
        *(batch.images, batch.labels),
        rate=RATE,
        momentum=MOMENTUM,
        compiled=framework == "tensorflow-xla",
    )
    assert_same_losses(network, program, batch, step)
