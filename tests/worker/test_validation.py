"""Unsupported settings are refused, with the setting and what is supported."""

from dataclasses import replace

import pytest

from cubemesh import frameworks
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Capabilities, NotInstalled, Unsupported
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.schema.collective import Collective
from cubemesh.schema.spec import (
    Against,
    Budget,
    CheckpointSettings,
    Placement,
    ProgramSettings,
    RunSpec,
)
from cubemesh.schema.work import (
    Ceiling,
    FirstSteps,
    Forward,
    ForwardBackward,
    Input,
    Train,
    TrainSteps,
)
from cubemesh.worker.validation import check_names, check_supported, supported_strategies

ABLE = Capabilities(
    works=frozenset({"train_steps"}),
    devices=("cuda:0", "cpu"),
    precisions={"cuda": frozenset({"fp32", "bf16"}), "cpu": frozenset({"fp32"})},
    layouts=frozenset({"nchw"}),
    optimizers=frozenset({"sgd"}),
)
ALL = replace(
    ABLE,
    works=frozenset({"train_steps", "forward", "train", "input", "collective"}),
    sync_features=frozenset(
        {
            *("all-reduce", "hooks", "weight-server", "cpu-server"),
            *("model-parallel", "tensor-parallel", "hybrid-by-layer", "context-parallel"),
            "sharded",
        }
    ),
    decodes=True,
    scripted=True,
)
FEED = {"network": "little-cnn", "batch_per_device": 8}
SPEC = RunSpec(work=TrainSteps(**FEED))
ON_CPU = Placement(device="cpu")


def program(**settings):
    return replace(SPEC, program=ProgramSettings(**settings))


def refusal(spec, able):
    try:
        check_supported(spec, able)
    except Unsupported as refused:
        return str(refused)
    return ""


def test_passes_without_an_update_run_on_one_device():
    able = replace(ALL, works=ALL.works | {"forward_backward"})
    one = RunSpec(work=ForwardBackward(**FEED))
    assert refusal(one, able) == ""
    assert "Set devices=1" in refusal(replace(one, placement=Placement(devices=2)), able)


def test_a_fixed_number_of_steps_needs_lockstep_and_does_not_alternate():
    exact = Budget(exact_steps=True)
    assert refusal(replace(SPEC, budget=exact), ALL) == ""
    free = replace(program(sync="asynchronous"), placement=Placement(devices=2), budget=exact)
    assert "sync=asynchronous" in refusal(free, ALL)
    against = Against(work=SPEC.work, placement=SPEC.placement, program=SPEC.program)
    assert "exact_steps" in refusal(replace(SPEC, budget=exact, against=against), ALL)


def test_supported_settings_pass():
    two = replace(program(sync="all-reduce"), placement=Placement(devices=2))
    assert refusal(SPEC, ABLE) == ""
    assert refusal(program(precision="bf16"), ABLE) == ""
    assert refusal(two, ALL) == ""


@pytest.mark.parametrize(
    ("spec", "given", "supported"),
    [
        (replace(SPEC, work=Ceiling()), "'ceiling'", "train_steps"),
        (replace(program(precision="bf16"), placement=ON_CPU), "'bf16'", "fp32"),
        (program(layout="nhwc"), "'nhwc'", "layout=nchw"),
        (program(sync="all-reduce"), "'all-reduce'", "none"),
        (program(script="step=1"), "script", "framework=null"),
        (program(compile_by="segment"), "'segment'", "network"),
        (program(deterministic=True), "deterministic", "framework=pytorch"),
        (program(decode_location="device"), "'device'", "host"),
        (replace(SPEC, placement=Placement(devices=2)), "devices=2", "devices=1"),
        (replace(SPEC, work=TrainSteps(**FEED, optimizer="adam")), "'adam'", "sgd"),
        (program(precision="bf16", precision_of=("fc1=fp32",)), "precision_of", "Leave"),
    ],
)
def test_refused_by_capabilities(spec, given, supported):
    with pytest.raises(Unsupported) as refused:
        check_supported(spec, ABLE)
    assert given in str(refused.value)
    assert supported in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        (replace(SPEC, work=Collective()), "devices=1"),
        (
            replace(
                program(sync="all-reduce"),
                placement=replace(ON_CPU, devices=2, numa_node=0),
            ),
            "numa_node",
        ),
        (
            replace(
                program(sync="asynchronous"),
                placement=Placement(devices=2),
                budget=Budget(attribution=True),
            ),
            "'asynchronous'",
        ),
        (replace(SPEC, budget=Budget(memory_limit_bytes=1 << 30)), "memory_limit_bytes"),
        (replace(program(script="step=1"), work=TrainSteps(**FEED, data="images")), "data=images"),
        (program(decode_location="device"), "data=synthetic"),
        (
            replace(program(data_location="device"), work=Train(**FEED)),
            "data_location=host",
        ),
        (
            replace(
                program(decode_location="device"), work=Input(**FEED, data="images", stage="read")
            ),
            "stage=read",
        ),
        (
            replace(
                program(sync="asynchronous"),
                work=Train(**FEED),
                checkpointing=CheckpointSettings(checkpoints="folder"),
            ),
            "sync=asynchronous",
        ),
        (
            replace(
                program(sync="parameter-server-cpu"),
                work=Train(**FEED),
                checkpointing=CheckpointSettings(checkpoints="folder"),
            ),
            "optimizer state on the server",
        ),
        (replace(SPEC, against=Against(work=Forward(**FEED))), "same kind of work"),
        (
            replace(SPEC, against=Against(work=SPEC.work, placement=Placement(numa_node=1))),
            "numa_node",
        ),
        (replace(SPEC, against=Against(work=SPEC.work, placement=ON_CPU)), "device=cpu"),
    ],
)
def test_refused_combinations(spec, given):
    with pytest.raises(Unsupported) as refused:
        check_supported(spec, ALL)
    assert given in str(refused.value)


def test_a_missing_device_is_refused():
    able = replace(ABLE, devices=("cpu",), hint="Install it.")
    with pytest.raises(Unsupported, match=r"'cuda'.*\bcpu\b.*Install it\."):
        check_supported(replace(SPEC, placement=Placement(device="cuda")), able)
    with pytest.raises(Unsupported, match=r"Install it\.") as refused:
        check_supported(SPEC, replace(able, devices=()))
    assert not isinstance(refused.value, NotInstalled)


def test_a_device_that_an_installation_would_add_is_not_installed():
    able = replace(ABLE, devices=("cpu",), hint="Install it.", lacking=frozenset({"cuda"}))
    with pytest.raises(NotInstalled, match=r"Install it\."):
        check_supported(replace(SPEC, placement=Placement(device="cuda")), able)
    with pytest.raises(NotInstalled, match=r"Install it\."):
        check_supported(SPEC, replace(able, devices=()))


def test_loss_scaling():
    able = replace(
        ABLE, precisions={"cuda": frozenset({"fp16"})}, loss_scales=frozenset({"static"})
    )
    check_supported(program(precision="fp16", loss_scale=8.0), able)
    with pytest.raises(Unsupported, match=r"'dynamic'.* static"):
        check_supported(program(precision="fp16", loss_scale="dynamic"), able)


def test_strategies_of_a_framework_follow_from_their_needs():
    assert supported_strategies(ABLE) == ["none"]
    one = replace(ABLE, sync_features=frozenset({"all-reduce"}))
    assert supported_strategies(one) == ["none", "all-reduce"]
    assert supported_strategies(ALL) == list(STRATEGIES)


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        (program(sync="all-reduc"), "all-reduc"),
        (program(script="step=1"), "pytorch"),
        (program(framework="null", script="step=oops"), "oops"),
        (replace(SPEC, work=TrainSteps(network="little-cn", batch_per_device=8)), "little-cn"),
        (replace(program(data_location="device"), work=Train(**FEED)), "data_location=device"),
        (replace(SPEC, work=TrainSteps(**FEED, data="digits", classes=3)), "classes=10"),
    ],
)
def test_unknown_names_and_impossible_settings_are_errors_before_a_run(spec, given):
    with pytest.raises(UsageError) as error:
        check_names([SPEC, spec])
    assert given in str(error.value)


@pytest.mark.parametrize(
    ("fields", "batch", "given", "remedy"),
    [
        ({"sync": "model-parallel"}, 8, "sync=model-parallel", "sync=all-reduce"),
        ({}, 6, "batch_per_device=6", "multiple"),
    ],
)
def test_micro_batches_have_equal_sizes_and_stay_on_their_device(fields, batch, given, remedy):
    work = TrainSteps(network="little-cnn", batch_per_device=batch, accumulation_steps=4)
    devices = 2 if fields else 1
    spec = replace(program(**fields), work=work, placement=Placement(devices=devices))
    message = refusal(spec, replace(ALL, accumulates=True))
    assert given in message
    assert remedy in message
    assert "accumulation_steps=4" in refusal(spec, ALL)
    assert "pytorch" in refusal(spec, ALL)


@pytest.mark.parametrize(
    ("work", "settings", "words"),
    [
        ({}, {}, ""),
        ({"momentum": 0.9}, {}, "momentum=0.9"),
        ({"weight_decay": 0.1}, {}, "weight_decay=0.1"),
        ({"accumulation_steps": 2}, {}, "accumulation_steps=2"),
        ({}, {"sync": "all-reduce"}, "sync=all-reduce"),
    ],
)
def test_sparse_gradients_are_for_plain_sgd_on_one_device(work, settings, words):
    fields = {"momentum": 0.0, "embedding_gradients": "sparse", **work}
    spec = replace(
        program(**settings), work=TrainSteps(network="dlrm-small", batch_per_device=8, **fields)
    )
    able = replace(ALL, accumulates=True, sparse_gradients=True)
    found = refusal(spec, able)
    assert bool(found) == bool(words)
    assert words in found
    assert "framework=pytorch" in refusal(spec, replace(able, sparse_gradients=False))


def test_sparse_gradients_need_tables():
    check_names([RunSpec(work=TrainSteps(network="dlrm-small", batch_per_device=8))])
    with pytest.raises(UsageError, match=r"embedding_gradients=sparse: little-cnn .*dlrm-small"):
        check_names([replace(SPEC, work=TrainSteps(**FEED, embedding_gradients="sparse"))])


def test_accumulation_is_supported_by_the_simulated_framework():
    work = Train(**FEED, accumulation_steps=4)
    settings = ProgramSettings(framework="null", checkpoint_activations="auto")
    spec = RunSpec(work=work, program=settings, placement=ON_CPU)
    assert refusal(spec, frameworks.entry("null").load().capabilities()) == ""
    with pytest.raises(UsageError, match="accumulation_steps=0"):
        TrainSteps(**FEED, accumulation_steps=0)


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        (program(checkpoint_activations="segments"), ""),
        (replace(program(checkpoint_activations="auto"), work=Forward(**FEED)), ""),
        (replace(program(checkpoint_activations="auto"), work=FirstSteps(**FEED)), "traced twice"),
        (
            replace(
                program(checkpoint_activations="auto", sync="all-reduce", batch_norm="global"),
                placement=Placement(devices=2),
            ),
            "batch_norm=global",
        ),
        (
            replace(
                program(checkpoint_activations="segments", sync="model-parallel"),
                placement=Placement(devices=2),
            ),
            "sync=model-parallel",
        ),
    ],
)
def test_activations_are_computed_again_where_that_is_possible(spec, given):
    able = replace(
        ALL,
        works=ALL.works | {"first_steps"},
        checkpoints_activations=True,
        batch_norms=frozenset({"device", "global"}),
    )
    assert given in refusal(spec, able)
    assert bool(given) == bool(refusal(spec, able))
    unable = replace(able, checkpoints_activations=False)
    assert ("set framework=pytorch" in refusal(spec, unable)) == isinstance(
        spec.work, TrainSteps | FirstSteps
    )
