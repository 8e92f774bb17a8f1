"""Ids and defaults are frozen: stored results are found by them, in this version and the next.

When a test here fails, do not adjust its literals: a changed default changes what every stored
spec id means, and a changed id makes every stored record be measured again. Give a new field a
default that leaves the ids as they are.
"""

import dataclasses
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.schema import (
    Budget,
    Ceiling,
    Forward,
    Machine,
    Placement,
    ProgramSettings,
    RunKey,
    RunSpec,
    Software,
    Train,
    TrainSteps,
    new_experiment_run_id,
)
from cubemesh.schema.record import new_run_id
from cubemesh.schema.serialization import canonical_json, digest, from_plain, to_plain

GOLDEN = [
    (
        RunSpec(work=TrainSteps(network="resnet-50", batch_per_device=32)),
        "54045433cb430f6c",
        "7b05c04486fa8ca6",
    ),
    (
        RunSpec(
            work=TrainSteps(network="resnet-50", batch_per_device=32),
            budget=Budget(steps=100, seconds=12.5),
        ),
        "fecd0b47505acf27",
        "7b05c04486fa8ca6",
    ),
    (
        RunSpec(
            work=Train(
                network="little-cnn",
                batch_per_device=16,
                data="digits",
                epochs=30,
                optimizer="rmsprop",
                learning_rate=1e-4,
            )
        ),
        "81fcc463f92e7c04",
        "7f6b075465885dd0",
    ),
    (
        RunSpec(
            work=Forward(network="vgg16", batch_per_device=64, image_size=224),
            placement=Placement(device="cuda", devices=8),
            program=ProgramSettings(precision="bf16", layout="nhwc", data_location="device"),
        ),
        "6c72800b2a9ba60f",
        "f3a1e1abf99a5bc2",
    ),
    (RunSpec(work=Ceiling()), "7155371a6de8f542", "d1f1d131d45009eb"),
    (
        RunSpec(
            work=Ceiling(operation="copy", size=2**28),
            program=ProgramSettings(framework="null", script="oom@3"),
        ),
        "0f7ad766f90e0e5f",
        "4611dfea7d296ae7",
    ),
]
ON_NETWORKS = {
    "network": "n",
    "batch_per_device": 1,
    "image_size": None,
    "classes": None,
    "data": "synthetic",
    "data_path": None,
    "seed": 0,
}
TRAINING = {"optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0}
DEFAULTS = [
    (
        TrainSteps(network="n", batch_per_device=1),
        {**ON_NETWORKS, "kind": "train_steps", **TRAINING},
    ),
    (Forward(network="n", batch_per_device=1), {**ON_NETWORKS, "kind": "forward"}),
    (
        Train(network="n", batch_per_device=1),
        {**ON_NETWORKS, "kind": "train", "epochs": 1, **TRAINING},
    ),
    (Ceiling(), {"kind": "ceiling", "operation": "matrix_product", "size": None}),
    (Placement(), {"device": "auto", "devices": 1, "threads": None}),
    (
        ProgramSettings(),
        {
            "framework": "pytorch",
            "precision": "fp32",
            "precision_of": [],
            "loss_scale": None,
            "layout": "nchw",
            "sync": "none",
            "data_location": "host",
            "script": None,
        },
    ),
    (
        Budget(),
        {
            "steps": 20,
            "seconds": 2.0,
            "windows": 12,
            "warmup_seconds": 20.0,
            "repeats": 1,
            "time_limit_s": 900.0,
            "memory_limit_bytes": None,
        },
    ),
]
KEY = RunKey(spec_id="a", machine_id="b", software_id="c", code_version="d")
MOMENT = "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(("spec", "spec_id", "workload_id"), GOLDEN)
def test_ids_stay_what_they_are(spec, spec_id, workload_id):
    assert (spec.spec_id, spec.workload_id) == (spec_id, workload_id)


@pytest.mark.parametrize(("part", "frozen"), DEFAULTS, ids=lambda p: type(p).__name__)
def test_frozen_defaults_hold(part, frozen):
    """A field that is new may join; one that is listed here keeps its default."""
    plain = to_plain(part)
    assert {name: plain[name] for name in frozen} == frozen


def test_run_and_question_ids_stay_what_they_are():
    assert new_run_id(KEY, MOMENT, 1) == "8f93aff84960"
    assert new_experiment_run_id("minibatch", {"batches": [8]}, MOMENT) == "2e6bb9bf44f8"
    assert len({new_run_id(KEY, MOMENT, attempt) for attempt in range(20)}) == 20


def test_a_new_field_at_its_default_changes_no_id():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class LaterPlacement(Placement):
        racks: int = 1

    assert digest(LaterPlacement(threads=2)) == digest(Placement(threads=2))
    assert digest(LaterPlacement(threads=2, racks=2)) != digest(Placement(threads=2))


def test_a_default_that_is_written_out_changes_no_id():
    bare = RunSpec(work=TrainSteps(network="n", batch_per_device=8))
    written = from_plain(RunSpec, to_plain(bare))
    assert written.spec_id == bare.spec_id
    assert canonical_json(written) == canonical_json(bare)


@pytest.mark.parametrize(("spec", "_spec_id", "_workload_id"), GOLDEN)
def test_ids_survive_plain_data(spec, _spec_id, _workload_id):
    assert from_plain(RunSpec, to_plain(spec, defaults=False)).spec_id == spec.spec_id


@settings(deadline=None, max_examples=50)
@given(
    steps=st.integers(1, 1000),
    seconds=st.floats(0, 100),
    batch=st.integers(1, 4096),
    devices=st.integers(1, 16),
)
def test_effort_changes_the_spec_but_not_the_workload(steps, seconds, batch, devices):
    spec = RunSpec(
        work=TrainSteps(network="n", batch_per_device=batch), placement=Placement(devices=devices)
    )
    watched = dataclasses.replace(spec, budget=Budget(steps=steps, seconds=seconds))
    assert watched.workload_id == spec.workload_id
    assert (watched.spec_id == spec.spec_id) == (watched.budget == spec.budget)
    assert spec.global_batch == batch * devices


def test_limits_of_time_change_no_id():
    """A run that came to its end is the same whenever it would have been given up."""
    for spec, spec_id, _ in GOLDEN:
        budget = dataclasses.replace(spec.budget, time_limit_s=61.0, heartbeat_timeout_s=3.0)
        assert dataclasses.replace(spec, budget=budget).spec_id == spec_id
    limited = Budget(memory_limit_bytes=1 << 30)
    spec = GOLDEN[0][0]
    assert dataclasses.replace(spec, budget=limited).spec_id != spec.spec_id


def test_every_other_part_changes_the_workload():
    specs = [spec for spec, *_ in GOLDEN if spec.budget == Budget()]
    assert len({spec.workload_id for spec in specs}) == len(specs)
    train, forward = (kind(network="n", batch_per_device=1) for kind in (TrainSteps, Forward))
    assert RunSpec(work=train).spec_id != RunSpec(work=forward).spec_id


def test_a_machine_keeps_its_id_while_memory_and_software_change():
    plain = {
        "hostname": "h",
        "cpu": {"model": "x", "usable_cores": 8},
        "memory": {"total_bytes": 100, "available_bytes": 50},
        "gpus": [{"index": 0, "name": "n", "uuid": "GPU-1"}],
        "software": {"python": "3.11.7", "system": "Linux"},
    }
    machine = from_plain(Machine, plain)
    changed = from_plain(
        Machine,
        plain
        | {"memory": {"total_bytes": 90}, "software": {"python": "3.12.1", "system": "Linux"}},
    )
    other = from_plain(Machine, plain | {"gpus": []})
    assert changed.machine_id == machine.machine_id
    assert other.machine_id != machine.machine_id


def test_software_is_known_by_what_a_run_depends_on():
    plain = {"python": "3.11.7", "system": "Linux", "packages": {"torch": "2.4", "jax": "0.4"}}
    software = from_plain(Software, plain)
    upgraded = dataclasses.replace(software, packages={"torch": "2.5", "jax": "0.4"})
    aside = dataclasses.replace(software, packages={"torch": "2.4", "jax": "0.5"})
    assert upgraded.software_id(("torch",)) != software.software_id(("torch",))
    assert aside.software_id(("torch",)) == software.software_id(("torch",))
    assert dataclasses.replace(software, driver="550").software_id(()) != software.software_id(())


def test_a_digest_is_the_sha256_of_the_canonical_json():
    assert digest({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()[:16]
