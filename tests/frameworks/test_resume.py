"""Learning-rate schedules, checkpoints and pauses in each framework but PyTorch, whose tests are in
training/test_resume.py: a training that went on from a checkpoint has the bits of one that never
stopped, through the loop, the files and the feed."""

import dataclasses
import shutil

import numpy as np
import pytest

from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.program import Diverged
from cubemesh.training.checkpoint import load, path_of, steps_in
from loadable_frameworks import LOADABLE
from small_training import EACH, contents, run, spec

INSTALLED = [
    name
    for name in LOADABLE
    if FRAMEWORKS[name].checkpoints and FRAMEWORKS[name].requires != "torch"
]
END = 2 * EACH
ADAM = {"optimizer": "adam", "learning_rate": 1e-3}
CASES = {
    "sgd cosine": (EACH - 2, {"optimizer": "sgd", "schedule": "cosine"}, {}),
    "descent at an epoch's end": (EACH, {"optimizer": "sgd", "momentum": 0.0}, {}),
    "adam warm-up": (EACH + 2, ADAM | {"warmup_epochs": 1.5}, {}),
    "adamw": (EACH + 2, ADAM | {"optimizer": "adamw", "weight_decay": 0.01}, {}),
    "rmsprop": (EACH - 2, ADAM | {"optimizer": "rmsprop", "schedule": "step"}, {}),
    "fp64": (EACH - 2, ADAM, {"precision": "fp64"}),
    "fp16 dynamic scale": (EACH - 2, ADAM, {"precision": "fp16", "loss_scale": "dynamic"}),
    "bf16": (EACH + 2, {"optimizer": "sgd"}, {"precision": "bf16"}),
}


@pytest.fixture(params=INSTALLED)
def name(request):
    return request.param


@pytest.fixture
def able(name):
    return FRAMEWORKS[name].load().capabilities()


def program_of(name, fields):
    return {"framework": name, "layout": FRAMEWORKS[name].layout} | fields


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_equals_an_uninterrupted_one(case, name, able, tmp_path):
    stop, fields, program = CASES[case]
    if (
        fields["optimizer"] not in able.optimizers
        or program.get("precision", "fp32") not in able.precisions["cpu"]
        or ("loss_scale" in program and "dynamic" not in able.loss_scales)
    ):
        pytest.skip(f"{name} refuses it")
    through, parted = tmp_path / "through", tmp_path / "parted"
    asked = spec(through, every=1, program=program_of(name, program), **fields)
    uninterrupted = run(asked)
    shutil.copytree(through, parted)
    for step in range(stop + 1, END + 1):
        path_of(parted, step, 0, 1).unlink()
    settings = dataclasses.replace(asked.checkpointing, checkpoints=str(parted), resume=True)
    rest = run(dataclasses.replace(asked, checkpointing=settings))
    assert rest.figures["resumed_at_step"].value == stop
    for step in (stop + 1, END):
        assert contents(parted, step) == contents(through, step)
    assert contents(through, END) != contents(through, END - 1)
    for curve in ("training_loss", "validation_loss", "validation_accuracy"):
        assert rest.curves[curve] == uninterrupted.curves[curve]
    if "schedule" in fields or "warmup_epochs" in fields:
        assert rest.curves["learning_rate"] == uninterrupted.curves["learning_rate"]


def test_divergence_names_the_layer_and_leaves_the_last_finite_checkpoint(name, tmp_path):
    wild = spec(tmp_path, every=1, program=program_of(name, {}), learning_rate=1e25)
    with pytest.raises(Diverged, match=r"non-finite values is the \w+ of \w+") as caught:
        run(wild)
    steps = steps_in(tmp_path)
    if steps:
        assert f"step {max(steps)}, in '{tmp_path}'" in str(caught.value)
    for step in steps:
        weights = load(tmp_path, step, 0, 1).snapshot.weights
        assert all(np.isfinite(array).all() for array in weights.values())


def test_a_flipped_bit_changes_the_fingerprint(name, make_request, tiny):
    program = (
        FRAMEWORKS[name].load().build(make_request(tiny, layout=FRAMEWORKS[name].layout, epochs=1))
    )
    weights = {name: array.copy() for name, array in tiny.draw(0).items()}
    program.load(weights)
    before = program.fingerprint()
    rng = np.random.default_rng(0)
    for array in weights.values():
        bits = array.view(np.uint32).reshape(-1)
        place, flip = int(rng.integers(len(bits))), np.uint32(1 << int(rng.integers(23)))
        bits[place] ^= flip
        program.load(weights)
        assert program.fingerprint() != before
        bits[place] ^= flip
    program.load(weights)
    assert program.fingerprint() == before
