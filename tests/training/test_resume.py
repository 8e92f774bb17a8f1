"""Going on from a checkpoint gives the bits that going through would have given: for real programs,
through the loop, the files and the feed."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.program import BuildRequest, Diverged
from cubemesh.frameworks.pytorch import build
from cubemesh.parallel import strategies
from cubemesh.schema import Placement, ProgramSettings, Train
from cubemesh.training.checkpoint import load, path_of, steps_in
from small_training import EACH, contents, dropping, run, source, spec

ADAM = {"optimizer": "adam", "learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("stop", "fields", "program"),
    [
        (EACH, {"optimizer": "sgd"}, {}),
        (EACH - 2, {"optimizer": "sgd", "momentum": 0.0}, {}),
        (EACH + 2, ADAM, {}),
        (EACH - 2, ADAM, {"precision": "fp16"}),
        (EACH + 2, {"optimizer": "lars", "schedule": "cosine"}, {"layout": "nhwc"}),
        (EACH - 2, {"optimizer": "rmsprop", "warmup_epochs": 1.5}, {"sync": "local-sgd"}),
    ],
    ids=["epoch's end", "sgd", "adam", "fp16 dynamic scale", "lars cosine nhwc", "local-sgd"],
)
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, stop, fields, program):
    through, parted = tmp_path / "through", tmp_path / "parted"
    uninterrupted = run(spec(through, every=1, program=program, **fields))
    run(spec(parted, every=1, program=program, **fields))
    for step in range(stop + 1, 2 * EACH + 1):
        path_of(parted, step, 0, 1).unlink()
    rest = run(spec(parted, every=1, resume=True, program=program, **fields))
    assert rest.figures["resumed_at_step"].value == stop
    assert list(steps_in(parted)) == list(range(2, 11))
    for step in (stop + 1, 10):
        assert contents(parted, step) == contents(through, step)
    assert len(contents(through, 10)[0]) > len(dropping().parameters)
    for name in ("training_loss", "validation_loss", "validation_accuracy"):
        assert rest.curves[name] == uninterrupted.curves[name]
    assert rest.figures["accuracy"] == uninterrupted.figures["accuracy"]


def test_checkpoints_by_the_rule_change_no_weights(tmp_path):
    """With a fault in twelve days no short training needs one after the first, but at its end."""
    through, ruled = tmp_path / "through", tmp_path / "ruled"
    run(spec(through, every=1, **ADAM))
    log = run(spec(ruled, every=None, fault_every_s=1e6, **ADAM))
    assert list(steps_in(ruled)) == [2, 2 * EACH]
    assert contents(ruled, 2 * EACH) == contents(through, 2 * EACH)
    names = ("checkpoint_cost_s", "checkpoint_write_s", "checkpoint_interval_s", "restart_s")
    assert all(log.figures[name].value > 0 for name in (*names, "checkpoint_rule_s"))
    path_of(ruled, 2 * EACH, 0, 1).unlink()
    log = run(spec(ruled, every=None, fault_every_s=1e6, resume=True, **ADAM))
    assert log.figures["resumed_at_step"].value == 2
    assert list(steps_in(ruled)) == [2, 4, 2 * EACH]
    assert contents(ruled, 2 * EACH) == contents(through, 2 * EACH)


def made():
    network = dropping()
    request = BuildRequest(
        network=network,
        work=Train(network="dropping", batch_per_device=4, optimizer="adam"),
        placement=Placement(),
        program=ProgramSettings(),
        sync=strategies.make("none"),
        device="cpu",
        threads=1,
    )
    program = build(request)
    program.load(network.draw(0))
    return program, program.place(source(4).batch(np.arange(4)))


def test_further_steps_change_no_snapshot():
    program, placed = made()
    program.train_step(placed)
    snapshot = program.snapshot()

    def bits(snapshot):
        return {n: a.tobytes() for n, a in {**snapshot.weights, **snapshot.arrays}.items()}

    before = bits(snapshot)
    program.train_step(placed)
    assert bits(snapshot) == before
    now = bits(program.snapshot())
    assert set(now) == set(before)
    assert sum(now[name] == before[name] for name in before) == 0, "every array has moved on"


def test_a_flipped_bit_changes_the_fingerprint():
    program, _ = made()
    before = program.fingerprint()
    rng = np.random.default_rng(0)
    for parameter in program.module.parameters():
        bits = parameter.detach().view(torch.int32).view(-1)
        place, bit = int(rng.integers(len(bits))), int(rng.integers(32))
        flip = torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
        bits[place] ^= flip
        assert program.fingerprint() != before
        bits[place] ^= flip
        assert program.fingerprint() == before


def test_the_first_layer_that_is_not_finite_is_named():
    program, placed = made()
    assert program.first_nonfinite(placed) == ""
    linear = [m for m in program.module.modules() if isinstance(m, torch.nn.Linear)][-1]
    with torch.no_grad():
        linear.weight.fill_(3e38)
    named = program.first_nonfinite(placed)
    assert named.startswith("the output of "), named
    with torch.no_grad():
        linear.bias[0] = float("nan")
    assert program.first_nonfinite(placed).startswith("the bias of ")


def test_divergence_leaves_the_last_finite_checkpoint(tmp_path):
    wild = spec(tmp_path, every=1, learning_rate=1e25)
    with pytest.raises(Diverged) as caught:
        run(wild)
    (step,) = list(steps_in(tmp_path))[-1:] or (None,)
    message = str(caught.value)
    assert re.search(r"\bnon-finite\b.* the \w+ of \w+", message)
    assert f"step {step}, in '{tmp_path}'" in message
    for one in steps_in(tmp_path):
        weights = load(tmp_path, one, 0, 1).snapshot.weights
        assert all(np.isfinite(array).all() for array in weights.values())


def test_checkpoints_of_another_training_are_refused(tmp_path):
    run(spec(tmp_path, every=5))
    with pytest.raises(UsageError, match=r"seed=0.*seed=1"):
        run(spec(tmp_path, every=5, resume=True, seed=1))
    normalized = spec(tmp_path, every=5, resume=True, program={"batch_norm": "global"})
    with pytest.raises(UsageError, match="batch_norm=device"):
        run(normalized)
    longer = run(spec(tmp_path, every=5, resume=True, epochs=3, learning_rate=0.001))
    assert longer.figures["epochs_trained"].value == 3
    assert list(steps_in(tmp_path))[-1] == 15


def test_a_finished_training_makes_no_more_steps(tmp_path):
    before = run(spec(tmp_path, every=5))
    again = run(spec(tmp_path, every=5, resume=True))
    assert again.figures["accuracy"] == before.figures["accuracy"]
    assert [w.phase for w in again.windows] == []


def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path):
    through = tmp_path / "through"
    run(spec(through, every=5))
    run(spec(tmp_path / "parted", every=5))
    path = path_of(tmp_path / "parted", 10, 0, 1)
    path.write_bytes(path.read_bytes()[:-1])
    log = run(spec(tmp_path / "parted", every=5, resume=True))
    (warning,) = log.warnings
    assert warning.code == "checkpoint-damaged"
    assert "step 5" in warning.cause
    assert contents(tmp_path / "parted", 10) == contents(through, 10)
    for step in (5, 10):
        path_of(tmp_path / "parted", step, 0, 1).write_bytes(b"")
    with pytest.raises(DataError, match="2 checkpoints"):
        run(spec(tmp_path / "parted", every=5, resume=True))
