"""Operations and bytes of a run against a datasheet and against what was measured, by hand."""

import dataclasses
from functools import partial

import pytest

from cubemesh.forecast.utilization import with_utilization
from cubemesh.networks import build
from cubemesh.networks.cost import totals
from cubemesh.schema import (
    Ceiling,
    Figure,
    Forward,
    Input,
    Outcome,
    Placement,
    ProgramSettings,
    Rank,
    RunKey,
    RunRecord,
    RunSpec,
    Status,
    TrainSteps,
)

H200 = "NVIDIA H200"


def record(work, figures, *, device=H200, threads=8, machine="m", **program):
    ok = Outcome(status=Status.OK)
    place = "cpu" if "Xeon" in device else "cuda:0"
    return RunRecord(
        run_id=f"{work.kind}-{len(figures)}",
        spec=RunSpec(
            work=work,
            placement=Placement(),
            program=ProgramSettings(**({"precision": "bf16"} | program)),
        ),
        key=RunKey(spec_id="s", machine_id=machine, software_id="s", code_version="c"),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=1.0,
        outcome=ok,
        ranks=(
            Rank(rank=0, host="h", device=place, device_name=device, outcome=ok, threads=threads),
        ),
        figures=figures,
    )


def steps(rate=3000.0, kind=TrainSteps, network="resnet-50", **changed):
    figure = Figure(value=rate, unit="samples/s", low=0.9 * rate, high=1.1 * rate, n=12)
    return record(
        kind(network=network, batch_per_device=64), {"throughput_per_s": figure}, **changed
    )


def product(rate, **changed):
    return record(Ceiling(), {"rate_flops_per_s": Figure(value=rate, unit="FLOP/s")}, **changed)


def copied(rate, **changed):
    figures = {"rate_bytes_per_s": Figure(value=rate, unit="B/s")}
    return record(Ceiling(operation="copy"), figures, **changed)


def test_shares_of_the_datasheet_by_hand():
    found = with_utilization(steps(), []).figures
    cost = totals(build("resnet-50"), 64, "bf16").total
    assert found["model_flops_per_s"].value == pytest.approx(3000 * cost.matrix_flops / 64)
    assert found["mfu_percent"].value == pytest.approx(
        100 * 3000 * cost.matrix_flops / 64 / 989.4e12
    )
    assert found["memory_use_percent"].value == pytest.approx(
        100 * 3000 * cost.moved_bytes / 64 / 4.8e12
    )
    assert found["mfu_percent"].low == pytest.approx(0.9 * found["mfu_percent"].value)
    assert "989 TFLOP/s" in found["mfu_percent"].method
    assert "Lockwood" in found["mfu_percent"].method
    assert not [name for name in found if name.startswith("ceiling_")]


def test_a_forward_pass_counts_its_own_operations_only():
    whole, ahead = (with_utilization(steps(kind=k), []).figures for k in (TrainSteps, Forward))
    cost = totals(build("resnet-50"), 1)
    share = cost.forward.matrix_flops / cost.total.matrix_flops
    ratio = ahead["mfu_percent"].value / whole["mfu_percent"].value
    assert ratio == pytest.approx(share)


def test_shares_of_what_was_measured_take_the_fastest_alike():
    measured = [
        product(500e12),
        product(600e12),
        product(700e12, precision="fp32"),
        product(800e12, machine="another"),
        product(900e12, device="NVIDIA H100 PCIe"),
        copied(4e12, precision="fp32"),
    ]
    found = with_utilization(steps(), measured).figures
    expected = 100 * found["model_flops_per_s"].value / 600e12
    assert found["ceiling_mfu_percent"].value == pytest.approx(expected)
    for value in ("600 TFLOP/s", "measured", "ceiling-1"):
        assert value in found["ceiling_mfu_percent"].method
    moved = found["model_bytes_per_s"].value
    assert found["ceiling_memory_use_percent"].value == pytest.approx(100 * moved / 4e12)


def test_on_a_processor_the_threads_must_agree():
    run = steps(device="Xeon of mine", threads=2, rate=10.0)
    assert (
        "ceiling_mfu_percent"
        not in with_utilization(run, [product(1e11, device="Xeon of mine", threads=4)]).figures
    )
    assert (
        "ceiling_mfu_percent"
        in with_utilization(run, [product(1e11, device="Xeon of mine", threads=2)]).figures
    )


def test_an_unknown_device_has_no_share_of_a_datasheet():
    found = with_utilization(steps(device="Abacus 9000"), []).figures
    assert "model_flops_per_s" in found
    assert not {"mfu_percent", "memory_use_percent"} & set(found)


def test_more_than_a_peak_is_a_warning_with_its_cause():
    winograd = steps(rate=1000.0, network="vgg16", precision="fp32")
    (warning,) = with_utilization(winograd, []).warnings
    assert warning.code == "above-peak"
    assert "Winograd" in warning.cause
    impossible = steps(rate=1e6, network="vit-b16")
    (warning,) = with_utilization(impossible, []).warnings
    assert "no fast algorithm" in warning.cause
    (ceiling,) = [
        w for w in with_utilization(steps(), [product(1e12)]).warnings if w.code == "above-ceiling"
    ]
    assert "measured, run" in ceiling.cause


@pytest.mark.parametrize(
    "run",
    [
        product(1e12),
        dataclasses.replace(steps(), figures={}),
        dataclasses.replace(steps(), ranks=()),
        steps(framework="null", script="step=0.1"),
        steps(kind=partial(Input, stage="read")),
    ],
    ids=["a ceiling", "nothing measured", "never began", "a script", "a stage of the input"],
)
def test_where_nothing_was_computed_nothing_is_added(run):
    assert with_utilization(run, []) == run


def test_several_devices_are_compared_with_the_peak_of_as_many():
    single = with_utilization(steps(rate=3000.0), [])
    (rank,) = single.ranks
    two = dataclasses.replace(
        steps(rate=6000.0), ranks=(rank, dataclasses.replace(rank, rank=1, device="cuda:1"))
    )
    found = with_utilization(two, [product(500e12)])
    assert found.figure("mfu_percent") == pytest.approx(single.figure("mfu_percent"))
    assert found.figure("model_flops_per_s") == 2 * single.figure("model_flops_per_s")
    method = found.figures["ceiling_mfu_percent"].method
    assert "1 PFLOP/s" in method
    assert "2 devices: " in method


def test_operations_computed_again_count_in_hfu_and_not_in_mfu():
    usual, again = steps(), steps(checkpoint_activations="segments")
    share = Figure(value=25.0, unit="%", method="of the segments a, b")
    again = dataclasses.replace(again, figures={**again.figures, "recomputed_percent": share})
    one, other = (with_utilization(r, [product(500e12)]).figures for r in (usual, again))
    for name in ("model_flops_per_s", "mfu_percent", "ceiling_mfu_percent"):
        assert other[name] == one[name]
    for prefix in ("", "ceiling_"):
        mfu, hfu = (other[f"{prefix}{name}_percent"] for name in ("mfu", "hfu"))
        assert hfu.value == pytest.approx(1.25 * mfu.value)
    assert "hfu_percent" not in one
