"""Real processes that divide each sequence against one that has it whole: on a CPU through gloo, on
GPUs through NCCL.

The ranks run this very file as a script: what they do and what one process does is one function."""

import dataclasses
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.batches import PADDING, Batch
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch import build, join, launch
from cubemesh.frameworks.pytorch.distributed.context_parallel import CausalMasks
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.networks.layers import Attention
from cubemesh.networks.transformer_sizes import transformer
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.llama import llama
from cubemesh.parallel import strategies
from cubemesh.parallel.timed_group import TimedGroup
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

LENGTH, GLOBAL_BATCH = 8, 4
SIZES = {
    "gpt": "gpt:hidden=16,layers=1,heads=2,vocabulary=13",
    "bert": "bert:hidden=8,layers=1,heads=2,vocabulary=13",
    "llama": "llama:hidden=8,layers=2,heads=4,kv_heads=2,ffn=32,vocabulary=13",
}
PAIRS, MESH = ("gpt", "bert"), ("llama",)
KINDS = ("own gradient", "gradient", "w/", "r/", "loss", "scores")


def network_of(name):
    sizes = transformer(SIZES[name])
    if name == "gpt":
        columns = {"width": sizes.hidden, "depth": sizes.layers, "heads": sizes.heads}
        return gpt("small-gpt", LENGTH, sizes.vocabulary, **columns)
    network = (bert if name == "bert" else llama)(sizes, LENGTH, sizes.vocabulary)
    nodes = (
        dataclasses.replace(n, layer=dataclasses.replace(n.layer, dropout=0.0))
        if isinstance(n.layer, Attention)  # draws for the device's own queries
        else n
        for n in network.nodes
    )
    return dataclasses.replace(network, nodes=tuple(nodes))


def request_of(network, settings, sync, group, device="cpu", **work):
    return BuildRequest(
        network=network,
        work=TrainSteps(network="small", batch_per_device=GLOBAL_BATCH, momentum=0.9, **work),
        placement=Placement(),
        program=settings,
        sync=sync,
        device=device,
        threads=1,
        group=group,
    )


def program_of(name, group, size=None, device="cpu", make=build, **settings):
    settings = ProgramSettings(
        **{"precision": "fp64", **settings},
        sync="context-parallel" if size else "none",
        context_parallel_size=size,
        bucket_bytes=2048,
        deterministic=name == "bert",
    )
    sync = strategies.make(settings.sync, group)
    sync.configure(settings)
    network = network_of(name)
    work, recomputed = {}, ()
    if name == "gpt" and size:
        work = {"accumulation_steps": 2}
    if name == "llama" and size and make is build:
        recomputed = ("layer0",)
    request = request_of(network, settings, sync, group, device, **work)
    program = make(dataclasses.replace(request, recomputed=recomputed))
    program.load(network.draw(1))
    return network, program


def batch_of(network, part=slice(None)):
    """Tokens, and labels that are padded in the first half more than in the second."""
    rng = np.random.default_rng(0)
    given, target = network.inputs[0], network.targets[0]
    x = rng.integers(0, given.classes, (GLOBAL_BATCH, *given.shape))
    labels = rng.integers(0, target.classes, (GLOBAL_BATCH, *target.shape))
    if network.name != "small-gpt":
        labels[:, :3] = PADDING
    return Batch(x[part], labels=labels[part])


def train(network, program, part=slice(None)):
    """Gradients, loss, weights and scores of a step, and the weights after another."""
    found = {}

    def look(kind, name, array):
        if kind != "output":
            found[f"{kind}/{name}"] = np.array(array)

    placed = program.place(batch_of(network, part))
    program.inspected_step(placed, look)
    found["loss"], found["scores"] = np.array(program.loss()), program.evaluate(placed)
    found |= {f"w/{name}": array for name, array in program.state().items()}
    snapshot = program.snapshot()
    program.train_step(placed)
    program.restore(snapshot)
    program.train_step(placed)
    return found | {f"r/{name}": array for name, array in program.state().items()}


def rank(folder):
    """What each of two processes does."""
    group = join("cpu", 600.0)
    for name in PAIRS:
        transfers = Transfers(clock=time.perf_counter)
        network, program = program_of(name, TimedGroup(group, transfers), group.size)
        found = train(network, program)
        found["fingerprint"] = np.array(program.fingerprint())
        transfers.cut(0, time.perf_counter())
        program.train_step(program.place(batch_of(network)))
        seen = transfers.cut(0, time.perf_counter())
        found["sizes"] = np.array([t.size_bytes for t in seen])
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **found)
        program.close()
    group.close()


def gpu_rank(folder):
    """What each of two processes with a GPU does: in fp64, and in bf16 by FlashAttention."""
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    group = join(device, 60.0)
    for name in (*PAIRS, *MESH):
        network, program = program_of(name, group, group.size, device)
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **train(network, program))
        program.close()
    network, program = program_of("gpt", group, group.size, device, precision="bf16")
    np.savez(Path(folder, f"bf16-{group.rank}.npz"), **train(network, program))
    program.close()
    group.close()


def mesh_rank(folder):
    """What each of four processes does."""
    group = join("cpu", 600.0)
    for name in MESH:
        network, program = program_of(name, group, 2)
        each = GLOBAL_BATCH // 2
        part = slice(group.rank // 2 * each, (group.rank // 2 + 1) * each)
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **train(network, program, part))
        program.close()
    group.close()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """(network, rank) → what that rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    subprocess.run([sys.executable, __file__, folder], check=True)
    return {
        (name, n): dict(np.load(folder / f"{name}-{n}.npz"))
        for names, count in ((PAIRS, 2), (MESH, 4))
        for name in names
        for n in range(count)
    }


@pytest.fixture(scope="module")
def alone():
    """Network → what one process finds."""
    return {name: train(*program_of(name, SingleProcessGroup())) for name in (*PAIRS, *MESH)}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds no two GPUs here")
def test_sequences_divided_over_two_gpus_equal_those_of_one(tmp_path):
    subprocess.run([sys.executable, __file__, tmp_path, "gpu"], check=True, timeout=300)
    for name in (*PAIRS, *MESH):
        expected = train(*program_of(name, SingleProcessGroup(), device="cuda:0"))
        for n in range(2):
            assert_close(np.load(tmp_path / f"{name}-{n}.npz"), expected, *KINDS)
    expected = train(*program_of("gpt", SingleProcessGroup(), device="cuda:0", precision="bf16"))
    for n in range(2):
        found = np.load(tmp_path / f"bf16-{n}.npz")
        for name in (name for name in expected if name.startswith(("gradient", "loss"))):
            distance = np.linalg.norm(found[name] - expected[name])
            assert distance <= 0.05 * np.linalg.norm(expected[name]) + 1e-4, name


def assert_close(found, expected, *kinds):
    names = [name for name in expected if name.startswith(kinds)]
    assert names
    for name in names:
        np.testing.assert_allclose(
            found[name], expected[name], rtol=1e-10, atol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("name", PAIRS)
def test_divided_sequences_equal_those_of_one_device(ranks, alone, name):
    for n in range(2):
        assert_close(ranks[name, n], alone[name], *KINDS)
    assert ranks[name, 0]["fingerprint"] == ranks[name, 1]["fingerprint"]


def test_a_mesh_of_data_and_context_parallel_equals_one_device(ranks, alone):
    found = [ranks["llama", n] for n in range(4)]
    # Padding is alike in all samples, so the mean over replicas is that of the batch.
    for one in found:
        assert_close(one, alone["llama"], "gradient", "w/", "r/")
    own = [name for name in found[0] if name.startswith("own gradient")]
    means = {name: (found[0][name] + found[2][name]) / 2 for name in own}
    assert_close(means, alone["llama"], "own gradient")
    for first, second in ((0, 1), (2, 3)):
        assert_close(found[first], found[second], "own gradient", "scores", "loss")
    assert found[0]["loss"] != found[2]["loss"], "other samples"
    np.testing.assert_allclose(
        (found[0]["loss"] + found[2]["loss"]) / 2, alone["llama"]["loss"], rtol=1e-10
    )


def test_every_collective_of_a_step_is_timed(ranks):
    """Keys and values of each attention forward and their gradients backward, in two micro-batches,
    the buckets of gradients, and the loss."""
    sizes = sorted(ranks["gpt", 0]["sizes"])
    keys = GLOBAL_BATCH // 2 * LENGTH // 2 * 2 * 16 * 8
    assert sizes[0] == 8
    assert sizes.count(keys) == sizes.count(2 * keys) == 2, sizes
    assert (ranks["gpt", 0]["sizes"] == ranks["gpt", 1]["sizes"]).all()


def test_queries_read_the_keys_up_to_their_own():
    masks = CausalMasks()
    found = masks.of(2, 4, torch.device("cpu"))
    assert found.tolist() == [[True, True, True, False], [True] * 4]
    assert masks.of(2, 4, torch.device("cpu")) is found


def test_a_network_that_is_not_divided_is_refused():
    group = SimpleNamespace(rank=0, size=3)
    sync = strategies.make("context-parallel", group)
    settings = ProgramSettings(sync="context-parallel")
    with pytest.raises(Unsupported, match=r"8 positions.*6 parts.*sequence_length to 6 or 12"):
        build(request_of(network_of("gpt"), settings, sync, group))


if __name__ == "__main__":
    if sys.argv[2:] == ["gpu"]:
        jobs = ((gpu_rank, 2),)
    else:
        jobs = ((rank, 2), (mesh_rank, 4))
        # Once, before the ranks are forked; a fork could not use a GPU afterwards.
        importlib.import_module("torch._dynamo")
    for job, count in jobs:
        if failed := launch(job, sys.argv[1], count):
            sys.exit(f"ranks failed: {failed}")
