"""Layers divided over real processes, joined by gloo, against one process with the same samples.

The ranks run this very file as a script: what they do and what one process does are the same
function. Small networks of each family: GPT-2 has queries, keys and values in one matrix, an
embedding that is the output matrix, and a vocabulary that does not divide; BERT has dropout; ViT's
positions do not divide, and its block is computed again for each of two micro-batches; the
Llama-like network has fewer heads of keys and values, and runs on a mesh of data × tensor
parallel. Of the convolutional networks only the fully connected layers are divided
(`hybrid-by-layer`), with classes that do not divide: AlexNet's dropout is before and after the
gather; another has batch normalization before and after, and two heads; of the third both parts are
computed again for each of two micro-batches."""

import dataclasses
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Snapshot, Unsupported
from cubemesh.frameworks.pytorch import build, join
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.networks.assembly import of_documents
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.transformer_sizes import transformer
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.vit import vit
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
    "gpt": "hidden=8,layers=1,heads=2,vocabulary=13",
    "bert": "hidden=8,layers=1,heads=2,vocabulary=13",
    "llama": "hidden=8,layers=1,heads=4,kv_heads=2,ffn=32,vocabulary=13",
}
PAIRS, MESH = ("gpt", "bert", "vit"), ("llama",)
BY_LAYER = ("alexnet", "normalized", "recomputed")
CONV2 = ("conv2.bias", "conv2.weight")
RESUMED = ("gpt", "alexnet")


def convolutional(name):
    """As AlexNet ends; `normalized`: with batch normalization and an auxiliary head."""
    net = NetworkBuilder(name)
    rate = 0.0 if name == "recomputed" else 0.5
    with net.segment("features"):
        x = net.conv(net.input("image", (3, 8, 8)), 4, kernel=3, padding=1, name="conv1")
        if name == "normalized":
            x = net.batch_norm(x, name="bn1")
        early = net.max_pool(net.relu(x, name="relu1"), 2, stride=2, name="pool1")
        x = net.relu(net.conv(early, 6, kernel=3, padding=1, name="conv2"), name="relu2")
        x = net.flatten(x, name="flatten")
    with net.segment("hidden"):
        x = net.linear(net.dropout(x, rate, name="drop6"), 8, name="fc6")
        if name == "normalized":
            aux = net.linear(net.flatten(early, name="early"), 5, name="aux")
            net.classify(aux, weight=0.3, train_only=True)
            x = net.batch_norm(x, name="bn6")
        x = net.dropout(net.relu(x, name="relu6"), rate, name="drop7")
    with net.segment("classifier"):
        x = net.relu(net.linear(x, 6, name="fc7"), name="relu7")
        net.classify(net.linear(x, 5, name="fc8"))
    return net.build()


def network_of(name):
    if name in BY_LAYER:
        return convolutional(name)
    if name == "vit":
        return vit("small-vit", 32, 10, width=8, depth=1, heads=2)
    return small_transformer(name, SIZES[name])


def program_of(name, group, size=None, device="cpu"):
    settings = ProgramSettings(
        precision="fp64",
        sync=("hybrid-by-layer" if name in BY_LAYER else "tensor-parallel") if size else "none",
        tensor_parallel_size=size,
        bucket_bytes=512 if name in BY_LAYER else 2048,
        deterministic=name in ("bert", *BY_LAYER),
        batch_norm="global" if name in BY_LAYER and size else "device",
    )
    work, recomputed = {}, ()
    if name == "vit" and size:
        work, recomputed = {"accumulation_steps": 2}, ("layer0",)
    if name == "recomputed" and size:
        work, recomputed = {"accumulation_steps": 2}, ("features", "hidden")
    network = network_of(name)
    return network, loaded_program(network, settings, group, device, recomputed, **work)


def trained(name, group, size=None, part=slice(None), device="cpu"):
    """What a rank finds in a step, and after it was restored."""
    network, program = program_of(name, group, size, device)
    batch = batch_of(network, part)
    found = train(program, batch)
    if name in RESUMED:
        found |= resume(program, batch)
    program.close()
    return found


def rank(folder):
    """What each of two processes does."""
    group = join("cpu", 600.0)
    for name in PAIRS:
        transfers = Transfers(clock=time.perf_counter)
        network, program = program_of(name, TimedGroup(group, transfers), group.size)
        batch = batch_of(network)
        found = train(program, batch)
        if name == "gpt":
            found |= resume(program, batch)
            found["fingerprint"] = np.array(program.fingerprint())
            transfers.cut(0, time.perf_counter())
            program.train_step(program.place(batch))
            seen = transfers.cut(0, time.perf_counter())
            found["sizes"] = np.array([t.size_bytes for t in seen])
            assert all(t.issued <= t.waited <= t.ended for t in seen)
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **found)
        program.close()
    for name in BY_LAYER:
        network, program = program_of(name, group, group.size)
        batch = batch_of(network, own_samples(group.rank, group.size))
        found = train(program, batch)
        if name == "alexnet":
            found |= resume(program, batch)
            found |= {f"bytes/{n}": np.array(b) for n, b in program.memory_by_kind().items()}
            found["buckets"] = np.array([n for b in program.buckets for n in b.parameters])
            found["fingerprint"] = np.array(program.fingerprint())
            if group.rank == 1:
                program._built.parameters["conv1.bias"].data[0] += 1
            found["fingerprint of others"] = np.array(program.fingerprint())
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **found)
        program.close()
    group.close()


def gpu_rank(folder):
    """What each of two processes with a GPU does."""
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    group = join(device, 60.0)
    for name in (*PAIRS, *MESH):
        found = trained(name, group, group.size, device=device)
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **found)
    group.close()


def gpu_by_layer_rank(folder):
    """What each of two processes with a GPU does."""
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    group = join(device, 60.0)
    for name in BY_LAYER:
        part = own_samples(group.rank, group.size)
        found = trained(name, group, group.size, part, device)
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), **found)
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
    return saved(folder, (PAIRS, 2), (BY_LAYER, 2), (MESH, 4))


@pytest.fixture(scope="module")
def alone():
    """Network → what one process finds."""
    return {name: trained(name, SingleProcessGroup()) for name in (*PAIRS, *MESH, *BY_LAYER)}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds no two GPUs here")
def test_layers_divided_over_two_gpus_equal_those_of_one(tmp_path):
    run_script(__file__, tmp_path, "gpu")
    for name in (*PAIRS, *MESH):
        expected = trained(name, SingleProcessGroup(), device="cuda:0")
        for n in range(2):
            assert_arrays_close(np.load(tmp_path / f"{name}-{n}.npz"), expected, *KINDS)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds no two GPUs here")
def test_a_hybrid_by_layer_of_two_gpus_equals_one(tmp_path):
    run_script(__file__, tmp_path, "gpu-by-layer")
    for name in BY_LAYER:
        expected = trained(name, SingleProcessGroup(), device="cuda:0")
        found = [np.load(tmp_path / f"{name}-{n}.npz") for n in range(2)]
        for one in found:
            assert_arrays_close(one, expected, "gradient", "w/", "loss")
        scores = np.concatenate([one["scores"] for one in found])
        assert_arrays_close({"scores": scores}, expected, "scores")


@pytest.mark.parametrize("name", PAIRS)
def test_divided_layers_equal_those_of_one_device(ranks, alone, name):
    for n in range(2):
        assert_arrays_close(ranks[name, n], alone[name], *KINDS)


def test_a_mesh_of_data_and_tensor_parallel_equals_one_device(ranks, alone):
    found = [ranks["llama", n] for n in range(4)]
    assert_two_replicas(found, alone["llama"], "gradient", "w/")


@pytest.mark.parametrize("name", BY_LAYER)
def test_a_hybrid_by_layer_equals_one_device_with_the_samples_of_all(ranks, alone, name):
    found, expected = [ranks[name, n] for n in range(2)], alone[name]
    for one in found:
        assert_arrays_close(one, expected, "gradient", "w/", "loss")
    own = [kind for kind in expected if kind.startswith("own gradient")]
    means = {kind: (found[0][kind] + found[1][kind]) / 2 for kind in own}
    assert_arrays_close(means, expected, "own gradient")
    assert (found[0]["own gradient/conv1.weight"] != found[1]["own gradient/conv1.weight"]).any()
    assert (found[0]["own gradient/fc6.weight"] == found[1]["own gradient/fc6.weight"]).all()
    scores = np.concatenate([one["scores"] for one in found])
    assert_arrays_close({"scores": scores}, expected, "scores")


def test_a_rank_of_a_hybrid_by_layer_has_a_part_of_the_fully_connected_layers(ranks, alone):
    """8, 6 and 5 features on two devices, and all of the convolutions, which are averaged."""
    whole = {n: p.nbytes for n, p in alone["alexnet"].items() if n.startswith("w/")}
    for n, classes in ((0, 3), (1, 2)):
        found = ranks["alexnet", n]
        parts = {"fc6": 4 / 8, "fc7": 3 / 6, "fc8": classes / 5}
        own = sum(size * parts.get(name[2:5], 1) for name, size in whole.items())
        assert found["bytes/weights"] == found["bytes/gradients"] == own
        assert found["bytes/optimizer"] == own, "momentum"
        assert sorted(found["buckets"]) == ["conv1.bias", "conv1.weight", *CONV2]
        assert_arrays_close(found, alone["alexnet"], "s/optimizer", "r/")


def test_convolutions_that_differ_between_ranks_are_seen(ranks):
    one, other = (ranks["alexnet", n] for n in range(2))
    assert one["fingerprint"] == other["fingerprint"]
    assert one["fingerprint of others"] != other["fingerprint of others"]


def test_a_snapshot_is_that_of_one_device_and_resumes(ranks, alone):
    for n in range(2):
        found = ranks["gpt", n]
        assert_arrays_close(found, alone["gpt"], "s/optimizer", "r/")
        own = {name for name in found if name.startswith("s/")}
        assert own == {name for name in alone["gpt"] if name.startswith("s/")}
    network, program = program_of("gpt", SingleProcessGroup())
    arrays = {name[2:]: found[name] for name in own}
    weights = {name[2:]: alone["gpt"][name] for name in alone["gpt"] if name.startswith("w/")}
    program.restore(Snapshot(weights=weights, arrays=arrays, plain={}))
    program.train_step(program.place(batch_of(network)))
    assert_arrays_close({f"r/{n}": a for n, a in program.state().items()}, alone["gpt"], "r/")
    assert ranks["gpt", 0]["fingerprint"] == ranks["gpt", 1]["fingerprint"]


def test_every_collective_of_a_step_is_timed(ranks):
    """Per pair one gather and one reduction forward and backward, the same for the embedding and
    the output matrix, and the sum of gradients at the end; the loss is not timed."""
    sizes = ranks["gpt", 0]["sizes"]
    assert len(sizes) == 2 * (2 * 2 + 1 + 1) + 1
    part = GLOBAL_BATCH * LENGTH * 8 * 8 // 2
    assert sorted(sizes)[1:] == [part] * 6 + [2 * part] * 6
    assert (sizes == ranks["gpt", 1]["sizes"]).all()


@pytest.mark.parametrize(
    ("settings", "work", "words"),
    [
        ({"precision": "fp16"}, {}, "neither loss scaling"),
        ({"decode_location": "device"}, {}, "decode_location=host"),
        ({}, {"optimizer": "lars"}, "optimizer=sgd, rmsprop, adam or adamw"),
        ({}, {"optimizer": "adamw-8bit"}, "optimizer=sgd, rmsprop, adam or adamw"),
    ],
)
def test_what_it_has_not_is_refused_with_what_to_set(settings, work, words):
    program = ProgramSettings(sync="tensor-parallel", **settings)
    group = SimpleNamespace(rank=0, size=2)
    sync = strategies.make("tensor-parallel", group)
    with pytest.raises(Unsupported, match=f"sync=tensor-parallel.*{words}"):
        build(request_of(network_of("gpt"), program, sync, group, **work))


@pytest.mark.parametrize("deterministic", [False, True])
def test_dropout_of_an_attention_that_is_not_divided_needs_the_same_numbers(deterministic):
    from cubemesh.frameworks.pytorch.distributed.tensor_parallel import check_attention

    sizes = transformer("bert:" + SIZES["bert"])
    network = of_documents(bert(sizes, LENGTH, sizes.vocabulary))
    group = SimpleNamespace(rank=0, size=2)
    sync = strategies.make("tensor-parallel", group)
    program = ProgramSettings(sync="tensor-parallel", deterministic=deterministic)
    request = request_of(network, program, sync, group)
    words = r"heads of bert\S+attend in \S+ are not divided.*deterministic=true"
    with nullcontext() if deterministic else pytest.raises(Unsupported, match=words):
        check_attention(request, sync.divide(network))


def test_dropout_that_all_devices_draw_alike_is_not_computed_again():
    from cubemesh.frameworks.pytorch.distributed.tensor_parallel import check_recomputed

    sizes = transformer("bert:" + SIZES["bert"])
    network = bert(sizes, 9, sizes.vocabulary)  # positions that do not divide
    group = SimpleNamespace(rank=0, size=2)
    sync = strategies.make("tensor-parallel", group)
    for deterministic, refused in ((False, True), (True, False)):
        program = ProgramSettings(sync="tensor-parallel", deterministic=deterministic)
        request = dataclasses.replace(
            request_of(network, program, sync, group), recomputed=("layer0",)
        )
        if refused:
            with pytest.raises(Unsupported, match=r"bert.embeddings.dropout.*deterministic=true"):
                check_recomputed(request, sync.divide(network))
        else:
            check_recomputed(request, sync.divide(network))


if __name__ == "__main__":
    if sys.argv[2:] == ["gpu"]:
        launch_ranks(sys.argv[1], (gpu_rank, 2))
    elif sys.argv[2:] == ["gpu-by-layer"]:
        launch_ranks(sys.argv[1], (gpu_by_layer_rank, 2))
    else:
        launch_ranks(sys.argv[1], (rank, 2), (mesh_rank, 4))
