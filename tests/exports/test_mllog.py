"""MLPerf log lines, read by mlperf_logging: its parser and its compliance checker."""

import dataclasses
import json
import logging

import pytest

import cubemesh
from cubemesh.schema import Figure
from cubemesh.store import Store
from stored_benchmarks import RECORDS

pytestmark = pytest.mark.usefixtures("forked_servers")

mlp_compliance = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
mlp_parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser")
mllog = pytest.importorskip("mlperf_logging.mllog.mllog")

RULES = "4.0.0"
"""The newest rules with a ResNet-50."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A simulated training of ResNet-50 for three epochs."""
    folder = tmp_path_factory.mktemp("mllog")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        found = cubemesh.train(
            "resnet-50",
            epochs=3,
            framework="null",
            script="accuracy=0.1:0.9",
            batch_per_device=64,
            store=str(folder / "s.sqlite"),
        )
    (record,) = found.records
    assert record.ok, record.outcome
    return record


def complaints(content, tmp_path, ruleset=RULES):
    """What the compliance checker finds in a log; empty if it is compliant."""
    file = tmp_path / "run.log"
    file.write_bytes(content)
    checker = mlp_compliance.make_checker("training", ruleset, quiet=False, werror=True)
    valid, *_ = mlp_compliance.main(str(file), f"training_{ruleset}/common.yaml", checker)
    found = [*checker.overwritable.values(), *checker.not_overwritable]
    assert valid is (not found)
    return found


def lines_of(content, tmp_path):
    file = tmp_path / "run.log"
    file.write_bytes(content)
    lines, errors = mlp_parser.parse_file(str(file), ruleset=RULES)
    assert errors == []
    assert len(lines) == content.count(b":::MLLOG ")
    return lines


def test_a_training_is_compliant(trained, exported, tmp_path, caplog):
    with caplog.at_level(logging.ERROR):
        assert complaints(exported("mllog", [trained]), tmp_path) == []


def test_the_checker_finds_what_is_not_compliant(trained, exported, tmp_path):
    content = exported("mllog", [trained])
    without = b"".join(line for line in content.splitlines(True) if b'"run_stop"' not in line)
    assert any("run_stop" in text for text in complaints(without, tmp_path))
    twice = exported("mllog", [trained, dataclasses.replace(trained, elapsed_s=1e3)])
    assert any("run_start" in text for text in complaints(twice, tmp_path)), "a log is of one run"


def test_events_have_the_values_and_times_of_the_record(trained, exported, tmp_path):
    lines = lines_of(exported("mllog", [trained]), tmp_path)
    assert [line.timestamp for line in lines] == sorted(line.timestamp for line in lines)
    curve = trained.curve("validation_accuracy")
    accuracies = [
        (line.value["metadata"]["epoch_num"], line.value["value"])
        for line in lines
        if line.key == "eval_accuracy"
    ]
    assert accuracies == list(zip(map(int, curve.x), curve.y, strict=True))
    value = {line.key: line.value["value"] for line in lines}
    assert value["global_batch_size"] == 64
    assert value["opt_name"] == trained.spec.work.optimizer
    assert value["eval_samples"] == trained.figures["accuracy"].n
    steps = [w for w in trained.windows if "epoch-2" in w.marks and w.phase == "measure"]
    assert value["train_samples"] == sum(w.samples for w in steps)
    (stop,) = (line for line in lines if line.key == "run_stop")
    assert stop.value["metadata"]["status"] == "success"
    (throughput,) = (line for line in lines if line.key == "cubemesh_throughput_per_s")
    figure = trained.figures["throughput_per_s"]
    assert throughput.value["value"] == figure.value
    metadata = throughput.value["metadata"]
    assert (metadata["low"], metadata["high"], metadata["unit"]) == (
        figure.low,
        figure.high,
        "samples/s",
    )
    start, end = (
        next(line.timestamp for line in lines if line.key == key)
        for key in ("run_start", "run_stop")
    )
    windows = [w for w in trained.windows if w.rank == 0]
    elapsed_s = windows[-1].start_s + windows[-1].elapsed_s - windows[0].start_s
    assert end - start == pytest.approx(1000 * elapsed_s, abs=1.0)


def test_lines_are_spelled_as_mlperf_logging_spells_them(trained, exported):
    for line in exported("mllog", [trained]).decode("ascii").splitlines():
        event = json.loads(line.removeprefix(":::MLLOG "))
        assert mllog._encode_log(**event) == line


def test_a_missed_target_is_aborted(trained, exported, tmp_path):
    work = dataclasses.replace(trained.spec.work, target_accuracy=0.99)
    missed = dataclasses.replace(trained, spec=dataclasses.replace(trained.spec, work=work))
    reached = dataclasses.replace(
        missed, figures={**missed.figures, "target_epoch": Figure(value=3, unit="")}
    )
    for record, status in ((missed, "aborted"), (reached, "success")):
        lines = lines_of(exported("mllog", [record]), tmp_path)
        (stop,) = (line for line in lines if line.key == "run_stop")
        assert stop.value["metadata"]["status"] == status


def test_steps_and_failed_runs_have_figures_and_outcome(runs, exported, tmp_path):
    lines = lines_of(exported("mllog", runs), tmp_path)
    figures = [line.value["value"] for line in lines if line.key == "cubemesh_throughput_per_s"]
    assert figures == [r.figures["throughput_per_s"].value for r in runs[:2]]
    outcomes = [line.value["value"] for line in lines if line.key == "cubemesh_outcome"]
    assert outcomes == ["ok", "ok", "oom"]
    (loss,) = (line.value["value"] for line in lines if line.key == "cubemesh_validation_loss")
    assert loss is None, "NaN is not JSON"
    stops = [line.value["metadata"]["status"] for line in lines if line.key == "run_stop"]
    assert stops == ["success", "success", "aborted"]


def test_ranks_of_a_real_training_are_added_up(exported, tmp_path):
    path = RECORDS / "2026-11-22-two-h200-rates.sqlite"
    with Store.open(str(path), read_only=True) as store:
        record = store.record("52a61177364b")
        machine = store.machine(record.key.machine_id)
    machines = {record.key.machine_id: machine}
    lines = lines_of(exported("mllog", [record], machines=machines), tmp_path)
    value = {line.key: line.value["value"] for line in lines}
    assert value["submission_platform"] == "2 x NVIDIA H200"
    assert value["train_samples"] == 2 * 5 * 128
    assert sum(line.key == "epoch_start" for line in lines) == 30
