"""Constant and scaled learning rate by number of devices, from simulated records."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.experiments.lr_scaling.experiment import EXPERIMENT, Settings
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Curve, Figure, Gpu, Status, warn


def gpus(machine, count):
    gpu = Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=141 << 30)
    several = tuple(dataclasses.replace(gpu, index=n, uuid=f"GPU-{n}") for n in range(count))
    return dataclasses.replace(machine, gpus=several)


def asked_of(play, record_of, machine, scale=Scale.DEFAULT, **settings):
    context = Context(machine=machine, scale=scale)
    planned, _ = play(EXPERIMENT.plan(Settings(**settings), context), record_of)
    return planned


def test_eight_gpus_run_the_papers_settings(machine, play, record_of):
    planned = asked_of(play, record_of, gpus(machine, 8))
    found = [(s.placement.devices, s.work.rate_scaling) for s in planned]
    constant = [(n, "none") for n in (1, 2, 4, 8)]
    assert found == constant + [(n, "linear") for n in (2, 4, 8)]
    works = {(s.work.batch_per_device, s.work.epochs, s.work.learning_rate) for s in planned}
    assert works == {(128, 30, 1e-4)}
    assert {s.work.optimizer for s in planned} == {"rmsprop"}
    assert {s.program.sync for s in planned if s.placement.devices > 1} == {"all-reduce"}


def test_a_cpu_shares_its_cores_between_four(machine, play, record_of):
    planned = asked_of(play, record_of, machine, Scale.QUICK, batch_sizes=(16,))
    assert {s.placement.devices for s in planned} == {1, 2, 4}
    assert all(s.placement.oversubscribe for s in planned if s.placement.devices > 1)
    assert {(s.work.batch_per_device, s.work.epochs) for s in planned} == {(16, 4)}
    assert {s.placement.threads for s in planned} == {1}, (
        "one device has the cores of each of several"
    )
    assert {s.placement.pinning for s in planned if s.placement.devices == 1} == {"cores"}


@pytest.fixture
def trained(machine, play, record_of):
    """Records by (devices, scaling), each with the loss it ends at."""

    def make(losses, warnings=()):
        planned = asked_of(play, record_of, machine, epochs=2)
        records = []
        for spec in planned:
            loss = losses[spec.placement.devices, spec.work.rate_scaling]
            if loss is None:
                records.append(record_of(spec, status=Status.DIVERGED, message="the loss was nan"))
                continue
            record = record_of(spec, accuracy=0.5)
            figures = {**record.figures, "validation_loss": Figure(value=loss, unit="")}
            curve = Curve(name="validation_loss", x_name="epoch", x=(1.0, 2.0), y=(2 * loss, loss))
            windows = tuple(
                dataclasses.replace(w, marks=(f"epoch-{1 + n // 6}",))
                for n, w in enumerate(record.windows)
            )
            records.append(
                dataclasses.replace(
                    record,
                    run_id=f"{spec.placement.devices}-{spec.work.rate_scaling}",
                    figures=figures,
                    curves=(curve,),
                    windows=windows,
                    warnings=warnings,
                )
            )
        return EXPERIMENT.answer(Settings(), records)

    return make


GROWING = {(1, "none"): 0.5, (2, "none"): 1.0, (4, "none"): 2.0}


def test_findings_and_table_of_both_policies(trained):
    answer = trained({**GROWING, (2, "linear"): 0.52, (4, "linear"): 0.6})
    constant, scaled = answer.findings
    assert (constant.code, constant.value) == ("constant-rate-loss", pytest.approx(4))
    assert in_order(constant.text, "0.5", "1", "1", "2", "2", "4")
    assert constant.remedy
    assert (scaled.code, scaled.value) == ("equal-losses", pytest.approx(1.2))
    (table,) = answer.tables
    rates = [(row[0].text, row[1].value, row[3].text) for row in table.rows]
    assert rates[0] == ("constant", 1, "0.0001")
    assert rates[-1] == ("scaled", 4, "0.0004")
    assert {w.code for w in answer.warnings} == {"reduced"}


def test_charts_by_epoch_and_by_time(trained):
    answer = trained({**GROWING, (2, "linear"): 0.52, (4, "linear"): 0.6})
    by_epoch, by_time, *_ = answer.charts
    assert [line.name for line in by_epoch.lines] == ["1 device", "2 devices", "4 devices"]
    assert [(p.x, p.y) for p in by_epoch.lines[1].points] == [(1.0, 2.0), (2.0, 1.0)]
    # Twelve windows of ten steps of 10 ms, six an epoch.
    assert [p.x for p in by_time.lines[0].points] == [pytest.approx(0.6), pytest.approx(1.2)]
    shared = (warn("oversubscribed", "4 devices shared 2 cores.", ""),)
    answer = trained({**GROWING, (2, "linear"): 0.52, (4, "linear"): 0.6}, shared)
    assert not any(chart.x.name == "time" for chart in answer.charts)
    assert "oversubscribed" in {w.code for w in answer.warnings}


def test_losses_are_relative_to_the_fewest_devices(trained):
    answer = trained({**GROWING, (2, "linear"): 0.52, (4, "linear"): 0.6})
    assert all(in_order(f.unit, "×", "1 device") for f in answer.findings)
    answer = trained({**GROWING, (1, "none"): None, (2, "linear"): 0.52, (4, "linear"): 0.6})
    constant, scaled, *_ = answer.findings
    assert constant.value == pytest.approx(2.0)
    assert in_order(constant.unit, "×", "2 devices")
    assert in_order(scaled.unit, "×", "2 devices")


def test_unequal_losses_and_failed_runs(trained):
    answer = trained({**GROWING, (2, "linear"): 0.9, (4, "linear"): None})
    _, scaled, failed = answer.findings
    assert (scaled.code, scaled.value) == ("unequal-losses", pytest.approx(1.8))
    assert "epochs=30" in scaled.remedy
    assert in_order(scaled.remedy, "120", "1", "120", "2")
    assert failed.code == "failed-run"
    assert "4 devices" in failed.text
    assert "the loss was nan" in failed.text
    flat = {(1, "none"): 1.0, (2, "none"): 0.9, (4, "none"): 1.0}
    answer = trained({**flat, (2, "linear"): 1.0, (4, "linear"): 1.0})
    assert answer.findings[0].code == "constant-rate-loss"
    assert answer.findings[0].value == pytest.approx(0.9)
