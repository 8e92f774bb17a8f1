"""Several devices of one process against one: the same global minibatch, the same training.

The network has batch normalization. Where its statistics are those of the global minibatch, devices
make the steps of one; where they are each device's own, the step is the mean of the steps that each
would make alone with its part."""

import dataclasses

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.jax import build, capabilities
from cubemesh.frameworks.jax.runtime import DEVICES_OPTION
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement
from cubemesh.schema.work import Forward

DEVICES = 2
SAMPLES = 8

pytestmark = pytest.mark.skipif(
    not hasattr(jax.config, DEVICES_OPTION), reason="this JAX makes one device of a CPU"
)


@pytest.fixture
def normed():
    net = NetworkBuilder("normed")
    x = net.relu(net.batch_norm(net.conv(net.input("image", (3, 6, 5)), 4, kernel=3)))
    net.classify(net.linear(net.flatten(x), 3))
    return net.build()


@pytest.fixture
def make(normed, make_request):
    def made(devices, sync="all-reduce", batch_norm="global", **fields):
        request = make_request(normed, **fields)
        program = build(
            dataclasses.replace(
                request,
                placement=Placement(devices=devices),
                program=dataclasses.replace(request.program, batch_norm=batch_norm),
                sync=strategies.make(sync),
            )
        )
        program.load(normed.draw(0))
        return program

    return made


def trained(program, make_batch, network):
    """The weights and state after three steps, each step's loss, and scores of a batch that does
    not divide."""
    losses = []
    for step in range(3):
        program.train_step(program.place(make_batch(network, SAMPLES, step)))
        losses.append(program.loss())
    scores = program.evaluate(program.place(make_batch(network, 5, 9)))
    return {**program.state(), "losses": np.array(losses), "scores": scores}


@pytest.mark.parametrize(
    ("fields", "tolerance"),
    [
        ({"precision": "fp64", "momentum": 0.9}, 1e-10),
        ({"precision": "fp32", "layout": "nhwc"}, 1e-4),
    ],
    ids=lambda value: value["precision"] if isinstance(value, dict) else "",
)
def test_several_devices_equal_one(fields, tolerance, make, make_batch, normed):
    found = trained(make(DEVICES, **fields), make_batch, normed)
    expected = trained(make(1, "none", **fields), make_batch, normed)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_batch_normalization_over_each_devices_own_samples(layout, make, make_batch, normed):
    fields = {"precision": "fp64", "layout": layout, "momentum": 0.0}
    whole = make_batch(normed, SAMPLES)
    each = SAMPLES // DEVICES

    def after_a_step(program, part=slice(None)):
        batch = Batch(*(array[part] for array in whole.inputs), labels=whole.labels[part])
        program.train_step(program.place(batch))
        return program.state() | {"loss": np.array(program.loss())}

    program = make(DEVICES, batch_norm="device", **fields)
    found = after_a_step(program)
    alone = [
        after_a_step(make(1, "none", **fields), slice(n * each, (n + 1) * each))
        for n in range(DEVICES)
    ]
    for name, array in found.items():
        mean = np.mean([one[name] for one in alone], axis=0)
        np.testing.assert_allclose(array, mean, rtol=1e-10, atol=1e-10, err_msg=name)
    over_all = after_a_step(make(DEVICES, batch_norm="global", **fields))
    assert max(np.abs(found[name] - over_all[name]).max() for name in normed.parameters) > 1e-6
    step = program._step.lower(program._carry, program._rate, *program.place(whole))
    assert "all-gather" not in step.compile().as_text(), "every device normalizes its own part"


def test_a_snapshot_of_several_devices_is_that_of_one(make, make_batch, normed):
    fields = {"precision": "fp64", "optimizer": "adam", "layout": "nhwc"}
    several, one = make(DEVICES, **fields), make(1, "none", **fields)
    placed = make_batch(normed, SAMPLES)
    several.train_step(several.place(placed))
    taken = several.snapshot()
    one.restore(taken)
    again = one.snapshot()
    for name, array in {**taken.weights, **taken.arrays}.items():
        assert array.tobytes() == {**again.weights, **again.arrays}[name].tobytes(), name
    assert again.plain == taken.plain
    several.restore(again)
    for program in (several, one):
        program.set_learning_rate(0.01)
        program.train_step(program.place(placed))
    found, expected = several.state(), one.state()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-10)
    for array in several._carry.optimizer["mean"].values():
        assert len(array.addressable_shards) == DEVICES


def test_every_device_has_the_weights_and_a_part_of_the_batch(make, make_batch, normed):
    program = make(DEVICES)
    images, labels = program.place(make_batch(normed, SAMPLES))
    for array in (images, labels):
        shards = [shard.data.shape[0] for shard in array.addressable_shards]
        assert shards == [SAMPLES // DEVICES] * DEVICES
    program.train_step((images, labels))
    for array in program._carry.parameters.values():
        shapes = {shard.data.shape for shard in array.addressable_shards}
        assert len(array.addressable_shards) == DEVICES
        assert shapes == {array.shape}
    text = program._step.lower(program._carry, program._rate, images, labels).compile().as_text()
    assert "all-reduce" in text


def test_training_without_synchronization_is_refused_and_forward_passes_need_none(
    make, make_batch, normed
):
    with pytest.raises(Unsupported, match="sync=all-reduce"):
        make(DEVICES, "none")
    work = Forward(network="normed", batch_per_device=4)
    program = make(DEVICES, "none", work=work)
    program.forward(program.place(make_batch(normed, SAMPLES)))
    assert np.isfinite(program.loss())


@pytest.mark.gpu
@pytest.mark.skipif(
    sum(device.startswith("cuda") for device in capabilities().devices) < DEVICES,
    reason="JAX finds no two GPUs here",
)
def test_two_gpus_equal_one(make, make_batch, normed):
    fields = {"precision": "fp64", "device": "cuda:0", "momentum": 0.9}
    found = trained(make(DEVICES, **fields), make_batch, normed)
    expected = trained(make(1, "none", **fields), make_batch, normed)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-10, err_msg=name)
