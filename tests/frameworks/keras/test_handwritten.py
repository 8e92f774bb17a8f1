"""Keras's networks as the benchmarks have them by hand, on the backend of this process: the program
must compute the same. In fp32, which is the type of the model by hand.
"""

import importlib

import pytest

pytest.importorskip("keras")

from cubemesh.frameworks import entry
from handwritten_steps import MOMENTUM, NAMES, RATE, assert_same_losses, network_by_hand
from loadable_frameworks import KERAS, LOADABLE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("framework", sorted(set(KERAS.values()) & set(LOADABLE)))
def test_losses_of_three_steps_equal_those_of_handwritten_code(
    framework, name, make_request, make_batch, without_dropout, monkeypatch
):
    network = without_dropout(network_by_hand(name))
    weights, batch = network.draw(1), make_batch(network, 4)
    request = make_request(network, layout="nhwc", learning_rate=RATE, momentum=MOMENTUM)
    program = entry(framework).load().build(request)
    program.load(weights)
    by_hand = importlib.import_module("handwritten_keras")
    monkeypatch.setattr(by_hand.layers, "Dropout", lambda rate: lambda x: x)
    step = by_hand.train_step(
        network.name,
        [weights[name] for name in network.parameters],
        *(batch.images, batch.labels),
        rate=RATE,
        momentum=MOMENTUM,
    )
    assert_same_losses(network, program, batch, step)
