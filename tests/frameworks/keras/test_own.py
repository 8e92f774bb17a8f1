"""Keras models of a user: their description, and their training as they are."""

from pathlib import Path

import numpy as np
import pytest

from loadable_frameworks import LOADABLE

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
if "keras" not in LOADABLE:
    pytest.skip("Keras has another backend in this process", allow_module_level=True)

from cubemesh.frameworks.contract.own_module import DescriptionRequest
from cubemesh.frameworks.keras import own as keras_own
from cubemesh.frameworks.keras.on_tensorflow import build
from cubemesh.frameworks.tensorflow.runtime import prepare
from cubemesh.networks.own_networks import network_of
from cubemesh.user_code import UserCodeError, locate_network
from cubemesh.worker.describe import describe

FILE = Path(__file__).parents[2] / "support" / "keras_models.py"
FORWARD_PRODUCTS = 2 * 64 * 3 * 9 * 8


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """TensorFlow's threads are set before its first operation."""
    prepare("cpu", 1)


def described(name):
    named = locate_network(f"{FILE}:{name}")
    return describe(DescriptionRequest(named=named, input_shape=(3, 8, 8)))[0]


def test_a_model_is_one_layer_with_its_arrays_and_counts():
    own = described("build")
    untraced = "it is a Keras model, and only modules of PyTorch are traced to layers"
    assert (own.fault, own.untraced, own.framework) == ("", untraced, "keras")
    network = network_of(own)
    assert network.parameter_count == 3 * 9 * 8 + 8 + 2 * 8 + 8 * 10 + 10
    assert [a.shape for a in network.state.values()] == [(8,), (8,)]
    layer = network.nodes[0].layer
    assert 0.9 * FORWARD_PRODUCTS < layer.forward_flops < 1.3 * FORWARD_PRODUCTS
    assert layer.backward_flops > 0.9 * FORWARD_PRODUCTS
    assert 512 <= layer.saved_values <= 6 * 512


@pytest.mark.parametrize("name", ["build", "Net"])
def test_it_trains_as_it_is(name, make_request, make_batch):
    network = network_of(described(name))
    program = build(make_request(network, layout="nhwc", optimizer="sgd", learning_rate=0.1))
    weights = network.draw(0)
    program.load(weights)
    assert all(np.array_equal(a, weights[n]) for n, a in program.state().items())
    placed = program.place(make_batch(network))
    losses = []
    for _ in range(5):
        program.train_step(placed)
        losses.append(program.loss())
    assert losses[-1] < losses[0]
    assert program.evaluate(placed).shape == (4, 10)
    program.close()


def test_a_keras_on_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras_own.keras.backend, "backend", lambda: "jax")
    named = locate_network(f"{FILE}:build")
    with pytest.raises(UserCodeError, match="its Keras runs on jax, and here"):
        keras_own.load(named)
