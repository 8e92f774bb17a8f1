"""Figures per token, by hand."""

import dataclasses

import pytest

from cubemesh.forecast.token_figures import parameters_of_a_token, with_token_figures
from cubemesh.networks import build
from cubemesh.schema import Figure, Placement, ProgramSettings, Rank, RunSpec, TrainSteps
from record_fixtures import record_of


def record(network="gpt2", devices=2, device="NVIDIA H200", **figures):
    sizes = {"sequence_length": 1024} if network == "gpt2" else {}
    spec = RunSpec(
        work=TrainSteps(network=network, batch_per_device=8, **sizes),
        placement=Placement(devices=devices),
        program=ProgramSettings(precision="bf16"),
    )
    made = record_of(spec)
    return dataclasses.replace(
        made,
        ranks=tuple(
            Rank(rank=n, host="h", device=f"cuda:{n}", device_name=device, outcome=made.outcome)
            for n in range(devices)
        ),
        figures={name: Figure(value=value, unit="") for name, value in figures.items()},
    )


MEASURED = {
    "throughput_per_s": 200.0,
    "tokens_per_sample": 1000.0,
    "tokens_per_s": 99.0,  # of one rank
    "energy_joules_per_sample": 5.0,
}


def test_figures_of_a_training_on_two_devices():
    found = with_token_figures(record(**MEASURED)).figures
    assert found["tokens_per_s"].value == 200_000
    assert found["tokens_per_s_per_device"].value == 100_000
    assert found["energy_joules_per_token"].value == pytest.approx(0.005)
    assert found["mfu_6n_percent"].value == pytest.approx(
        100 * 6 * 123_653_376 * 200_000 / (2 * 989.4e12)
    )
    assert "6 × 123,653,376 parameters a token" in found["mfu_6n_percent"].method


@pytest.mark.parametrize(
    ("network", "count"),
    [
        ("gpt2", 124_439_808 - 1024 * 768),  # its matrix of words makes the scores too
        ("llama3-8b", 8_030_261_248 - 128256 * 4096),
        ("mixtral-8x7b", 12_879_925_248 - 32000 * 4096),
    ],
)
def test_parameters_that_a_token_is_computed_with(network, count):
    assert parameters_of_a_token(build(network)) == count


def test_what_is_unknown_has_no_figure():
    images = record("resnet-50", throughput_per_s=10.0)
    assert with_token_figures(images) == images
    unknown = with_token_figures(record(device="Abacus", **MEASURED)).figures
    assert "mfu_6n_percent" not in unknown
    assert unknown["tokens_per_s"].value == 200_000
    without = dict(MEASURED)
    del without["energy_joules_per_sample"]
    assert "energy_joules_per_token" not in with_token_figures(record(**without)).figures
    run = record(**MEASURED)
    simulated = dataclasses.replace(run.spec.program, framework="null", script="steps=1")
    played = dataclasses.replace(run, spec=dataclasses.replace(run.spec, program=simulated))
    assert "mfu_6n_percent" not in with_token_figures(played).figures
