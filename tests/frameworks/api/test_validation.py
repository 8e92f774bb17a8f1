import dataclasses

import pytest

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.frameworks.api.program import Capabilities, Unsupported
from cubemesh.frameworks.api.validation import check_layers, check_weights
from cubemesh.networks.layers import LAYERS, Dropout
from cubemesh.schema.spec import Placement, ProgramSettings, RunSpec
from cubemesh.schema.work import Ceiling, TrainSteps
from cubemesh.worker.validation import check_supported

ABLE = Capabilities(
    works=frozenset({"train_steps"}),
    devices=("cuda:0", "cpu"),
    precisions={"cuda": frozenset({"fp32", "bf16"}), "cpu": frozenset({"fp32"})},
    layouts=frozenset({"nchw"}),
    optimizers=frozenset({"sgd"}),
)
SPEC = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))


def varied(**parts):
    return dataclasses.replace(SPEC, **parts)


def test_what_is_offered_passes():
    check_supported(SPEC, ABLE)
    check_supported(varied(program=ProgramSettings(precision="bf16")), ABLE)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (varied(work=Ceiling()), "work 'ceiling' here; it offers train_steps"),
        (
            varied(placement=Placement(device="cpu"), program=ProgramSettings(precision="bf16")),
            "on cpu the precision 'bf16' here; it offers fp32",
        ),
        (varied(program=ProgramSettings(layout="nhwc")), "layout 'nhwc'"),
        (
            varied(program=ProgramSettings(sync="all-reduce")),
            "sync 'all-reduce' here; it offers none",
        ),
        (varied(program=ProgramSettings(script="step=1")), "takes no script"),
        (varied(placement=Placement(devices=2)), "Set devices=1"),
        (
            varied(work=TrainSteps(network="little-cnn", batch_per_device=8, optimizer="adam")),
            "optimizer 'adam' here; it offers sgd",
        ),
        (
            varied(program=ProgramSettings(precision="bf16", precision_of=("fc1=fp32",))),
            "every layer in one precision",
        ),
    ],
)
def test_what_is_not_offered_is_refused_with_what_is(spec, words):
    with pytest.raises(Unsupported, match=words):
        check_supported(spec, ABLE)


def test_a_device_that_is_not_there_is_refused():
    able = dataclasses.replace(ABLE, devices=("cpu",))
    with pytest.raises(Unsupported, match="device 'cuda' here; it offers cpu"):
        check_supported(varied(placement=Placement(device="cuda")), able)
    with pytest.raises(Unsupported, match="no device"):
        check_supported(SPEC, dataclasses.replace(ABLE, devices=()))


def test_a_way_to_scale_the_loss_is_refused_with_those_there_are():
    able = dataclasses.replace(
        ABLE, precisions={"cuda": frozenset({"fp16"})}, loss_scales=frozenset({"static"})
    )
    check_supported(varied(program=ProgramSettings(precision="fp16", loss_scale=8.0)), able)
    with pytest.raises(Unsupported, match="loss scaling 'dynamic' here; it offers its own"):
        check_supported(
            varied(program=ProgramSettings(precision="fp16", loss_scale="dynamic")), able
        )


def test_a_network_with_a_layer_that_is_not_lowered_is_refused():
    network = networks.build("little-cnn")
    check_layers(network, LAYERS.values(), "tensorflow")
    few = [kind for kind in LAYERS.values() if kind is not Dropout]
    with pytest.raises(Unsupported, match="tensorflow has no Dropout layer, and little-cnn needs"):
        check_layers(network, few, "tensorflow")


def test_weights_must_be_those_of_the_network():
    network = networks.build("little-cnn")
    weights = network.draw(0)
    check_weights(weights, network)
    with pytest.raises(UsageError, match=r"1 of its 12 arrays are missing .*'fc2.bias'"):
        check_weights({n: a for n, a in weights.items() if n != "fc2.bias"}, network)
    with pytest.raises(UsageError, match=r"'fc3\.bias' is not an array of little-cnn\. Nearest:"):
        check_weights({**weights, "fc3.bias": weights["fc2.bias"]}, network)
    with pytest.raises(UsageError, match=r"of shape \(512,\) and must be \(10,\)"):
        check_weights({**weights, "fc2.bias": weights["fc1.bias"]}, network)
