"""Frameworks and precisions at their best batch sizes, from simulated records."""

import dataclasses

import pytest

from answers import codes, finding, findings, in_order, table, texts, values
from cubemesh.errors import UsageError
from cubemesh.experiments.best_batch import EXPERIMENT, NETWORK, Settings, known
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Gpu, Status


@pytest.fixture
def context(machine):
    """A machine with eight GPUs."""
    gpus = tuple(Gpu(index=n, name="NVIDIA H200", uuid=f"GPU-{n}") for n in range(8))
    cpu = dataclasses.replace(machine.cpu, usable_cores=16)
    return Context(machine=dataclasses.replace(machine, gpus=gpus, cpu=cpu))


RATES = {
    ("pytorch", "fp32"): {32: 800, 64: 1000, 128: 1010},
    ("pytorch", "bf16"): {32: 900, 64: 1600, 128: 2400, 256: 2410},
    ("jax", "fp32"): {32: 700, 64: 900, 128: 880},
    ("jax", "bf16"): {32: 1000, 64: 1900},
}
"""Samples per second of one device by batch size; a larger one does not fit."""


@pytest.fixture
def timed(record_of):
    """A record by `RATES`; eight devices have an efficiency of 90 %."""

    def make(spec):
        rates = RATES[spec.program.framework, spec.program.precision]
        batch, devices = spec.batch_per_device, spec.placement.devices
        if batch not in rates:
            return record_of(spec, status=Status.OOM, message="out of memory")
        rate = rates[batch] * (1 if devices == 1 else 0.9 * devices)
        return record_of(spec, step_s=batch / rate)

    return make


SETTINGS = Settings(frameworks=("pytorch", "jax"))


def test_each_setup_is_measured_on_all_devices_at_its_best_batch_size(context, play, timed):
    planned, _ = play(EXPERIMENT.plan(SETTINGS, context), timed)
    assert {s.work.network for s in planned} == {NETWORK}
    several = {
        (s.program.framework, s.program.precision): s.batch_per_device
        for s in planned
        if s.placement.devices == 8
    }
    assert several == {
        ("pytorch", "fp32"): 128,
        ("pytorch", "bf16"): 256,
        ("jax", "fp32"): 64,
        ("jax", "bf16"): 64,
    }
    assert {s.program.sync for s in planned if s.placement.devices == 8} == {"all-reduce"}


def test_the_search_ends_where_throughput_stops_growing_or_memory_is_full(context, play, timed):
    planned, _ = play(EXPERIMENT.plan(SETTINGS, context), timed)
    tried = {}
    for spec in (s for s in planned if s.placement.devices == 1):
        key = spec.program.framework, spec.program.precision
        tried.setdefault(key, []).append(spec.batch_per_device)
    assert tried == {
        ("pytorch", "fp32"): [32, 64, 128],
        ("pytorch", "bf16"): [32, 64, 128, 256],
        ("jax", "fp32"): [32, 64, 128],
        ("jax", "bf16"): [32, 64, 128],
    }
    named = dataclasses.replace(SETTINGS, batch_sizes=(32, 64), precisions=("bf16",), devices=(1,))
    planned, _ = play(EXPERIMENT.plan(named, context), timed)
    assert [s.batch_per_device for s in planned] == [32, 64, 32, 64]


def test_the_answer_compares_frameworks_and_precisions_on_all_devices(context, play, timed):
    _, sent = play(EXPERIMENT.plan(SETTINGS, context), timed)
    answer = EXPERIMENT.answer(SETTINGS, sent)
    best = table(answer, "batch size per device", "vs fp32")
    rows = list(zip(texts(best, "framework"), texts(best, "precision"), strict=True))
    assert rows == [(f, p) for f in ("pytorch", "jax") for p in ("fp32", "bf16") for _ in (1, 8)]
    assert values(best, "devices") == [1, 8] * 4
    assert values(best, "batch size per device") == [128, 128, 256, 256, 64, 64, 64, 64]
    assert values(best, "vs fp32")[3] == pytest.approx(2410 / 1010, rel=0.01)
    search = table(answer, "network, framework, precision")
    assert [c.name for c in search.columns[1:]] == ["32", "64", "128", "256"]
    fastest = finding(answer, "fastest-at-best-batch")
    assert in_order(fastest.text, "resnet-50", "8 devices", "pytorch", "bf16", "256", "jax", "64")
    (gain,) = [f for f in findings(answer, "throughput-ratio") if f.text.startswith("bf16")]
    assert in_order(gain.text, "pytorch", "2.39", "jax", "2.11")
    (chart,) = answer.charts
    assert [line.name for line in chart.lines] == ["fp32", "bf16"]


def test_a_framework_that_does_not_run_has_its_reason(context, play, timed, record_of):
    def run(spec):
        if spec.program.framework == "jax":
            return record_of(spec, status=Status.NOT_INSTALLED, message="not installed: pip")
        return timed(spec)

    planned, sent = play(EXPERIMENT.plan(SETTINGS, context), run)
    assert len([s for s in planned if s.program.framework == "jax"]) == 2, "one for each precision"
    answer = EXPERIMENT.answer(SETTINGS, sent)
    failed = finding(answer, "failed-run")
    assert in_order(failed.text, "jax", "fp32", "jax", "bf16", "not installed")
    assert "fastest-at-best-batch" in codes(answer)
    assert EXPERIMENT.answer(SETTINGS, []).tables == ()


def test_the_defaults_are_smaller_on_a_cpu(machine, play, record_of):
    settings = Settings(frameworks=("null",), precisions=("fp32",), devices=(1,))
    planned, sent = play(EXPERIMENT.plan(settings, Context(machine=machine)), record_of)
    assert {s.work.network for s in planned} == {"little-cnn"}
    assert planned[0].batch_per_device == 4
    assert [w.code for w in EXPERIMENT.answer(settings, sent).warnings] == ["reduced"]
    full = Context(machine=machine, scale=Scale.FULL)
    planned, _ = play(EXPERIMENT.plan(settings, full), record_of)
    assert planned[0].work.network == NETWORK
    assert {s.program.framework for s in planned} == {"null"}
    assert "null" not in known()


def test_invalid_settings():
    with pytest.raises(UsageError, match="precisions"):
        Settings(precisions=())
    with pytest.raises(UsageError, match="synchronize"):
        Settings(strategy="none")
