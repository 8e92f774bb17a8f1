"""Two real processes that train asynchronously, over gloo: what the server did is done again.

The ranks run this very file as a script. The server's account of its updates says which gradient,
computed from which version of the weights, was applied when; one process that follows it must come
to the same weights. And a rank that makes no step delays no other rank.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.batches import Batch
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch import build, join, launch
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel import strategies
from cubemesh.parallel.asynchronous import rate_factor
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from patience import PATIENCE_S
from script_server import run_script

RANKS = 2
STEPS = 6
RATE = 0.05
CASES = [("asynchronous", "nchw", "sgd"), ("asynchronous-aware", "nhwc", "rmsprop")]
WAITS_S = {"all-reduce": 0.5, "asynchronous": PATIENCE_S}
"""Strategy → how long rank 1 waits for the end of rank 0's steps before its own."""


def small():
    net = NetworkBuilder("small")
    x = net.input("image", (3, 8, 8))
    with net.segment("features"):
        x = net.relu(net.conv(x, 4, kernel=3))
    with net.segment("classifier"):
        net.classify(net.linear(net.flatten(x), 10))
    return net.build()


def make(case, group, rate=RATE):
    name, layout, optimizer = case
    sync = strategies.make(name, group)
    if sync.bucket_bytes is not None:
        sync.bucket_bytes = 512  # several buckets
    work = TrainSteps(
        network="small", batch_per_device=4, learning_rate=rate, optimizer=optimizer, momentum=0.9
    )
    program = build(
        BuildRequest(
            network=small(),
            work=work,
            placement=Placement(),
            program=ProgramSettings(precision="fp64", layout=layout, sync=name),
            sync=sync,
            device="cpu",
            threads=1,
            group=group,
        )
    )
    program.load(small().draw(1))
    return program, sync


def batch(rank, step):
    rng = np.random.default_rng((rank, step))
    return Batch(images=rng.random((4, 3, 8, 8), dtype=np.float32), labels=rng.integers(0, 10, 4))


def rank(folder):
    """What each of the two processes does."""
    group = join("cpu", PATIENCE_S)
    for number, case in enumerate(CASES):
        program, sync = make(case, group)
        for step in range(STEPS):
            program.train_step(program.place(batch(group.rank, step)))
        program.synchronize_replicas()
        updates = {"workers": sync.applied.workers, "carried": sync.applied.carried}
        np.savez(Path(folder, f"{number}-{group.rank}.npz"), **program.state(), **updates)
        program.close()
    ends_first = {name: rank_0_ends_first(name, group) for name in WAITS_S}
    if group.rank == 1:
        Path(folder, "ends_first.json").write_text(json.dumps(ends_first))
    fail_while_waiting(Path(folder, "error.txt"), group)
    group.close()


def fail_while_waiting(error_file, group):
    """The thread that serves the weights fails while rank 0 waits for rank 1."""
    program, sync = make(CASES[0], group)
    if group.rank == 0:

        def broken(gradients, rate_factor):
            raise ValueError("planted")

        sync._server._master.apply = broken
        try:
            program.synchronize_replicas()
        except RuntimeError as error:
            error_file.write_text(f"{type(error).__name__}: {error.__cause__}")
    else:
        time.sleep(0.5)  # rank 0 waits by now
        sync._p2p.send_header((0, 0), 0)  # a gradient comes, whose sender waits for the weights
        sync._p2p.send([bucket.gradients for bucket in program.buckets], 0)
    group.all_gather_object("done")


def rank_0_ends_first(name, group):
    """Whether rank 0 can make all its steps before rank 1 makes one, as rank 1 sees it."""
    program, _ = make((name, "nchw", "sgd"), group)
    placed, flag, ended = program.place(batch(group.rank, 0)), f"{name} ended", False
    if group.rank == 1:
        end_s = time.monotonic() + WAITS_S[name]
        while not ended and time.monotonic() < end_s:
            ended = group.poll_flag(flag, False)
            time.sleep(0.01)
    for _ in range(STEPS):
        program.train_step(placed)
    program.synchronize()
    group.poll_flag(flag, True)
    program.synchronize_replicas()
    program.close()
    return ended


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """(what, rank) → what that rank found."""
    folder = tmp_path_factory.mktemp("asynchronous")
    run_script(__file__, folder)
    found = {
        (n, rank): dict(np.load(folder / f"{n}-{rank}.npz"))
        for n in range(len(CASES))
        for rank in range(RANKS)
    }
    ends_first = json.loads((folder / "ends_first.json").read_text())
    return found | {"error": (folder / "error.txt").read_text(), "ends_first": ends_first}


def test_an_error_of_the_server_reaches_a_rank_that_waits(ranks):
    assert ranks["error"] == "RuntimeError: planted"


def follow(case, workers, carried):
    """The weights that one process comes to which makes these updates in this order: each by the
    gradient of its worker's next batch, computed with the weights of the version it carried."""
    name, layout, optimizer = case
    asked = ("none", layout, optimizer)
    taught, _ = make(asked, SingleProcessGroup())  # updates
    asked_for, _ = make(asked, SingleProcessGroup(), rate=0.0)  # computes gradients
    steps = [0] * RANKS
    versions = [taught.state()]
    for applied, (worker, version) in enumerate(zip(workers, carried, strict=True)):
        asked_for._built.load(versions[version])
        asked_for.train_step(asked_for.place(batch(worker, steps[worker])))
        steps[worker] += 1
        for own, other in zip(
            taught._built.parameters.values(), asked_for._built.parameters.values(), strict=True
        ):
            own.grad = other.grad.clone()
        aware = name == "asynchronous-aware"
        factor = rate_factor(applied - version) if aware else 1.0
        taught._optimizer.param_groups[0]["lr"] = RATE * factor
        taught._optimizer.step()
        versions.append(taught.state())
    return versions[-1]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case[0] for case in CASES])
def test_the_logged_updates_reproduce_the_server_s_weights(ranks, number):
    first, second = (ranks[number, n] for n in range(RANKS))
    workers, carried = first.pop("workers").tolist(), first.pop("carried").tolist()
    assert sorted(workers) == [0] * STEPS + [1] * STEPS
    assert second.pop("workers").size == second.pop("carried").size == 0
    expected = follow(CASES[number], workers, carried)
    for name, weights in expected.items():
        np.testing.assert_allclose(first[name], weights, rtol=1e-10, atol=1e-10, err_msg=name)
        np.testing.assert_array_equal(second[name], first[name])


def test_a_rank_waits_for_another_only_where_gradients_are_averaged(ranks):
    assert ranks["ends_first"] == {"all-reduce": False, "asynchronous": True}


def test_scaled_losses_are_refused(make_request):
    class Several(SingleProcessGroup):
        size = 2

        def point_to_point(self):
            return None

    request = make_request(precision="fp16")
    sync = strategies.make("asynchronous", Several())
    with pytest.raises(Unsupported, match=r"precision=bf16\b.*\bfp32\b"):
        build(dataclasses.replace(request, sync=sync))


if __name__ == "__main__":
    failed = launch(rank, sys.argv[1], RANKS)
    sys.exit(f"ranks failed: {failed}" if failed else 0)
