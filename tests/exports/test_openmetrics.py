"""OpenMetrics text, read by Prometheus' own parsers: the new format's and the old one's."""

import dataclasses
import math
import shutil
import subprocess

import pytest

from cubemesh.exports.openmetrics import metric_name, unit_name
from cubemesh.schema import Figure, Status

openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
prometheus = pytest.importorskip("prometheus_client.parser")


def samples(text, parser=openmetrics):
    """(metric, labels) → value, of every sample."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_run(found, workload_id):
    """Metric → value, of one workload."""
    return {
        name: value
        for (name, labels), value in found.items()
        if ("workload_id", workload_id) in labels
    }


def test_both_parsers_read_the_same_values(runs, exported):
    text = exported("openmetrics", runs).decode("utf-8")
    assert text.endswith("\n# EOF\n")
    found = samples(text)
    old = samples(text, prometheus)
    assert found.keys() == old.keys()
    for key, value in found.items():
        assert old[key] == value or (math.isnan(value) and math.isnan(old[key]))
    for record in runs:
        own = of_run(found, record.spec.workload_id)
        assert own["cubemesh_run_ok"] == float(record.ok)
        assert own["cubemesh_run_duration_seconds"] == record.elapsed_s
    first, own = runs[0].figures, of_run(found, runs[0].spec.workload_id)
    assert own["cubemesh_throughput_samples_per_second"] == first["throughput_per_s"].value
    assert own["cubemesh_throughput_ci95_low_samples_per_second"] == first["throughput_per_s"].low
    assert own["cubemesh_throughput_ci95_high_samples_per_second"] == first["throughput_per_s"].high
    assert own["cubemesh_peak_memory_bytes"] == first["peak_memory_bytes"].value
    second = of_run(found, runs[1].spec.workload_id)
    assert math.isnan(second["cubemesh_validation_loss"])
    assert second["cubemesh_below_zero_ci95_high"] == 5e-324


def test_a_unit_ends_the_name_of_its_metric(runs, exported):
    text = exported("openmetrics", runs).decode("utf-8")
    families = list(openmetrics.text_string_to_metric_families(text))
    assert {f.type for f in families} == {"gauge"}, "the older format knows no info"
    assert all(f.name.startswith("cubemesh_") and f.documentation for f in families)
    assert {f.unit for f in families if f.unit} >= {"seconds", "bytes", "samples_per_second"}
    assert all(f.name.endswith(f"_{f.unit}") for f in families if f.unit)


def test_the_newest_run_of_a_workload_is_written(runs, exported):
    older = dataclasses.replace(runs[0], run_id="older", started_utc="2025-01-01T00:00:00+00:00")
    failed = dataclasses.replace(
        runs[0],
        run_id="newer",
        started_utc="2026-02-01T00:00:00+00:00",
        outcome=dataclasses.replace(runs[0].outcome, status=Status.CRASHED),
        figures={},
    )
    text = exported("openmetrics", (failed, runs[0], older)).decode()
    found = samples(text)
    assert "cubemesh_throughput_samples_per_second" not in text
    (info,) = (dict(labels) for (name, labels) in found if name == "cubemesh_run_info")
    assert (info["run_id"], info["outcome"], info["hostname"]) == ("newer", "crashed", "bench")
    repeat = dataclasses.replace(runs[0], key=dataclasses.replace(runs[0].key, repeat=1))
    both = samples(exported("openmetrics", (runs[0], repeat)).decode())
    assert len([k for k in both if k[0] == "cubemesh_run_ok"]) == 2


def test_text_from_outside_is_escaped(runs, exported, machine):
    hostname = 'a"b\\c\nd}e #'
    named = dataclasses.replace(machine, hostname=hostname)
    text = exported("openmetrics", runs[:1], machines={"machine": named}).decode()
    for parser in (openmetrics, prometheus):
        found = samples(text, parser)
        (info,) = (dict(labels) for (name, labels) in found if name == "cubemesh_run_info")
        assert info["hostname"] == hostname


def test_no_runs_and_not_finite_values(runs, exported):
    assert exported("openmetrics", ()) == b"# EOF\n"
    extremes = {
        "a": Figure(value=math.inf, unit=""),
        "b": Figure(value=-math.inf, unit=""),
        "c_days": Figure(value=2.0, unit="days"),
    }
    record = dataclasses.replace(runs[0], figures=extremes)
    own = of_run(samples(exported("openmetrics", [record]).decode()), record.spec.workload_id)
    assert (own["cubemesh_a"], own["cubemesh_b"]) == (math.inf, -math.inf)
    assert own["cubemesh_c_seconds"] == 2 * 86400


@pytest.mark.parametrize(
    ("figure", "unit", "metric"),
    [
        ("throughput_per_s", "samples/s", "cubemesh_throughput_samples_per_second"),
        ("tokens_per_s", "tokens/s", "cubemesh_tokens_per_second"),
        ("rate_flops_per_s", "FLOP/s", "cubemesh_rate_flops_per_second"),
        ("bus_bytes_per_s", "B/s", "cubemesh_bus_bytes_per_second"),
        ("step_s", "s", "cubemesh_step_seconds"),
        ("mfu_percent", "%", "cubemesh_mfu_percent"),
        ("mean_power_watts", "W", "cubemesh_mean_power_watts"),
        ("energy_joules_per_sample", "J/sample", "cubemesh_energy_joules_per_sample"),
        ("samples_per_joule", "samples/J", "cubemesh_samples_per_joule"),
        ("telemetry_cpu_share", "cores", "cubemesh_telemetry_cpu_share_cores"),
        ("accuracy", "", "cubemesh_accuracy"),
    ],
)
def test_names_of_metrics(figure, unit, metric):
    assert metric_name(figure, unit) == metric
    assert metric.endswith(unit_name(unit))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing(runs, exported):
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=exported("openmetrics", runs),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
