"""What a configuration is, and where each lever leads from it."""

import dataclasses

from cubemesh.experiments.tune import experiment as tune
from cubemesh.experiments.tune.search_space import (
    KNOBS,
    Configuration,
    SearchSpace,
    configuration_of,
    usual_frameworks,
)
from cubemesh.schema import RunSpec, TrainSteps


def test_only_what_takes_a_loss_scale_is_given_one():
    now = Configuration(framework="pytorch", precision="fp16", loss_scale=1.0, batch_per_device=8)
    asked = tune.Settings(frameworks=("pytorch", "jax", "tensorflow")).request()
    space = SearchSpace(
        frameworks=asked.frameworks,
        precisions=("fp16",),
        layouts=asked.layouts,
        compile_by=asked.compile_by,
        strategies=(),
        buckets=(),
        threads=(),
        pinnings=(),
        batch_sizes=(),
        on_gpu=True,
        usable_threads=None,
    )
    (framework,) = (knob for knob in KNOBS if knob.name == "framework")
    scales = {c.framework: c.loss_scale for c in framework.options(now, space)}
    assert scales == {"pytorch": 1024.0, "jax": 1024.0, "tensorflow": None}


def test_the_fastest_framework_so_far_is_tried_before_the_others():
    assert usual_frameworks()[:3] == ("pytorch", "pytorch-captured", "pytorch-compiled")
    assert "null" not in usual_frameworks()


def test_a_configuration_is_what_it_sets():
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
    narrow = dataclasses.replace(first, precision="fp16", loss_scale=1024.0)
    assert narrow.words(first) == "fp16"
    dynamic = dataclasses.replace(narrow, loss_scale=None)
    assert narrow.words(dynamic) == "loss_scale 1024.0"
    assert dataclasses.replace(dynamic, framework="tensorflow").words(narrow) == "tensorflow"
    assert narrow.changes(first) == ("precision=fp16", "loss_scale=1024.0")
