"""Two real processes under MultiWorkerMirroredStrategy, against one: the same global minibatch, the
same training. The ranks run this very file as a script."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.tensorflow import build, join, launch
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

RANKS = 2
GLOBAL_BATCH = 8
TOLERANCE = 1e-10


def small():
    net = NetworkBuilder("small")
    x = net.relu(net.conv(net.input("image", (3, 8, 8)), 4, kernel=3))
    net.classify(net.linear(net.flatten(x), 10))
    return net.build()


def train(group, sync, part=slice(None)):
    """The weights after three steps on `part` of every global minibatch."""
    network = small()
    program = build(
        BuildRequest(
            network=network,
            work=TrainSteps(network="small", batch_per_device=GLOBAL_BATCH, momentum=0.9),
            placement=Placement(devices=group.size),
            program=ProgramSettings(precision="fp64", layout="nhwc", sync=sync),
            sync=strategies.make(sync, group),
            device="cpu",
            threads=1,
            group=group,
        )
    )
    program.load(network.draw(1))
    rng = np.random.default_rng(0)
    for number in range(3):
        if number == 2 and group.size > 1:  # as a resumed training does
            snapshot = program.snapshot()
            program.load(network.draw(2))
            program.restore(snapshot)
        images = rng.random((GLOBAL_BATCH, 3, 8, 8), dtype=np.float32)
        labels = rng.integers(0, 10, GLOBAL_BATCH)
        program.train_step(program.place(Batch(images=images[part], labels=labels[part])))
    if sync != "none":
        assert len(set(group.all_gather_object(program.fingerprint()))) == 1
    return program.state()


def rank(folder):
    """What each of the two processes does."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # a thread each
    group = join("cpu", 600.0)
    assert group.size == RANKS
    assert group.broadcast_object(["says", group.rank]) == ["says", 0]
    assert group.all_gather_object(10 * group.rank) == [0, 10]
    assert group.poll_flag("enough", False) is False
    group.barrier()
    group.poll_flag("enough", True)
    group.barrier()
    assert group.poll_flag("enough", group.rank == 0)
    each = GLOBAL_BATCH // RANKS
    part = slice(group.rank * each, (group.rank + 1) * each)
    for sync in ("all-reduce", "none"):
        found = train(group, sync, part)
        np.savez(Path(folder, f"{sync}-{group.rank}.npz"), **found)
    if group.rank == 0:
        one = slice(0, each)
        np.savez(Path(folder, "alone.npz"), **train(SingleProcessGroup(), "none"))
        np.savez(Path(folder, "first.npz"), **train(SingleProcessGroup(), "none", one))
    group.close()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """File → the arrays in it."""
    folder = tmp_path_factory.mktemp("workers")
    subprocess.run([sys.executable, __file__, folder], check=True)
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


def assert_close(found, expected, tolerance):
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def test_two_workers_equal_one_with_the_same_global_batch(found):
    assert_close(found["all-reduce-0"], found["alone"], TOLERANCE)
    assert_close(found["all-reduce-1"], found["all-reduce-0"], 0)


def test_workers_without_synchronization_differ(found):
    assert_close(found["none-0"], found["first"], TOLERANCE)
    assert any(np.abs(found["none-0"][n] - found["none-1"][n]).max() > 1e-6 for n in found["alone"])


if __name__ == "__main__":
    failed = launch(rank, sys.argv[1], RANKS)
    sys.exit(f"ranks failed: {failed}" if failed else 0)
