from __future__ import annotations

import dataclasses
import math

import pytest

from cubemesh.schema import Ceiling, Placement, ProgramSettings, RunSpec, TrainSteps
from cubemesh.views import formatting


@pytest.mark.parametrize(
    ("value", "unit", "low", "high", "text"),
    [
        (19.87, "images/s", 19.7, 20.1, "19.87 ± 0.23 images/s"),
        (2169.5, "images/s", None, None, "2,170 images/s"),
        (128, "", None, None, "128"),
        (123456, "", None, None, "123,456"),
        (0.0312, "", None, None, "0.0312"),
        (1.5 * 2**30, "bytes", None, None, "1.5 GiB"),
        (0.11, "s", None, None, "110 ms"),
        (0.0123, "s", 0.0119, 0.0127, "12.3 ± 0.4 ms"),
        (7.8e14, "FLOP/s", None, None, "780 TFLOP/s"),
        (math.nan, "", None, None, "not a number"),
    ],
)
def test_quantities(value, unit, low, high, text):
    assert formatting.quantity(value, unit, low, high) == text


@pytest.mark.parametrize(
    ("given_", "parts"),
    [
        ((2169.5, "images/s", 2155.4, 2182.7), ("2,170", "images/s", "± 14")),
        ((1.86, "×", 1.84, 1.88), ("1.86×", "", "± 0.02")),
        ((210, "images/s", 84, 525), ("210", "images/s", "84 to 525")),
        ((459, "images/s", 1e-5, 2e10), ("459", "images/s", "uncertain by 100× or more")),
        ((0.0021, "s", 0.0001, 0.01), ("2.1", "ms", "0.1 to 10")),
        ((0.0123, "s", 0.0119, 0.0127), ("12.3", "ms", "± 0.4")),
        ((31.0, "% launch gaps", None, None), ("31", "% launch gaps", "")),
        ((2**30, "bytes", None, None), ("1", "GiB", "")),
        ((12910.0, "s", 12790.0, 13080.0), ("3 h 35 min", "", "± 3 min")),
        ((4484160.0, "s", 4432320.0, 4544640.0), ("51.9 days", "", "± 0.7")),
        ((300.0, "s", 290.0, 312.0), ("5 min", "", "± 12 s")),
    ],
)
def test_a_figure_is_split_into_number_unit_and_interval(given_, parts):
    assert formatting.split_figure(*given_) == parts


def test_runs_are_named_by_their_settings():
    train = TrainSteps(network="resnet-50", batch_per_device=4096)
    assert formatting.run_name(RunSpec(work=train)) == "resnet-50 · batch size 4,096"
    parts = RunSpec(work=dataclasses.replace(train, accumulation_steps=4))
    assert formatting.run_name(parts) == "resnet-50 · batch size 4,096 in 4 micro-batches"
    two = RunSpec(work=train, placement=Placement(devices=2))
    assert formatting.run_name(two).endswith("2 devices · no sync · global batch size 8,192")
    four = RunSpec(
        work=train,
        placement=Placement(devices=4),
        program=ProgramSettings(sync="parameter-server"),
    )
    hosts = Placement(devices=4, hosts=("node1", "node2"), link="eth1")
    assert "· 4 devices on 2 hosts · link eth1 ·" in formatting.run_name(
        RunSpec(work=train, placement=hosts)
    )
    assert formatting.run_name(four).endswith(
        "4 devices · parameter-server · global batch size 16,384"
    )
    ceilings = RunSpec(work=Ceiling(), placement=Placement(devices=2))
    assert formatting.run_name(ceilings).endswith("2 devices")
    assert formatting.run_name(RunSpec(work=Ceiling())) == "matrix product ceiling"


def test_settings_leave_defaults_out(made):
    settings = dict(formatting.own_settings(made.record(64).spec))
    assert settings["seconds"] == "1.0"
    assert settings["batch_per_device"] == "64"
    assert "learning_rate" not in settings


def test_endings_say_each_thing_once(made):
    assert formatting.outcome_text(made.record(64)) == "done"
    assert formatting.outcome_text(made.record(64, outcome=made.OOM)) == made.OOM.message
    of_rank = dataclasses.replace(made.OOM, message=f"rank 1 of 2: {made.OOM.message}")
    assert formatting.outcome_text(made.record(64, outcome=of_rank)) == of_rank.message


def test_results_are_what_the_run_came_to(made):
    assert formatting.result_text(made.record(128)) == "2,169 ± 14 images/s"
    assert formatting.result_text(made.training_record()) == "accuracy 0.968"
    assert formatting.result_text(made.record(64, outcome=made.OOM)) == ""


def test_a_figure_of_a_run_has_no_other_next_to_it(made):
    record = made.record(128)
    both = {**record.figures, "accuracy": made.training_record().figures["accuracy"]}
    record = dataclasses.replace(record, figures=both)
    assert formatting.figure_text(record, "throughput_per_s") == "2,169 ± 14 images/s"
    assert formatting.figure_unit(record, "throughput_per_s") == "images/s"
    assert formatting.figure_unit(record, "accuracy") == ""
    assert formatting.figure_text(record, "loss") == ""


def test_the_unit_of_a_result_is_that_of_the_network(made):
    record = made.record(128)

    def shown(network):
        work = dataclasses.replace(record.spec.work, network=network)
        spec = dataclasses.replace(record.spec, work=work)
        return formatting.result_text(dataclasses.replace(record, spec=spec))

    assert shown("gpt2") == "2,169 ± 14 sequences/s"
    assert shown("of-another-version") == "2,169 ± 14 samples/s"


def test_machine_in_a_line(made):
    assert formatting.machine_line(made.machine(gpus=2)) == (
        "node-17 · 2 × NVIDIA H200 · 2 cores of AMD EPYC 9965 · 24 GiB · PyTorch 2.13.0"
    )


def test_moments_read_in_utc():
    assert formatting.moment("2026-11-20T16:05:09+02:00") == "20 Nov 2026, 14:05 UTC"
    assert formatting.moment("some day") == "some day"


def test_names_of_the_code_read_as_words():
    assert formatting.words("telemetry_cpu_share") == "telemetry CPU share"
    assert formatting.words("cpuset") == "cpuset"
