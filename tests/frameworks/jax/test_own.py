"""Flax modules of a user: their description, and their training as they are."""

from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytest.importorskip("flax", reason="Flax is not installed")

import flax_modules
from cubemesh.frameworks.contract.own_module import DescriptionRequest
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.validation import check_layers
from cubemesh.frameworks.jax.network import JaxFunction
from cubemesh.frameworks.jax.program import JaxProgram
from cubemesh.frameworks.jax.runtime import NUMERICS
from cubemesh.networks.cost import totals
from cubemesh.networks.opaque import Opaque
from cubemesh.networks.own_networks import network_of
from cubemesh.user_code import UserCodeError, locate_network
from cubemesh.worker.describe import describe

FILE = Path(flax_modules.__file__)
IMAGE = (3, 8, 8)
FORWARD_PRODUCTS = 2 * 64 * 3 * 9 * 8
"""FLOPs of the convolution without its borders, where it multiplies zeros."""


@pytest.fixture(scope="module")
def described():
    """The descriptions by name, made once."""
    found = {}

    def make(name):
        if name not in found:
            tokens = {"input_shape": (6,), "vocabulary": 11}
            given = tokens if name == "Words" else {"input_shape": IMAGE}
            request = DescriptionRequest(named=locate_network(f"{FILE}:{name}"), **given)
            found[name], arrays = describe(request)
            assert arrays is None
        return found[name]

    return make


@pytest.mark.parametrize("name", ["Net", "NewNet"])
def test_a_module_is_one_layer_with_its_arrays_and_counts(described, name):
    own = described(name)
    untraced = "it is a Flax module, and only modules of PyTorch are traced to layers"
    assert (own.fault, own.untraced, own.framework) == ("", untraced, "jax")
    network = network_of(own)
    assert network.parameter_count == 3 * 9 * 8 + 8 + 2 * 8 + 8 * 10 + 10
    assert sorted(a.shape for a in network.state.values()) == [(8,), (8,)]
    (node,) = network.nodes
    layer = node.layer
    assert layer.output == (10,)
    assert 0.7 * FORWARD_PRODUCTS < layer.forward_flops < 1.2 * FORWARD_PRODUCTS
    assert layer.backward_flops > 0.7 * FORWARD_PRODUCTS, "no gradient of the image"
    assert 3 * 8 * 64 <= layer.saved_values <= 6 * 8 * 64
    assert totals(network, 4).forward.flops >= 4 * layer.forward_flops


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", "building it raised ValueError: no such size (flax_modules.py, line"),
        ("Wrong", "returned values of shape (2, 8, 8, 3), and scores"),
        ("nothing_here", "there is no nothing_here in flax_modules.py"),
    ],
)
def test_what_cannot_be_run_is_a_fault(described, name, words):
    assert words in described(name).fault


@pytest.mark.parametrize(
    ("name", "layout"), [("Net", "nchw"), ("NewNet", "nhwc"), ("Words", "nhwc")]
)
def test_it_trains_as_it_is(described, make_request, make_batch, name, layout):
    network = network_of(described(name))
    program = JaxProgram(make_request(network, layout=layout, optimizer="sgd", learning_rate=0.1))
    weights = network.draw(0)
    program.load(weights)
    placed = program.place(make_batch(network))
    losses = []
    for _ in range(5):
        program.train_step(placed)
        losses.append(program.loss())
    assert losses[-1] < losses[0]
    after = program.state()
    assert set(after) == set(weights)
    assert all(not np.array_equal(after[n], weights[n]) for n in network.state)
    scores = program.evaluate(placed)
    assert scores.shape == (4, *network.targets[0].shape, network.targets[0].classes)
    assert np.array_equal(scores, program.evaluate(placed)), "no dropout in evaluation"
    program.close()


def test_a_changed_file_is_refused(described, make_request, tmp_path):
    copy = tmp_path / "flax_copy.py"
    copy.write_text(FILE.read_text())
    request = DescriptionRequest(named=locate_network(f"{copy}:plain"), input_shape=IMAGE)
    own, _ = describe(request)
    assert own.fault == ""
    copy.write_text(FILE.read_text() + "\n")
    with pytest.raises(UserCodeError, match="its source changed after the command began"):
        JaxProgram(make_request(network_of(own)))


def test_other_frameworks_name_the_one_that_runs_it(described):
    network = network_of(described("Net"))
    with pytest.raises(Unsupported, match=r"runs as it is, in JAX. Set framework=jax\."):
        check_layers(network, {Opaque}, "pytorch")
    with pytest.raises(Unsupported, match="Set framework=jax"):
        check_layers(network, (), "onnxruntime")


def test_normalization_of_each_device_is_refused_where_the_module_has_its_own(described):
    with pytest.raises(Unsupported, match="Set batch_norm=global"):
        JaxFunction(network_of(described("Net")), "nhwc", NUMERICS["fp32"], norm_parts=2)
