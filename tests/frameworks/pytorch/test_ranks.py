"""Two real processes, joined by gloo, against one: the same global minibatch, the same training.

The dropout of little-cnn is set to 0, for every rank draws its own (that it does has a test of its
own); it has no batch normalization, whose statistics are each device's own. The ranks run this very
file as a script: what they do and what one process does are the same function.
"""

import dataclasses
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
from cubemesh.parallel.pipeline import Pipeline
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from rank_training import assert_arrays_close
from script_server import run_script

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
SHARDED = ("fully-sharded", "fp64", "nchw", "compiled")
"""With a function for each unit."""
ACCUMULATED = ("all-reduce", "fp64", "nchw", "accumulated")
"""In two micro-batches."""
SCALED = ("parameter-server", "fp16", "nchw")
SERVED = [
    ("parameter-server-cpu", "fp64", "nchw"),
    ("parameter-server-cpu", "fp32", "nhwc"),
    ("parameter-server-cpu", "fp64", "nchw", "compiled"),
]
SPLIT = [("model-parallel", "fp64", "nchw"), ("model-parallel", "fp32", "nhwc")]
PIPED = [
    ("pipeline", "fp64", "nchw", "1f1b"),
    ("pipeline", "fp64", "nchw", "gpipe"),
    ("pipeline", "fp32", "nhwc", "1f1b"),
]
NORMED = ("pipeline", "fp64", "nchw", "normed")
"""Batch normalization over each of the micro-batches."""
DROPPING = ("pipeline", "fp64", "nchw", "deterministic")
CASES = [*SYNCHRONOUS, ROUNDED, AVERAGED, INDEPENDENT, COMPILED, ACCUMULATED, SCALED]
CASES += [SHARDED, *SERVED, *SPLIT, *PIPED, NORMED, DROPPING]
MESH_RANKS, MESH_STAGES = 4, 2
MESH = [("hybrid", "fp64", "nchw", "1f1b"), ("hybrid", "fp64", "nchw", "deterministic")]
ONE_STAGE = ("hybrid", "fp64", "nchw", "one-stage")
"""Four replicas of the whole network, in pipelines of one stage."""
MICRO_BATCHES = 3
"""Of eight samples: micro-batches of 3, 3 and 2."""


def without_dropout(network):
    nodes = (
        dataclasses.replace(n, layer=Dropout(rate=0.0)) if isinstance(n.layer, Dropout) else n
        for n in network.nodes
    )
    return dataclasses.replace(network, nodes=tuple(nodes))


def normed_network():
    """Two segments, each with batch normalization."""
    net = NetworkBuilder("normed")
    x = net.input("image", (3, 16, 16))
    for number in range(2):
        with net.segment(f"part{number}"):
            x = net.batch_norm(net.conv(x, 4, kernel=3), name=f"norm{number}")
    net.classify(net.linear(net.flatten(x), 10))
    return net.build()


def network_of(how):
    if "normed" in how:
        return normed_network()
    network = networks.build("little-cnn", 16, 10)
    return network if "deterministic" in how else without_dropout(network)


def request_of(network, settings=None, sync=None, group=None, accumulation_steps=1):
    group = group or SingleProcessGroup()
    return BuildRequest(
        network=network,
        work=TrainSteps(
            network="little-cnn",
            batch_per_device=GLOBAL_BATCH,
            momentum=0.9,
            accumulation_steps=accumulation_steps,
        ),
        placement=Placement(),
        program=settings or ProgramSettings(precision="fp64"),
        sync=sync or strategies.make("none", group),
        device="cpu",
        threads=1,
        group=group,
    )


def train(case, group, part=slice(None), steps=3):
    """Train on `part` of every global minibatch; the first step's gradients (`g/…`) and the last
    weights (`w/…`)."""
    name, precision, layout, *how = case
    network = network_of(how)
    sync = strategies.make(name, group)
    settings = ProgramSettings(
        precision=precision,
        layout=layout,
        sync=name,
        bucket_bytes=BUCKET_BYTES if name == "fully-sharded" else None,
        compile_by="segment" if "compiled" in how else "network",
        micro_batches=MICRO_BATCHES,
        pipeline_schedule="gpipe" if "gpipe" in how else "1f1b",
        deterministic="deterministic" in how,
        pipeline_stages=1 if "one-stage" in how else None,
    )
    sync.configure(settings)
    if sync.bucket_bytes is not None:
        sync.bucket_bytes = BUCKET_BYTES
    program = (compiled.build if "compiled" in how else build)(
        request_of(network, settings, sync, group, 2 if "accumulated" in how else 1)
    )
    rng = np.random.default_rng(0)
    if "compiled" in how:
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
        if step == 0 and "sharded" not in name:
            parameters = program._built.parameters.items()
            found |= {f"g/{n}": p.grad.numpy(force=True).copy() for n, p in parameters}
    found["loss"] = np.array(program.loss())
    if precision == "fp16":
        found["scale"] = np.array(program.loss_scale()[0])
    images = rng.random((3, *network.inputs[0].shape), dtype=np.float32)
    scores = program.evaluate(program.place(Batch(images=images, labels=np.zeros(3, np.int64))))
    found["scores"] = scores
    if isinstance(sync, Pipeline) and group.size > 1:
        program._clock.read(sync.times, wait=True)
        found["times"] = np.array([sync.times.step_s, sync.times.wait_s])
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
        whole = case[0] in ("model-parallel", "pipeline")
        part = slice(None) if whole else own_part(group.rank)
        np.savez(path, **train(case, group, part, steps_of(case)))
    group.close()


def mesh_rank(folder):
    """What each of the four processes of a mesh does."""
    group = join("cpu", 600.0)
    for number, case in enumerate([*MESH, ONE_STAGE]):
        part = own_part(group.rank // MESH_STAGES)
        if case == ONE_STAGE:
            part = slice(2 * group.rank, 2 * group.rank + 2)
        np.savez(Path(folder, f"mesh{number}-{group.rank}.npz"), **train(case, group, part))
    group.close()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """(case, rank) → what that rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    run_script(__file__, folder, imports=["torch._inductor.compile_fx"])
    return {
        (case, n): dict(np.load(folder / f"{number}-{n}.npz"))
        for number, case in enumerate(CASES)
        for n in range(RANKS)
    } | {
        (case, n): dict(np.load(folder / f"mesh{number}-{n}.npz"))
        for number, case in enumerate([*MESH, ONE_STAGE])
        for n in range(MESH_RANKS)
    }


def assert_close(found, expected, kind, tolerance):
    assert_arrays_close(found, expected, kind, rtol=tolerance, atol=tolerance)


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


def test_compiled_ranks_with_sharded_weights_equal_one_eager_rank(ranks):
    alone = train(("none", "fp64", "nchw"), SingleProcessGroup())
    for n in range(RANKS):
        assert_close(ranks[SHARDED, n], alone, "w/", TOLERANCE["fp64"])
        np.testing.assert_allclose(ranks[SHARDED, n]["scores"], alone["scores"], atol=1e-10)


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


def in_both(ranks, case, mesh=False):
    """The gradients of both stages, and what every rank found."""
    found = [ranks[case, n] for n in range(MESH_RANKS if mesh else RANKS)]
    parts = [{name for name in own if name.startswith("g/")} for own in found[:2]]
    assert all(parts)
    assert parts[0].isdisjoint(parts[1])
    return {**found[1], **found[0]}, found


@pytest.mark.parametrize("case", [*PIPED, DROPPING], ids="-".join)
def test_a_pipeline_of_two_stages_equals_one_device(ranks, case):
    _, precision, layout, how = case
    how = ("deterministic",) if how == "deterministic" else ()
    alone = train(("none", precision, layout, *how), SingleProcessGroup())
    gradients, found = in_both(ranks, case)
    assert_close(gradients, alone, "g/", TOLERANCE[precision])
    for own in found:
        for kind in ("w/", "loss", "scores"):
            assert_close(own, alone, kind, TOLERANCE[precision])
        step_s, wait_s = own["times"]
        assert len(step_s) == 3
        assert (wait_s > 0).all()
        assert (wait_s < step_s).all()


@pytest.mark.parametrize("case", MESH, ids="-".join)
def test_a_mesh_of_two_pipelines_of_two_stages_equals_one_device(ranks, case):
    how = ("deterministic",) if case[-1] == "deterministic" else ()
    alone = train(("none", "fp64", "nchw", *how), SingleProcessGroup())
    gradients, found = in_both(ranks, case, mesh=True)
    assert_close(gradients, alone, "g/", TOLERANCE["fp64"])
    for own in found:
        assert_close(own, alone, "w/", TOLERANCE["fp64"])
        assert_close(own, alone, "scores", TOLERANCE["fp64"])
    losses = [own["loss"] for own in found]
    assert (losses[0], losses[2]) == (losses[1], losses[3])
    assert (losses[0] + losses[2]) / 2 == pytest.approx(alone["loss"], rel=1e-10)


def test_pipelines_of_one_stage_are_data_parallel(ranks):
    alone = train(("none", "fp64", "nchw"), SingleProcessGroup())
    for n in range(MESH_RANKS):
        for kind in ("g/", "w/", "scores"):
            assert_close(ranks[ONE_STAGE, n], alone, kind, TOLERANCE["fp64"])


def test_a_pipeline_normalizes_over_each_micro_batch(ranks):
    """Its gradient is the sum over micro-batches on one device; that of the whole batch differs."""
    network = normed_network()
    gradients, _ = in_both(ranks, NORMED)
    program = build(request_of(network))
    program.load(network.draw(1))
    rng = np.random.default_rng(0)
    images = rng.random((GLOBAL_BATCH, *network.inputs[0].shape), dtype=np.float32)
    labels = rng.integers(0, 10, GLOBAL_BATCH)
    placed = program.place(Batch(images=images, labels=labels))
    for x, y in zip(*(torch.tensor_split(a, MICRO_BATCHES) for a in placed), strict=True):
        (scores,) = program.module(x)
        (torch.nn.functional.cross_entropy(scores, y, reduction="sum") / GLOBAL_BATCH).backward()
    expected = {f"g/{n}": p.grad.numpy() for n, p in program._built.parameters.items()}
    assert_close(gradients, expected, "g/", 1e-10)
    whole = train(("none", "fp64", "nchw", "normed"), SingleProcessGroup(), steps=1)
    name = next(name for name in whole if name.startswith("g/") and "norm0" in name)
    assert np.abs(gradients[name] - whole[name]).max() > 1e-6


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
    failed = launch(rank, sys.argv[1], RANKS) or launch(mesh_rank, sys.argv[1], MESH_RANKS)
    sys.exit(f"ranks failed: {failed}" if failed else 0)
