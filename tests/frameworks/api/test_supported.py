import dataclasses

import pytest

from cubemesh.frameworks.api.framework import Capabilities, Unsupported
from cubemesh.frameworks.api.supported import check_supported
from cubemesh.schema.spec import Placement, ProgramSettings, RunSpec
from cubemesh.schema.work import Ceiling, TrainSteps

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
        (varied(program=ProgramSettings(sync="ring")), "exchange 'ring' here; it offers none"),
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
