"""What only several GPUs can show: exchanges over NCCL, two ranks against one.

Needs torch, numpy and pytest, and `PYTHONPATH=src`. The ranks run this very file as a script."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch import build, captured, join, launch
from cubemesh.frameworks.pytorch.distributed.p2p_all_reduce import average_into
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

RANKS, STEPS, GLOBAL_BATCH = 2, 20, 8
BUCKET_BYTES = 4096
"""Small, so that there are two buckets, one of them of fewer numbers than ranks would share."""
NORMED = "all-reduce, batch_norm=global"
CAPTURED = ("all-reduce, captured", "all-reduce-copied, captured")
SAME = (
    *("all-reduce", "all-reduce-copied", NORMED, "parameter-server", "model-parallel", "pipeline"),
    *("parameter-server-cpu", "parameter-server-cpu, captured"),
    *("fully-sharded", "sharded-gradients", "sharded-optimizer"),
    *CAPTURED,
)
ROUNDED = tuple(
    f"{name}-16{how}"
    for name in ("all-reduce", "all-reduce-copied")
    for how in ("", ", captured", ", captured, bf16")
)
STALE = ("asynchronous", "asynchronous-aware")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="PyTorch finds no two GPUs here"),
]


def small(normed=False):
    net = NetworkBuilder("small")
    x = net.input("image", (3, 8, 8))
    with net.segment("features"):
        x = net.conv(x, 4, kernel=3)
        x = net.relu(net.batch_norm(x) if normed else x)
    with net.segment("classifier"):
        net.classify(net.linear(net.flatten(x), 10))
    return net.build()


def train(name, group, device, part):
    """The weights after some steps, and whose gradients a server applied."""
    normed, made = name == NORMED, captured.build if "captured" in name else build
    precision = "bf16" if "bf16" in name else "fp64"
    network, name = small(normed), name.split(",")[0]
    sync = strategies.make(name, group, BUCKET_BYTES)
    program = made(
        BuildRequest(
            network=network,
            work=TrainSteps(network="small", batch_per_device=GLOBAL_BATCH, momentum=0.9),
            placement=Placement(device="cuda", devices=group.size),
            program=ProgramSettings(
                precision=precision, sync=name, batch_norm="global" if normed else "device"
            ),
            sync=sync,
            device=device,
            threads=1,
            group=group,
        )
    )
    if made is captured.build:  # from then on weights are narrowed together
        images = np.zeros((GLOBAL_BATCH, 3, 8, 8), np.float32)[part]
        batch = Batch(images=images, labels=np.zeros(len(images), np.int64))
        program.compile(program.place(batch))
    program.load(network.draw(1))
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        images = rng.random((GLOBAL_BATCH, 3, 8, 8), dtype=np.float32)
        labels = rng.integers(0, 10, GLOBAL_BATCH)
        program.train_step(program.place(Batch(images=images[part], labels=labels[part])))
    program.synchronize()
    found = {}
    if name in STALE:
        program.synchronize_replicas()
        found = {"workers": np.array(sync.applied.workers, dtype=np.int64)}
        found["staleness"] = np.array(sync.applied.staleness, dtype=np.int64)
    found |= program.state()
    program.close()
    return found


def rank(folder):
    """What each of the two processes does."""
    own = int(os.environ["RANK"])
    group = join(f"cuda:{own}", 60.0)
    each = GLOBAL_BATCH // RANKS
    for name in (*SAME, *ROUNDED, *STALE):
        whole = name in ("model-parallel", "pipeline")
        part = slice(None) if whole else slice(own * each, (own + 1) * each)
        np.savez(Path(folder, f"{name}-{own}.npz"), **train(name, group, f"cuda:{own}", part))
    group.close()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(exchange, rank) → what that rank found."""
    folder = tmp_path_factory.mktemp("gpus")
    subprocess.run([sys.executable, __file__, folder], check=True, timeout=600)
    names = (*SAME, *ROUNDED, *STALE)
    return {(e, n): dict(np.load(folder / f"{e}-{n}.npz")) for e in names for n in range(RANKS)}


@pytest.mark.parametrize("sync", SAME)
def test_two_gpus_equal_one(found, sync):
    own = sync if sync == NORMED else "none"  # eager
    alone = train(own, SingleProcessGroup(), "cuda:0", slice(None))
    for n in range(RANKS):
        for name, array in alone.items():
            np.testing.assert_allclose(
                found[sync, n][name], array, rtol=1e-10, atol=1e-10, err_msg=name
            )


@pytest.mark.parametrize("sync", ROUNDED)
def test_gradients_sent_as_16_bits_are_close_and_equal_on_all_ranks(found, sync):
    begun = small().draw(1)
    alone = train(
        "none, bf16" if "bf16" in sync else "none", SingleProcessGroup(), "cuda:0", slice(None)
    )
    first, second = found[sync, 0], found[sync, 1]
    for name, array in alone.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        moved = np.linalg.norm(array - begun[name])
        off = np.linalg.norm(first[name] - array)
        assert 0 < off < (0.1 if "bf16" in sync else 0.01) * moved, name


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_mean_of_several_ranks(rows, dtype):
    mine = torch.randn(70_001, device="cuda", dtype=dtype)
    others = torch.randn(rows, 70_001, device="cuda", dtype=dtype)
    wanted = torch.cat([mine[None], others]).double().mean(0)
    average_into(mine, others)
    error = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(mine.double(), wanted, rtol=error, atol=error)


@pytest.mark.parametrize("sync", STALE)
def test_every_gradient_is_applied_once_and_all_end_with_the_same_weights(found, sync):
    first, second = found[sync, 0], found[sync, 1]
    assert sorted(first["workers"].tolist()) == [0] * STEPS + [1] * STEPS
    assert 0 < first["staleness"].mean() <= 1
    for name in (n for n in first if n not in ("workers", "staleness")):
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        assert np.isfinite(first[name]).all()


if __name__ == "__main__":
    failed = launch(rank, sys.argv[1], RANKS)
    sys.exit(f"ranks failed: {failed}" if failed else 0)
