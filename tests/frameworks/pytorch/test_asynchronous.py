"""Two real processes that train asynchronously, over gloo: what the server did is done again.

The ranks run this very file as a script. The server's account of its updates says which gradient,
computed from which version of the weights, was applied when; one process that follows it must come
to the same weights. And a rank slowed by sleeping holds up nobody but itself.
"""

import dataclasses
import os
import subprocess
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
from cubemesh.measure.timing.timer import FreeRunning, Lockstep, measure
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel import strategies
from cubemesh.parallel.asynchronous import rate_factor
from cubemesh.parallel.strategies import strategy
from cubemesh.schema.spec import Budget, Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from in_memory_log import InMemoryLog

RANKS = 2
STEPS = 6
RATE = 0.05
CASES = [("asynchronous", "nchw", "sgd"), ("asynchronous-aware", "nhwc", "rmsprop")]
SLEEPS_S = (0.02, 0.24)
"""What a step of each rank sleeps."""
PACED = ("all-reduce", "asynchronous")


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
    group = join("cpu", 60.0)
    for number, case in enumerate(CASES):
        program, sync = make(case, group)
        for step in range(STEPS):
            program.train_step(program.place(batch(group.rank, step)))
        program.synchronize_replicas()
        updates = {"workers": sync.applied.workers, "carried": sync.applied.carried}
        np.savez(Path(folder, f"{number}-{group.rank}.npz"), **program.state(), **updates)
        program.close()
    for name in PACED:
        mean_s, median_s = slowed(name, group)
        np.savez(Path(folder, f"{name}-{group.rank}.npz"), mean_s=mean_s, median_s=median_s)
    fail_while_waiting(Path(folder, "told.txt"), group)
    group.close()


def fail_while_waiting(told, group):
    """The thread that serves the weights fails while rank 0 waits for rank 1."""
    program, sync = make(CASES[0], group)
    if group.rank == 0:

        def broken(gradients, rate_factor):
            raise ValueError("planted")

        sync._server._master.apply = broken
        try:
            program.synchronize_replicas()
        except RuntimeError as error:
            told.write_text(f"{type(error).__name__}: {error.__cause__}")
    else:
        time.sleep(0.5)  # rank 0 waits by now
        sync._p2p.send_header((0, 0), 0)  # a gradient comes, whose sender waits for the weights
        sync._p2p.send([bucket.gradients for bucket in program.buckets], 0)
    group.all_gather_object("told")


def slowed(name, group):
    """What a step of this rank takes, where rank 1 sleeps longer in each of its own: in the mean of
    all, and in the median window. Where a busy host holds one rank up before a window in step, the
    other's clock runs already."""
    program, _ = make((name, "nchw", "sgd"), group)
    placed = program.place(batch(group.rank, 0))

    def step():
        time.sleep(SLEEPS_S[group.rank])
        program.train_step(placed)

    apart = strategy(name).free_running
    found = measure(
        step,
        program.synchronize,
        program.clock,
        samples_per_step=4,
        budget=Budget(steps=12, windows=4, seconds=0.0, warmup_seconds=0.0),
        log=InMemoryLog(),
        pace=FreeRunning(group.rank, group.poll_flag)
        if apart
        else Lockstep(group.broadcast_object),
    )
    program.close()
    mean_s = sum(w.elapsed_s for w in found.windows) / sum(w.steps for w in found.windows)
    return mean_s, np.median([w.elapsed_s / w.steps for w in found.windows])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """(what, rank) → what that rank found."""
    folder = tmp_path_factory.mktemp("asynchronous")
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, str(folder)]
    subprocess.run(command, env={**os.environ, **path}, check=True, timeout=100)
    whats = [*map(str, range(len(CASES))), *PACED]
    found = {(w, n): dict(np.load(folder / f"{w}-{n}.npz")) for w in whats for n in range(RANKS)}
    return found | {"told": (folder / "told.txt").read_text()}


def test_a_server_that_fails_while_its_rank_waits_is_told(ranks):
    assert ranks["told"] == "RuntimeError: planted"


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
def test_the_servers_account_leads_to_its_weights(ranks, number):
    first, second = (ranks[str(number), n] for n in range(RANKS))
    workers, carried = first.pop("workers").tolist(), first.pop("carried").tolist()
    assert sorted(workers) == [0] * STEPS + [1] * STEPS
    assert second.pop("workers").size == second.pop("carried").size == 0
    expected = follow(CASES[number], workers, carried)
    for name, weights in expected.items():
        np.testing.assert_allclose(first[name], weights, rtol=1e-10, atol=1e-10, err_msg=name)
        np.testing.assert_array_equal(second[name], first[name])


def test_a_slowed_rank_lowers_the_others_pace_only_where_they_wait_for_it(ranks):
    first_s, second_s = (float(ranks["all-reduce", n]["median_s"]) for n in range(RANKS))
    assert first_s == pytest.approx(second_s, rel=0.1)
    assert first_s >= SLEEPS_S[1]
    first_s, second_s = (float(ranks["asynchronous", n]["mean_s"]) for n in range(RANKS))
    assert second_s >= SLEEPS_S[1]
    assert first_s < SLEEPS_S[1] / 2


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
