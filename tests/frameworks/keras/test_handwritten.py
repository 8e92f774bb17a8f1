"""Keras's networks as the benchmarks have them by hand, on the backend of this process: the program
must compute the same. In fp32, which is the type of the model by hand.
"""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("keras")

from cubemesh import networks
from cubemesh.frameworks import entry
from loadable_frameworks import KERAS, LOADABLE

SIZES = {"little-cnn": 8, "alexnet": 63, "resnet-50": 64}
CLASSES = {"little-cnn": 10, "alexnet": 1000, "resnet-50": 1000}
SWEEP = (pytest.mark.sweep,)
DEEP = [pytest.param(n, marks=SWEEP) for n in ("alexnet", "resnet-50")]


@pytest.fixture
def by_hand(monkeypatch):
    """(network, weights, batch) → the step by hand, with nothing dropped."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))

    def make(network, weights, batch):
        module = importlib.import_module("handwritten_keras")
        monkeypatch.setattr(module.layers, "Dropout", lambda rate: lambda x: x)
        parameters = [weights[name] for name in network.parameters]
        return module.train_step(
            network.name, parameters, batch.images, batch.labels, rate=0.01, momentum=0.9
        )

    return make


@pytest.mark.parametrize("name", ["little-cnn", *DEEP])
@pytest.mark.parametrize("framework", sorted(set(KERAS.values()) & set(LOADABLE)))
def test_losses_of_three_steps_equal_those_of_handwritten_code(
    framework, name, by_hand, make_request, make_batch, without_dropout
):
    network = without_dropout(networks.build(name, SIZES[name], CLASSES[name]))
    weights, batch = network.draw(1), make_batch(network, 4)
    request = make_request(network, layout="nhwc", learning_rate=0.01, momentum=0.9)
    program = entry(framework).load().build(request)
    program.load(weights)
    step = by_hand(network, weights, batch)
    losses = []
    for _ in range(3):
        program.train_step(program.place(batch))
        losses.append((program.loss(), float(step())))
    # After a step, fp32 leaves a network that normalizes few values little in common with itself.
    for ours, theirs in losses[:1] if network.state else losses:
        assert theirs == pytest.approx(ours, rel=1e-4)
    assert len({ours for ours, _ in losses}) == 3
