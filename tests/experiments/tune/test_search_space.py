"""Configurations of `tune`, and the options of its knobs."""

import dataclasses

from cubemesh.experiments.tune import experiment as tune
from cubemesh.experiments.tune.search_space import (
    KNOBS,
    Configuration,
    configuration_of,
    usual_frameworks,
)
from cubemesh.schema import RunSpec, TrainSteps


def test_only_frameworks_with_a_static_scale_have_a_loss_scale():
    now = Configuration(framework="pytorch", precision="fp16", loss_scale=1.0, batch_per_device=8)
    space = tune.Settings(frameworks=("pytorch", "jax", "tensorflow")).request()
    (framework,) = (knob for knob in KNOBS if knob.name == "framework")
    scales = {c.framework: c.loss_scale for c in framework.options(now, space)}
    assert scales == {"pytorch": 1024.0, "jax": 1024.0, "tensorflow": None}


def test_the_usually_fastest_framework_is_tried_before_the_others():
    assert usual_frameworks()[:3] == ("pytorch", "pytorch-captured", "pytorch-compiled")
    assert "null" not in usual_frameworks()


def test_a_configuration_survives_its_spec_and_names_its_changes():
    first = Configuration(framework="pytorch", batch_per_device=8)
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=1))
    for changes in (
        {"threads": 2, "pinning": "compact"},
        {"bucket_bytes": 1 << 20},
        {"precision": "bf16"},
        {"precision": "fp16", "loss_scale": 1024.0},
    ):
        other = dataclasses.replace(first, **changes)
        assert configuration_of(other.of(spec)) == other
        assert len(other.changes(first)) == len(changes)
        assert other.words(first) != "stock"
    assert first.words(first) == "stock"
    low = dataclasses.replace(first, precision="fp16", loss_scale=1024.0)
    assert low.words(first) == "fp16"
    dynamic = dataclasses.replace(low, loss_scale=None)
    assert low.words(dynamic) == "loss_scale 1024.0"
    assert dataclasses.replace(dynamic, framework="tensorflow").words(low) == "tensorflow"
    assert low.changes(first) == ("precision=fp16", "loss_scale=1024.0")
