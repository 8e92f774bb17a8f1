"""Real processes that divide each sequence against one that has it whole: on a CPU through gloo, on
GPUs through NCCL.

The ranks run this very file as a script: what they do and what one process does is one function."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch import build, join
from cubemesh.frameworks.pytorch.distributed.context_parallel import CausalMasks
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.parallel import strategies
from cubemesh.parallel.timed_group import TimedGroup
from cubemesh.schema.spec import ProgramSettings
from rank_training import (
    GLOBAL_BATCH,
    KINDS,
    LENGTH,
    assert_arrays_close,
    assert_two_replicas,
    batch_of,
    launch_ranks,
    loaded_program,
    own_samples,
    request_of,
    resume,
    saved,
    small_transformer,
    train,
)
from script_server import run_script

SIZES = {
    "gpt": "hidden=16,layers=1,heads=2,vocabulary=13",
    "bert": "hidden=8,layers=1,heads=2,vocabulary=13",
    "llama": "hidden=8,layers=2,heads=4,kv_heads=2,ffn=32,vocabulary=13",
}
PAIRS, MESH = ("gpt", "bert"), ("llama",)


def network_of(name):
    return small_transformer(name, SIZES[name])


def program_of(name, group, size=None, device="cpu", **settings):
    settings = ProgramSettings(
        **{"precision": "fp64", **settings},
        sync="context-parallel" if size else "none",
        context_parallel_size=size,
        bucket_bytes=2048,
        deterministic=name == "bert",
    )
    work = {"accumulation_steps": 2} if name == "gpt" and size else {}
    recomputed = ("layer0",) if name == "llama" and size else ()
    network = network_of(name)
    return network, loaded_program(network, settings, group, device, recomputed, **work)


def padded_batch(name, network, part=slice(None)):
    """With labels that are padded in the first half more than in the second."""
    return batch_of(network, part, padded=0 if name == "gpt" else 3)


def trained(name, group, size=None, part=slice(None), device="cpu", **settings):
    """What a rank finds in a step, and after it was restored."""
    network, program = program_of(name, group, size, device, **settings)
    batch = padded_batch(name, network, part)
    found = train(program, batch) | resume(program, batch)
    program.close()
    return found


def rank(folder):
    """What each of two processes does."""
    group = join("cpu", 600.0)
    for name in PAIRS:
        transfers = Transfers(clock=time.perf_counter)
        network, program = program_of(name, TimedGroup(group, transfers), group.size)
        batch = padded_batch(name, network)
        found = train(program, batch) | resume(program, batch)
        found["fingerprint"] = np.array(program.fingerprint())
        transfers.cut(0, time.perf_counter())
        program.train_step(program.place(batch))
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
        found = trained(name, group, group.size, device=device)
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **found)
    found = trained("gpt", group, group.size, device=device, precision="bf16")
    np.savez(Path(folder, f"bf16-{group.rank}.npz"), **found)
    group.close()


def mesh_rank(folder):
    """What each of four processes does."""
    group = join("cpu", 600.0)
    for name in MESH:
        found = trained(name, group, 2, own_samples(group.rank // 2, 2))
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **found)
    group.close()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """(network, rank) → what that rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    run_script(__file__, folder, imports=["torch._dynamo"])
    return saved(folder, (PAIRS, 2), (MESH, 4))


@pytest.fixture(scope="module")
def alone():
    """Network → what one process finds."""
    return {name: trained(name, SingleProcessGroup()) for name in (*PAIRS, *MESH)}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds no two GPUs here")
def test_sequences_divided_over_two_gpus_equal_those_of_one(tmp_path):
    run_script(__file__, tmp_path, "gpu")
    for name in (*PAIRS, *MESH):
        expected = trained(name, SingleProcessGroup(), device="cuda:0")
        for n in range(2):
            assert_arrays_close(np.load(tmp_path / f"{name}-{n}.npz"), expected, *KINDS)
    expected = trained("gpt", SingleProcessGroup(), device="cuda:0", precision="bf16")
    for n in range(2):
        found = np.load(tmp_path / f"bf16-{n}.npz")
        for name in (name for name in expected if name.startswith(("gradient", "loss"))):
            distance = np.linalg.norm(found[name] - expected[name])
            assert distance <= 0.05 * np.linalg.norm(expected[name]) + 1e-4, name


@pytest.mark.parametrize("name", PAIRS)
def test_divided_sequences_equal_those_of_one_device(ranks, alone, name):
    for n in range(2):
        assert_arrays_close(ranks[name, n], alone[name], *KINDS)
    assert ranks[name, 0]["fingerprint"] == ranks[name, 1]["fingerprint"]


def test_a_mesh_of_data_and_context_parallel_equals_one_device(ranks, alone):
    """Padding is alike in all samples, so the mean over replicas is that of the batch."""
    found = [ranks["llama", n] for n in range(4)]
    assert_two_replicas(found, alone["llama"], "gradient", "w/", "r/")


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
        launch_ranks(sys.argv[1], (gpu_rank, 2))
    else:
        launch_ranks(sys.argv[1], (rank, 2), (mesh_rank, 4))
