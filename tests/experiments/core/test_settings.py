import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import Request, apply, request, settable, split
from cubemesh.experiments.registry import EXPERIMENTS, Context
from cubemesh.schema import Ceiling, Collective, Forward, Placement, RunSpec, TrainSteps

MINIBATCH = EXPERIMENTS["minibatch"]


def ask(*pairs: str):
    return request(MINIBATCH, split(pairs))


def test_experiment_settings_and_spec_fields_are_separated():
    wanted = ask(
        "batch_sizes=8,16", "networks=little-cnn", "framework=null", "seconds=2m", "threads=1"
    )
    assert wanted.settings.batch_sizes == (8, 16)
    assert wanted.overrides == {"framework": "null", "seconds": 120.0, "threads": 1}


def test_sizes_none_and_booleans():
    wanted = ask("memory_limit_bytes=2GiB", "image_size=none", "ceiling=false")
    assert wanted.overrides == {"memory_limit_bytes": 2 << 30, "image_size": None}
    assert wanted.settings.ceiling is False


def test_precision_per_layer_and_loss_scale():
    wanted = ask("precision=fp16", "loss_scale=1024", "precision_of=classifier=fp32,conv1=bf16")
    assert wanted.overrides["loss_scale"] == 1024.0
    assert wanted.overrides["precision_of"] == ("classifier=fp32", "conv1=bf16")
    assert ask("loss_scale=dynamic").overrides == {"loss_scale": "dynamic"}
    assert ask("loss_scale=none").overrides == {"loss_scale": None}


def test_a_network_is_known_by_its_usual_spellings():
    assert ask("networks=ResNet50").settings.networks == ("resnet-50",)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("batch_size=8", "Nearest: batch_sizes"),
        ("framwork=null", "Nearest: framework"),
        ("networks=resnet-5O", "Nearest: resnet-50"),
        ("batch_per_device=8", "Use --set batch_sizes="),
        ("batch_sizes=8,x", "valid integer"),
        ("precision=fp12", "fp32"),
        ("loss_scale=big", "loss_scale=big"),
        ("seconds=soon", "soon"),
        ("memory_limit_bytes=lots", "lots"),
        ("epochs=3", "not a setting of minibatch"),
        ("networks", "key=value"),
        ("network=vgg16", "networks="),
        ("=3", "key=value"),
    ],
)
def test_invalid_settings_name_the_valid_ones(pair, expected):
    with pytest.raises(UsageError, match=expected):
        ask(pair)


def test_a_key_given_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        ask("threads=1", "threads=2")


def test_overrides_reach_the_part_that_has_the_field():
    overrides = {"precision": "bf16", "learning_rate": 0.5, "steps": 7, "threads": 3}
    steps = apply(RunSpec(work=TrainSteps(network="a", batch_per_device=8)), overrides)
    assert (steps.program.precision, steps.work.learning_rate) == ("bf16", 0.5)
    assert (steps.budget.steps, steps.placement.threads) == (7, 3)
    ceiling = apply(RunSpec(work=Ceiling()), overrides)
    assert ceiling.program.precision == "bf16"
    assert ceiling.work == Ceiling()


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize("key", ["steps", "windows", "threads", "devices", "memory_limit_bytes"])
def test_zero_and_negative_are_refused_when_the_spec_is_made(key, value):
    spec = RunSpec(work=TrainSteps(network="a", batch_per_device=8))
    with pytest.raises(UsageError, match=key):
        apply(spec, ask(f"{key}={value}").overrides)


@given(st.lists(st.integers(min_value=1, max_value=10**6), min_size=1, max_size=8))
def test_lists_survive_the_command_line(batches):
    text = ",".join(map(str, batches))
    assert ask(f"batch_sizes={text}").settings.batch_sizes == tuple(batches)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_parsed_or_a_usage_error(key, value):
    try:
        read = ask(f"{key}={value}")
    except UsageError:
        read = None
    assert read is None or isinstance(read, Request)


@pytest.mark.parametrize(
    ("work", "overrides", "sync"),
    [
        (TrainSteps, {"devices": 2}, "all-reduce"),
        (TrainSteps, {"devices": 1}, "none"),
        (TrainSteps, {"devices": 2, "sync": "none"}, "none"),
        (TrainSteps, {"devices": 2, "sync": "local-sgd"}, "local-sgd"),
        (Forward, {"devices": 2}, "none"),
    ],
)
def test_training_on_several_devices_uses_all_reduce_by_default(work, overrides, sync):
    spec = RunSpec(work=work(network="little-cnn", batch_per_device=8))
    changed = apply(spec, overrides)
    assert changed.program.sync == sync
    assert changed.placement.devices == overrides["devices"]


PLANNING = [e for e in EXPERIMENTS.values() if e.plans_devices and "hosts" in settable(e)]


@pytest.mark.parametrize("experiment", PLANNING, ids=lambda e: e.name)
def test_hosts_do_not_change_the_devices_that_an_experiment_plans(experiment, machine):
    """A single device stays on this host; strategies and numbers of devices are the plan's own."""
    overrides = request(experiment, {"hosts": "a,b"}).overrides
    asked = next(experiment.plan(experiment.settings(), Context(machine=machine, hosts=2)))
    assert asked
    for spec in asked:
        on_hosts = apply(spec, overrides, plans_devices=True)
        assert on_hosts.placement.devices == spec.placement.devices
        assert on_hosts.program == spec.program
        assert on_hosts.placement.hosts == (("a", "b") if spec.placement.devices > 1 else ())


def test_an_experiment_that_plans_no_devices_has_one_on_each_host():
    spec = apply(
        RunSpec(work=TrainSteps(network="a", batch_per_device=8)), {"hosts": ("a", "b", "c")}
    )
    assert (spec.placement.devices, spec.program.sync) == (3, "all-reduce")


def test_operations_between_devices_need_one_on_each_host():
    spec = RunSpec(work=Collective(), placement=Placement(devices=2))
    changed = apply(spec, {"hosts": ("a", "b", "c")}, plans_devices=True)
    assert changed.placement.devices == 3
