"""Going on from a checkpoint on a GPU: dropout draws from the device's generator there, and the
fused optimizer keeps its count of steps on it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.data.images.arrays import FloatImages
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch import build, captured
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel import strategies
from cubemesh.schema import Placement, ProgramSettings, Train
from cubemesh.training.checkpoint import Checkpoint, load, save

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


def network():
    """No convolution: cuDNN may sum in another order from run to run."""
    net = NetworkBuilder("dropping")
    x = net.flatten(net.input("image", (1, 6, 6)))
    x = net.dropout(net.relu(net.linear(x, 32)), 0.5)
    net.classify(net.linear(x, 10))
    return net.build()


def made(precision, build=build):
    program = build(
        BuildRequest(
            network=network(),
            work=Train(network="dropping", batch_per_device=8, optimizer="adam"),
            placement=Placement(),
            program=ProgramSettings(precision=precision),
            sync=strategies.make("none"),
            device="cuda:0",
            threads=1,
        )
    )
    program.load(network().draw(0))
    return program


def bits(program):
    snapshot = program.snapshot()
    return {n: a.tobytes() for n, a in {**snapshot.weights, **snapshot.arrays}.items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_five_steps_and_five_in_a_new_program_equal_ten(tmp_path, precision):
    rng = np.random.default_rng(3)
    images = rng.random((80, 1, 6, 6), dtype=np.float32)
    source = FloatImages("noise", images, rng.integers(0, 10, 80), 10)
    batches = [source.batch(np.arange(8 * n, 8 * n + 8)) for n in range(10)]
    through = made(precision)
    for step, batch in enumerate(batches, 1):
        through.train_step(through.place(batch))
        if step == 5:
            held = Checkpoint(step=5, snapshot=through.snapshot())
            save(tmp_path, 0, 1, held)
    assert "random.cuda" in through.snapshot().arrays
    parted = made(precision)
    parted.restore(load(tmp_path, 5, 0, 1).snapshot)
    for batch in batches[5:]:
        parted.train_step(parted.place(batch))
    assert bits(parted) == bits(through)
    assert parted.snapshot().plain == through.snapshot().plain
    assert parted.fingerprint() == through.fingerprint()


def test_a_captured_step_uses_the_learning_rate_set_last():
    rng = np.random.default_rng(3)
    source = FloatImages(
        "noise", rng.random((8, 1, 6, 6), dtype=np.float32), rng.integers(0, 10, 8), 10
    )
    batch = source.batch(np.arange(8))
    program = made("fp32", captured.build)
    for rate in [0.01] * 5 + [0.0] * 5:
        program.set_learning_rate(rate)
        program.train_step(program.place(batch))
        if rate:
            before = program.state()
    after = program.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    program.set_learning_rate(0.01)
    program.train_step(program.place(batch))
    assert any(not np.array_equal(after[name], array) for name, array in program.state().items())
