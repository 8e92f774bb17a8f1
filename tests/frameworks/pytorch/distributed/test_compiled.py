"""Compiled steps of two ranks that divide state, layers or sequences, against their eager steps.

The ranks run this very file as a script. On a CPU the functions are traced and not made into C++.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch import build, captured, compiled, join, launch
from cubemesh.frameworks.pytorch.distributed.graph_partition import parts_around
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.program import total_loss
from cubemesh.networks.layers import Attention
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import Forward, TrainSteps

STRATEGIES = (
    *("fully-sharded", "sharded-gradients", "sharded-optimizer"),
    *("tensor-parallel", "context-parallel"),
)
NETWORK = gpt("small-gpt", 8, 13, width=8, depth=1, heads=2)
GLOBAL_BATCH, STEPS = 4, 3


def request_of(sync, group, device="cpu", network=NETWORK, work=None):
    settings = ProgramSettings(precision="fp64", sync=sync, bucket_bytes=2048)
    chosen = strategies.make(sync, group)
    chosen.configure(settings)
    return BuildRequest(
        network=network,
        work=work or TrainSteps(network="small", batch_per_device=2, momentum=0.9),
        placement=Placement(devices=group.size),
        program=settings,
        sync=chosen,
        device=device,
        threads=1,
        group=group,
    )


def batch_of(sync, rank):
    drawn = np.random.default_rng(0)
    tokens = drawn.integers(0, 13, (GLOBAL_BATCH, 8))
    labels = drawn.integers(0, 13, (GLOBAL_BATCH, 8))
    together = strategies.strategy(sync).same_samples
    part = slice(None) if together else slice(2 * rank, 2 * rank + 2)
    return Batch(tokens[part], labels=labels[part])


def train(make, sync, group, device):
    """Losses, weights and scores of some steps, and the loss of a forward pass."""
    program = make(request_of(sync, group, device))
    placed = program.place(batch_of(sync, group.rank))
    if make is compiled.build:
        program.compile(placed)
    program.load(NETWORK.draw(1))
    found = {}
    for step in range(STEPS):
        program.train_step(placed)
        found[f"loss {step}"] = np.array(program.loss())
    found["scores"] = program.evaluate(placed)
    found |= program.state()
    program.close()
    work = Forward(network="small", batch_per_device=2)
    program = make(request_of(sync, group, device, work=work))
    if make is compiled.build:
        program.compile(placed)
    program.load(NETWORK.draw(1))
    program.forward(placed)
    found["loss of a forward pass"] = np.array(program.loss())
    program.close()
    return found


def rank(job):
    """What each process does."""
    kind, backend, folder, *names = job.split(" ")
    device = "cpu" if kind == "cpu" else f"cuda:{os.environ['LOCAL_RANK']}"
    compiled.BACKEND = backend
    group = join(device, 600.0)
    for sync in names:
        for how, make in (("eager", build), ("compiled", compiled.build)):
            found = train(make, sync, group, device)
            np.savez(Path(folder, f"{sync}-{how}-{group.rank}.npz"), **found)
    group.close()


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        pytest.param("cpu", "aot_eager", marks=pytest.mark.sweep),
        pytest.param(
            *("cuda", "inductor"),
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
            ],
        ),
    ],
)
def test_compiled_ranks_equal_eager_ranks(kind, backend, tmp_path):
    job = " ".join((kind, backend, str(tmp_path), *STRATEGIES))
    subprocess.run([sys.executable, "-W", "ignore", __file__, job], check=True, timeout=900)
    for sync in STRATEGIES:
        for n in range(2):
            eager, ours = (
                np.load(tmp_path / f"{sync}-{how}-{n}.npz") for how in ("eager", "compiled")
            )
            for name, array in eager.items():
                np.testing.assert_allclose(
                    ours[name], array, rtol=1e-9, atol=1e-10, err_msg=f"{sync} {name}"
                )


def test_what_is_between_two_nodes_is_compiled(monkeypatch):
    from cubemesh.frameworks.pytorch.distributed.compiled import compiled_between

    def separate(node):
        return isinstance(node.layer, Attention)

    names = [[node.name for node in nodes] for _, nodes in parts_around(NETWORK, separate)]
    assert [len(part) > 1 for part in names] == [True, False, True]
    assert [name for part in names for name in part] == [n.name for n in NETWORK.needed()]
    counted = []

    def counting(network=None):
        return lambda run: counted.append(run) or torch.compile(run, backend="eager")

    monkeypatch.setattr("cubemesh.frameworks.pytorch.distributed.compiled.compiler", counting)
    built = build_modules(NETWORK, dtype=torch.float64, overwrite=False)
    built.load(NETWORK.draw(1))
    placed = [torch.from_numpy(a) for a in (batch_of("context-parallel", 0).images,)]
    labels = placed[0]

    def loss(values, labels):
        return total_loss(NETWORK.heads, values, labels)

    expected = loss(built.training(*placed), labels)
    found = compiled_between(built, separate, loss)(*placed, labels)
    assert len(counted) == 2
    torch.testing.assert_close(found, expected)
    (values,) = compiled_between(built, separate)(*placed)
    torch.testing.assert_close(values, built.training(*placed)[0])


def test_only_the_compiled_framework_has_functions_between_collectives():
    divided = {"tensor-parallel", "context-parallel", "sharded"}
    assert divided <= compiled.SYNC_FEATURES
    assert "hybrid-by-layer" not in compiled.SYNC_FEATURES
    assert divided.isdisjoint(captured.capabilities().sync_features)


def test_recurrent_layers_with_divided_weights_are_not_compiled():
    from cubemesh.networks.builder import NetworkBuilder
    from cubemesh.networks.layers import LSTM

    net = NetworkBuilder("recurrent")
    x = net.add_layer(LSTM(hidden=4), net.embedding(net.token_input("tokens", 8, 13), 6))
    net.classify(net.linear(x, 13))
    request = request_of("fully-sharded", SimpleNamespace(rank=0, size=2), network=net.build())
    with pytest.raises(Unsupported, match=r"recurrent.*Set framework=pytorch, or sync=all-reduce"):
        compiled.build(request)


if __name__ == "__main__":
    if sys.argv[1].startswith("cpu"):  # once; a fork could not use a GPU afterwards
        compiled.preload()
    assert not launch(rank, sys.argv[1], 2)
