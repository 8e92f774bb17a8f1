"""Two real processes, joined by gloo, against one: the same global minibatch, the same training.

The dropout of little-cnn is set to 0, for every rank draws its own (that it does has a test of its
own); it has no batch normalization, whose statistics are each device's own. The ranks run this very
file as a script: what they do and what one process does are the same function.
"""

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest, SupportsCompilation, Unsupported
from cubemesh.frameworks.pytorch import build, captured, compiled, join, launch
from cubemesh.kernels.cpu import cpu_kernels as host_kernels
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Dropout
from cubemesh.parallel import strategies
from cubemesh.parallel.local_sgd import AVERAGE_EVERY
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps

RANKS = 2
GLOBAL_BATCH = 8
BUCKET_BYTES = 4096
"""Small, so that little-cnn has several buckets."""
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-4}
SYNCHRONOUS = [
    ("all-reduce", "fp64", "nchw"),
    ("all-reduce", "fp32", "nhwc"),
    ("parameter-server", "fp64", "nchw"),
    ("parameter-server", "fp32", "nhwc"),
]
ROUNDED = ("all-reduce-16", "fp32", "nchw")
AVERAGED = ("local-sgd", "fp64", "nchw")
INDEPENDENT = ("none", "fp64", "nchw")
COMPILED = ("all-reduce", "fp64", "nchw", "compiled")
"""By segment, so that buckets fill one after the other; traced and not made into C++."""
ACCUMULATED = ("all-reduce", "fp64", "nchw", "accumulated")
"""In two micro-batches."""
SCALED = ("parameter-server", "fp16", "nchw")
SERVED = [
    ("parameter-server-cpu", "fp64", "nchw"),
    ("parameter-server-cpu", "fp32", "nhwc"),
    ("parameter-server-cpu", "fp64", "nchw", "compiled"),
]
SPLIT = [("model-parallel", "fp64", "nchw"), ("model-parallel", "fp32", "nhwc")]
CASES = [
    *SYNCHRONOUS,
    ROUNDED,
    AVERAGED,
    INDEPENDENT,
    COMPILED,
    ACCUMULATED,
    SCALED,
    *SERVED,
    *SPLIT,
]


def without_dropout(network):
    nodes = (
        dataclasses.replace(n, layer=Dropout(rate=0.0)) if isinstance(n.layer, Dropout) else n
        for n in network.nodes
    )
    return dataclasses.replace(network, nodes=tuple(nodes))


def train(case, group, part=slice(None), steps=3):
    """Train on `part` of every global minibatch; the first step's gradients (`g/…`) and the last
    weights (`w/…`)."""
    name, precision, layout, *how = case
    network = without_dropout(networks.build("little-cnn", 16, 10))
    sync = strategies.make(name, group)
    if sync.bucket_bytes is not None:
        sync.bucket_bytes = BUCKET_BYTES
    accumulated, how = how == ["accumulated"], how == ["compiled"]
    program = (compiled.build if how else build)(
        BuildRequest(
            network=network,
            work=TrainSteps(
                network="little-cnn",
                batch_per_device=GLOBAL_BATCH,
                momentum=0.9,
                accumulation_steps=2 if accumulated else 1,
            ),
            placement=Placement(),
            program=ProgramSettings(
                precision=precision,
                layout=layout,
                sync=name,
                compile_by="segment" if how else "network",
            ),
            sync=sync,
            device="cpu",
            threads=1,
            group=group,
        )
    )
    rng = np.random.default_rng(0)
    if how:
        images = rng.random((GLOBAL_BATCH, *network.inputs[0].shape), dtype=np.float32)
        labels = rng.integers(0, 10, GLOBAL_BATCH)
        program.compile(program.place(Batch(images=images[part], labels=labels[part])))
    program.load(network.draw(1))
    rng = np.random.default_rng(0)
    found = {"buckets": np.array(len(program.buckets))}
    for step in range(steps):
        images = rng.random((GLOBAL_BATCH, *network.inputs[0].shape), dtype=np.float32)
        labels = rng.integers(0, 10, GLOBAL_BATCH)
        if precision == "fp16" and step == 0:  # what rank 1 computes of its samples overflows
            images[own_part(1)] *= 1e4
        program.train_step(program.place(Batch(images=images[part], labels=labels[part])))
        if step == 0:
            parameters = program._built.parameters.items()
            found |= {f"g/{n}": p.grad.numpy(force=True).copy() for n, p in parameters}
    found["loss"] = np.array(program.loss())
    if precision == "fp16":
        found["scale"] = np.array(program.loss_scale()[0])
    images = rng.random((3, *network.inputs[0].shape), dtype=np.float32)
    scores = program.evaluate(program.place(Batch(images=images, labels=np.zeros(3, np.int64))))
    found["scores"] = scores
    return found | {f"w/{n}": array for n, array in program.state().items()}


def own_part(rank):
    each = GLOBAL_BATCH // RANKS
    return slice(rank * each, (rank + 1) * each)


def steps_of(case):
    return AVERAGE_EVERY if case == AVERAGED else 3


def rank(folder):
    """What each of the two processes does."""
    compiled.BACKEND = "aot_eager"
    group = join("cpu", 600.0)
    assert group.size == RANKS
    assert group.broadcast_object(["says", group.rank]) == ["says", 0]
    for case in CASES:
        path = Path(folder, f"{CASES.index(case)}-{group.rank}.npz")
        part = slice(None) if case in SPLIT else own_part(group.rank)
        np.savez(path, **train(case, group, part, steps_of(case)))
    group.close()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """(case, rank) → what that rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    subprocess.run([sys.executable, __file__, folder], check=True)
    return {
        (case, n): dict(np.load(folder / f"{number}-{n}.npz"))
        for number, case in enumerate(CASES)
        for n in range(RANKS)
    }


def assert_close(found, expected, kind, tolerance):
    names = [name for name in expected if name.startswith(kind)]
    assert names
    for name in names:
        np.testing.assert_allclose(
            found[name], expected[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("case", SYNCHRONOUS, ids="-".join)
def test_two_ranks_equal_one_with_the_same_global_batch(ranks, case):
    _, precision, layout = case
    alone = train(("none", precision, layout), SingleProcessGroup())
    for n in range(RANKS):
        found = ranks[case, n]
        assert found["buckets"] > 2
        if n == 0 or case[0] == "all-reduce":  # the server alone has the mean gradient
            assert_close(found, alone, "g/", TOLERANCE[precision])
        assert_close(found, alone, "w/", TOLERANCE[precision])
    assert_close(ranks[case, 0], ranks[case, 1], "w/", 0)


@pytest.mark.parametrize("case", SERVED, ids="-".join)
def test_a_server_on_the_cpu_updates_with_the_gradients_of_all_ranks(ranks, case):
    _, precision, layout, *_ = case
    alone = train(("none", precision, layout), SingleProcessGroup())
    for n in range(RANKS):
        assert ranks[case, n]["buckets"] == 0, "one flat array after the backward pass"
        assert_close(ranks[case, n], alone, "w/", TOLERANCE[precision])
    assert_close(ranks[case, 0], ranks[case, 1], "w/", 0)


@pytest.mark.parametrize("precision", ["fp16"])
def test_a_scaled_loss_is_refused_with_a_server(make_request, precision):
    request = make_request(networks.build("little-cnn", 16, 10))
    sync = strategies.make("parameter-server-cpu", SingleProcessGroup())
    program = dataclasses.replace(request.program, precision=precision)
    with pytest.raises(Unsupported, match="parameter-server-cpu"):
        build(dataclasses.replace(request, program=program, sync=sync))


def test_a_single_updating_rank_shares_its_loss_scale(ranks):
    """A gradient that overflows halves it; a rank that did not hear of that would count twice."""
    alone = train(("none", *SCALED[1:]), SingleProcessGroup())
    start = without_dropout(networks.build("little-cnn", 16, 10)).draw(1)
    assert 0 < alone["scale"] < 65536
    for n in range(RANKS):
        found = ranks[SCALED, n]
        assert found["scale"] == alone["scale"]
        for name, before in start.items():
            moved = np.abs(alone[f"w/{name}"] - before).max()
            off = np.abs(found[f"w/{name}"] - alone[f"w/{name}"]).max()
            assert off < 0.05 * moved, name


def test_compiled_ranks_equal_one_eager_rank(ranks):
    alone = train(("none", "fp64", "nchw"), SingleProcessGroup())
    for n in range(RANKS):
        found = ranks[COMPILED, n]
        assert found["buckets"] > 2
        assert_close(found, alone, "w/", TOLERANCE["fp64"])


def test_ranks_that_accumulate_gradients_equal_one_with_the_global_batch(ranks):
    alone = train(("none", "fp64", "nchw"), SingleProcessGroup())
    for n in range(RANKS):
        assert_close(ranks[ACCUMULATED, n], alone, "g/", 1e-12)
        assert_close(ranks[ACCUMULATED, n], alone, "w/", 1e-12)


def test_ranks_without_synchronization_differ(ranks):
    first, second = ranks[INDEPENDENT, 0], ranks[INDEPENDENT, 1]
    weights = [name for name in first if name.startswith("w/")]
    assert any(np.abs(first[name] - second[name]).max() > 1e-6 for name in weights)
    assert_close(first, train(INDEPENDENT, SingleProcessGroup(), own_part(0)), "w/", 0)


def test_gradients_sent_as_16_bits_are_rounded_and_equal_on_all_ranks(ranks):
    alone = train(("none", *ROUNDED[1:]), SingleProcessGroup())
    for name in (n for n in alone if n.startswith("g/")):
        first, second = ranks[ROUNDED, 0][name], ranks[ROUNDED, 1][name]
        np.testing.assert_array_equal(first, second)
        scale = np.abs(alone[name]).max()
        assert 0 < np.abs(first - alone[name]).max() < scale * 2**-6, name
    assert_close(ranks[ROUNDED, 0], ranks[ROUNDED, 1], "w/", 0)


def test_local_sgd_averages_the_weights_of_independent_ranks(ranks):
    reached = [
        train(INDEPENDENT, SingleProcessGroup(), own_part(n), AVERAGE_EVERY) for n in range(RANKS)
    ]
    mean = {name: (reached[0][name] + reached[1][name]) / 2 for name in reached[0]}
    for n in range(RANKS):
        assert_close(ranks[AVERAGED, n], mean, "w/", 1e-12)


@pytest.mark.parametrize("case", SPLIT, ids="-".join)
def test_a_network_in_two_parts_equals_the_whole(ranks, case):
    _, precision, layout = case
    alone = train(("none", precision, layout), SingleProcessGroup())
    parts = [{name for name in ranks[case, n] if name.startswith("g/")} for n in range(RANKS)]
    assert all(parts)
    assert parts[0].isdisjoint(parts[1])
    one_launch_candidates = {**ranks[case, 1], **ranks[case, 0]}
    assert_close(one_launch_candidates, alone, "g/", TOLERANCE[precision])
    for n in range(RANKS):
        for kind in ("w/", "loss", "scores"):
            assert_close(ranks[case, n], alone, kind, TOLERANCE[precision])


def no_kernels():
    raise OSError("dropout would be drawn by what was faster")


@pytest.mark.parametrize("make", [build, captured.build])
def test_every_rank_draws_its_own_dropout(make, make_request, make_batch, monkeypatch):
    monkeypatch.setattr(host_kernels, "library", no_kernels)
    net = NetworkBuilder("dropping")
    x = net.dropout(net.flatten(net.input("image", (3, 6, 6))), 0.5)
    net.classify(net.linear(x, 10))
    request = make_request(net.build())
    batch = make_batch(request.network)

    def loss(rank):
        group = SimpleNamespace(rank=rank, size=2)
        program = make(dataclasses.replace(request, group=group))
        if isinstance(program, SupportsCompilation):
            program.compile(program.place(batch))
        program.load(request.network.draw(0))
        program.forward(program.place(batch))
        return program.loss()

    assert loss(0) == loss(0) != loss(1) == loss(1)


if __name__ == "__main__":
    compiled.preload()  # once for all ranks
    failed = launch(rank, sys.argv[1], RANKS)
    sys.exit(f"ranks failed: {failed}" if failed else 0)
