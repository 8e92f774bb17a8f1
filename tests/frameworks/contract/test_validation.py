import pytest

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.validation import check_layers, check_weights
from cubemesh.networks.layers import LAYERS, Dropout


def test_a_network_with_a_layer_that_is_not_lowered_is_refused():
    network = networks.build("little-cnn")
    check_layers(network, LAYERS.values(), "tensorflow")
    few = [kind for kind in LAYERS.values() if kind is not Dropout]
    with pytest.raises(Unsupported, match=r"tensorflow.*Dropout.*little-cnn"):
        check_layers(network, few, "tensorflow")


def test_weights_must_be_those_of_the_network():
    network = networks.build("little-cnn")
    weights = network.draw(0)
    check_weights(weights, network)
    with pytest.raises(UsageError, match=r"1 of .*12.*'fc2.bias'"):
        check_weights({n: a for n, a in weights.items() if n != "fc2.bias"}, network)
    with pytest.raises(UsageError, match=r"'fc3\.bias'.*little-cnn"):
        check_weights({**weights, "fc3.bias": weights["fc2.bias"]}, network)
    with pytest.raises(UsageError, match=r"\(512,\).*\(10,\)"):
        check_weights({**weights, "fc2.bias": weights["fc1.bias"]}, network)
