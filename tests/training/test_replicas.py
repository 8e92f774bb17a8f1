"""Two real processes, joined by gloo, that train through the loop: going on from a checkpoint gives
the same bits on both, a bit that flips in one's weights is found, and under local SGD what is
evaluated and saved is the mean of the ranks' weights.

The ranks run this very file as a script.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.data.feed import Feed, in_order
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest, ReplicasDiffer
from cubemesh.frameworks.pytorch import build, join, launch
from cubemesh.parallel import strategies
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import CheckpointSettings, Placement, ProgramSettings, RunSpec, Train
from cubemesh.training import replica_check
from cubemesh.training.checkpoint import load, path_of
from cubemesh.training.evaluation import score_all
from cubemesh.training.loop import Training
from cubemesh.worker.run import checkpointing
from in_memory_log import InMemoryLog
from script_server import run_script
from small_training import dropping, source

RANKS, BATCH = 2, 4
SYNCHRONOUS = ("all-reduce", "parameter-server")
STOP = 5
"""Five steps and five; an epoch has four."""
VALIDATED = 9
"""In three batches: two for rank 0, the last of a single sample, and one for rank 1."""
EVERY = 2
"""Steps between two checkpoints under local SGD, which averages by itself after eight."""


def run(folder, sync, group, *, resume=False, epochs=3, sabotage=None, every=1):
    """What a worker does; `sabotage` is called with the program before each step."""
    work = Train(network="dropping", batch_per_device=BATCH, epochs=epochs, optimizer="adam")
    spec = RunSpec(
        work=work,
        placement=Placement(devices=RANKS),
        program=ProgramSettings(sync=sync),
        checkpointing=CheckpointSettings(
            checkpoints=str(folder), every_steps=every, keep=20, resume=resume
        ),
    )
    log = InMemoryLog()
    begin = checkpointing.beginning(spec, group, log)
    feed = Feed(
        source(BATCH * RANKS * 4),
        BATCH,
        work.seed,
        epochs=epochs,
        rank=group.rank,
        ranks=group.size,
        start=begin.history.done,
    )
    program = made(spec, group)
    begin.restore(program, log)
    if sabotage is not None:
        step = program.train_step
        program.train_step = lambda placed: (sabotage(program, group.rank), step(placed))[1]
    Training(
        program=program,
        feed=feed,
        validation=source(VALIDATED),
        work=work,
        log=log,
        group=group,
        writer=checkpointing.training_writer(spec, group, begin),
        history=begin.history,
        same_weights=strategy(sync).same_weights,
        one_model=strategy(sync).one_model(),
    ).run()


def made(spec, group):
    """The program of a rank, with its first weights."""
    program = build(
        BuildRequest(
            network=dropping(),
            work=spec.work,
            placement=spec.placement,
            program=spec.program,
            sync=strategies.make(spec.program.sync, group),
            device="cpu",
            threads=1,
            group=group,
        )
    )
    program.load(dropping().draw(0))
    return program


class Flip:
    """Flips the lowest bit of one weight on rank 1, before the seventh step."""

    def __init__(self):
        self.steps = 0

    def __call__(self, program, rank):
        self.steps += 1
        if rank == 1 and self.steps == 7:
            weight = next(program.module.parameters()).detach()
            weight.view(torch.int32).view(-1)[3] ^= 1


def run_rank(folder):
    """All trainings of one rank."""
    group = join("cpu", 600.0)
    for sync, every in [*((name, 1) for name in SYNCHRONOUS), ("local-sgd", EVERY)]:
        through, resumed = Path(folder, sync), Path(folder, f"{sync}-resumed")
        run(through, sync, group, every=every)
        run(resumed, sync, group, every=every)
        group.all_gather_object("both are there")
        if group.rank == 0:
            for step in range(STOP + 1, 13):  # those of rank 1 remain, incomplete
                path_of(resumed, step, 0, RANKS).unlink(missing_ok=every > 1)
        group.all_gather_object("gone")
        run(resumed, sync, group, resume=True, every=every)
    run(Path(folder, "none"), "none", group, epochs=1, every=EVERY)
    try:
        run(Path(folder, "flipped"), "all-reduce", group, sabotage=Flip())
    except ReplicasDiffer as error:
        Path(folder, f"error_text-{group.rank}.json").write_text(json.dumps(str(error)))
    group.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    run_script(__file__, folder)
    return folder


@pytest.mark.parametrize("sync", SYNCHRONOUS)
@pytest.mark.parametrize("rank", range(RANKS))
def test_five_steps_and_five_equal_ten(folder, sync, rank):
    for step in (STOP + 1, STOP + 5):
        through, resumed = (
            load(Path(folder, name), step, rank, RANKS) for name in (sync, f"{sync}-resumed")
        )
        for one, other in (
            (through.snapshot.weights, resumed.snapshot.weights),
            (through.snapshot.arrays, resumed.snapshot.arrays),
        ):
            assert {n: a.tobytes() for n, a in one.items()} == {
                n: a.tobytes() for n, a in other.items()
            }
        assert through.history == resumed.history


def weights_of(folder, sync, step, rank):
    """The weights that a rank has saved, without its statistics of batch normalization."""
    found = load(Path(folder, sync), step, rank, RANKS).snapshot.weights
    return {name: found[name] for name in dropping().parameters}


def test_local_sgd_saves_the_mean_of_the_ranks_weights(folder):
    for step in (EVERY, 4, 12):
        first, second = (weights_of(folder, "local-sgd", step, rank) for rank in range(RANKS))
        assert {n: a.tobytes() for n, a in first.items()} == {
            n: a.tobytes() for n, a in second.items()
        }
    separate = [weights_of(folder, "none", EVERY, rank) for rank in range(RANKS)]
    saved = weights_of(folder, "local-sgd", EVERY, 0)
    for name, array in saved.items():
        mean = (separate[0][name] + separate[1][name]) / 2
        np.testing.assert_allclose(array, mean, rtol=1e-6, atol=1e-7, err_msg=name)
    assert any(np.abs(separate[0][name] - separate[1][name]).max() > 1e-4 for name in saved)


@pytest.mark.parametrize("sync", [*SYNCHRONOUS, "local-sgd"])
def test_ranks_that_share_an_evaluation_get_the_bits_of_one(folder, sync):
    """Of the weights that are saved, with the statistics of rank 0."""
    saved = load(Path(folder, sync), 4, 0, RANKS)
    work = Train(network="dropping", batch_per_device=BATCH)
    program = made(RunSpec(work=work), SingleProcessGroup())
    program.load(saved.snapshot.weights)
    scored = score_all(program, in_order(source(VALIDATED), BATCH), InMemoryLog(), mark="")
    assert saved.history.validation[0] == scored
    assert load(Path(folder, sync), 4, 1, RANKS).history.validation[0] == scored


def test_local_sgd_resumes_bit_for_bit(folder):
    for rank in range(RANKS):
        through, resumed = (
            load(Path(folder, name), 12, rank, RANKS).snapshot
            for name in ("local-sgd", "local-sgd-resumed")
        )
        assert through.plain == resumed.plain
        for one, other in ((through.weights, resumed.weights), (through.arrays, resumed.arrays)):
            assert {n: a.tobytes() for n, a in one.items()} == {
                n: a.tobytes() for n, a in other.items()
            }


def test_ranks_have_the_same_weights_and_different_generators(folder):
    first, second = (load(Path(folder, "all-reduce"), 10, r, RANKS).snapshot for r in range(RANKS))
    for name in dropping().parameters:
        assert first.weights[name].tobytes() == second.weights[name].tobytes()
    for name in dropping().state:
        assert first.weights[name].tobytes() != second.weights[name].tobytes()
    assert first.arrays["random.cpu"].tobytes() != second.arrays["random.cpu"].tobytes()


def test_a_flipped_bit_is_detected_before_the_next_checkpoint(folder):
    for rank in range(RANKS):
        error_text = json.loads(Path(folder, f"error_text-{rank}.json").read_text())
        assert re.search(r"\bstep 7\b.*\bstep 6: rank 1 ", error_text)
    assert path_of(Path(folder, "flipped"), 6, 1, RANKS).exists()
    assert not path_of(Path(folder, "flipped"), 7, 1, RANKS).exists()


@pytest.mark.parametrize(
    ("fingerprints", "words"),
    [
        ([7, 7, 8, 7], "rank 2 differs from the 3 "),
        ([8, 7, 7], "rank 0 differs from the 2 "),
        ([7, 8], "rank 1 differs from rank 0"),
        ([7, 7, 8, 9], "ranks 2, 3 differ from rank 0"),
    ],
)
def test_who_differs(fingerprints, words):
    assert replica_check.who_differs(fingerprints).startswith(words)


if __name__ == "__main__":
    failed = launch(run_rank, sys.argv[1], RANKS)
    sys.exit(f"ranks failed: {failed}" if failed else 0)
