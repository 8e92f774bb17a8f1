"""Restarts and answer of `train`, from simulated records."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.train.experiment import EXPERIMENT, Settings, answer, plan
from cubemesh.experiments.train.goodput import Goodput, goodput_of
from cubemesh.frameworks.contract.program import Snapshot
from cubemesh.schema import Budget, Curve, Figure, Outcome, RunKey, RunRecord, Status, Window
from cubemesh.training.checkpoint import Checkpoint, save


def record(spec, status=Status.OK, message="", figures=None, facts=None, **fields):
    return RunRecord(
        run_id="r" + message[:3],
        spec=spec,
        key=RunKey(spec_id=spec.spec_id, machine_id="m", software_id="s", code_version="c"),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=9.0,
        outcome=Outcome(status=status, message=message, facts=facts or {}),
        figures={n: Figure(value=v, unit="", n=359) for n, v in (figures or {}).items()},
        **fields,
    )


def checkpoint(folder, step):
    snapshot = Snapshot(weights={"w": np.zeros(1, np.float32)})
    Path(folder).mkdir(exist_ok=True)
    save(Path(folder), 0, 1, Checkpoint(step=step, snapshot=snapshot))


@pytest.fixture
def context():
    return SimpleNamespace(budget=Budget())


def asked_after(context, folder, endings, restarts=2):
    """The specs of a plan whose runs end with (status, facts, newest checkpoint)."""
    going = plan(Settings(checkpoints=str(folder), restarts=restarts), context)
    specs = [*next(going)]
    for status, facts, step in endings:
        if step is not None:
            checkpoint(folder, step)
        try:
            specs += going.send([record(specs[-1], status, facts=facts)])
        except StopIteration:
            break
    return specs


def test_a_killed_run_restarts_as_often_as_asked(context, tmp_path):
    killed = (Status.KILLED, {}, 5)
    first, *others = asked_after(context, tmp_path, [killed] * 5)
    assert not first.checkpointing.resume
    assert [spec.checkpointing.resume for spec in others] == [True, True]
    assert first.workload_id == others[0].workload_id
    assert first.budget.time_limit_s > 86_400


@pytest.mark.parametrize(
    ("ending", "restarts"),
    [
        ((Status.KILLED, {}, None), False),  # no checkpoint to resume from
        ((Status.DIVERGED, {}, 5), False),
        ((Status.OOM, {}, 5), False),
        ((Status.OK, {}, 5), False),
        ((Status.TIMED_OUT, {}, 5), False),
        ((Status.TIMED_OUT, {"heartbeat_timeout_s": 31.0}, 5), True),
        ((Status.CRASHED, {}, 5), True),
    ],
)
def test_which_outcomes_restart(context, tmp_path, ending, restarts):
    assert len(asked_after(context, tmp_path, [ending])) == 1 + restarts


def test_a_repeated_crash_at_the_same_step_is_not_restarted(context, tmp_path):
    crashed = (Status.CRASHED, {}, 5)
    assert len(asked_after(context, tmp_path, [crashed] * 5, restarts=9)) == 2
    further = [(Status.CRASHED, {}, step) for step in (6, 7, 7)]
    assert len(asked_after(context, tmp_path / "b", further, restarts=9)) == 3


def test_resuming_is_part_of_the_spec(context, tmp_path):
    (spec,) = next(plan(Settings(checkpoints=str(tmp_path), resume=True), context))
    assert spec.checkpointing.resume
    with pytest.raises(UsageError):
        next(plan(Settings(checkpoints=str(tmp_path), reshard=True), context))
    (spec,) = next(plan(Settings(), context))
    assert spec.checkpointing.checkpoints is None


@pytest.mark.parametrize(
    ("given", "every_steps", "fault_every_s"),
    [
        ({"checkpoints": "ck"}, None, 3600.0),
        ({"checkpoints": "ck", "fault_every_s": "2m"}, None, 120.0),
        ({"checkpoint_every": "epoch"}, None, None),
        ({"checkpoint_every": "50"}, 50, None),
    ],
)
def test_the_interval_of_checkpoints(context, given, every_steps, fault_every_s):
    (spec,) = next(plan(request(EXPERIMENT, given).settings, context))
    found = spec.checkpointing
    assert found.checkpoints is not None
    assert (found.every_steps, found.fault_every_s) == (every_steps, fault_every_s)


@pytest.mark.parametrize(
    "given", [{"checkpoint_every": "0"}, {"checkpoint_every": "often"}, {"fault_every_s": "0s"}]
)
def test_invalid_intervals_are_refused(given):
    with pytest.raises(UsageError, match=next(iter(given))):
        request(EXPERIMENT, given)


def curve(name, *values, x=None):
    places = x or tuple(float(n + 1) for n in range(len(values)))
    return Curve(name=name, x_name="epoch", x=places, y=values)


def test_the_answer_has_accuracy_target_and_restarts(context, tmp_path):
    (spec,) = next(plan(Settings(checkpoints=str(tmp_path)), context))
    work = dataclasses.replace(spec.work, target_accuracy=0.9, epochs=3)
    spec = dataclasses.replace(spec, work=work)
    resumed = record(
        spec,
        figures={"accuracy": 0.92, "top5_accuracy": 0.99, "epochs_trained": 2.0}
        | {"target_epoch": 2.0, "resumed_at_step": 11.0},
        curves=(
            curve("training_loss", 2.0, 1.5, 1.0, 0.5, x=(5.0, 10.0, 15.0, 20.0)),
            curve("validation_loss", 1.2, 0.4),
            curve("validation_accuracy", 0.6, 0.92),
            curve("validation_top5_accuracy", 0.9, 0.99),
        ),
        windows=tuple(
            Window(rank=r, start_s=1.0, elapsed_s=2.0, steps=9, samples=576, marks=("epoch-2",))
            for r in range(2)
        ),
    )
    killed = record(spec, Status.KILLED, "rank 1 of 2: the worker was killed")
    found = answer(Settings(), [killed, resumed])
    assert [(f.code, f.value) for f in found.findings] == [
        ("accuracy", pytest.approx(92)),
        ("target-reached", 2),
        ("restart", 11),
        ("goodput", pytest.approx(100 * 2 / 9)),
    ]
    assert "top-5 99.0 %" in found.findings[0].text
    assert "the worker was killed" in found.findings[2].text
    (table,) = found.tables
    first, second = table.rows
    assert [cell.value for cell in second[1:]] == [0.5, 0.4, 92.0, 99.0, 576.0]
    assert first[1].value == 1.5
    assert first[5].value is None
    assert "earlier" in first[5].reason
    assert [chart.name for chart in found.charts] == [
        "train-little-cnn-accuracy",
        "train-little-cnn-loss",
    ]


def test_the_answer_of_a_training_that_failed(context):
    (spec,) = next(plan(Settings(), context))
    (finding,) = answer(Settings(), [record(spec, Status.DIVERGED, "The loss was nan")]).findings
    assert finding.code == "training-failed"
    assert "The loss was nan." in finding.text
    assert answer(Settings(), []).findings == ()
    assert EXPERIMENT.name == "train"


def test_goodput_counts_the_steps_that_remain(context, tmp_path):
    """Ten of twenty steps of the first attempt are in the checkpoint of the second; one evaluation
    was lost with the others. Each attempt starts for 1 s, and 4 s pass between them."""
    (spec,) = next(plan(Settings(checkpoints=str(tmp_path)), context))

    def window(start_s, steps, phase="measure", rank=0):
        return Window(
            rank=rank, phase=phase, start_s=start_s, elapsed_s=2.0, steps=steps, samples=64
        )

    first = (
        *(window(0.5, 1, "warm-up"), window(1.0, 9), window(1.0, 9, rank=1)),
        *(window(3.0, 10), window(5.0, 5, "evaluate")),
    )
    killed = record(spec, Status.KILLED, "killed", windows=first)
    resumed = record(
        spec,
        figures={"accuracy": 0.9, "epochs_trained": 1.0, "resumed_at_step": 10.0}
        | {"checkpoint_cost_s": 0.5, "checkpoint_write_s": 1.0, "checkpoint_interval_s": 60.0}
        | {"restart_s": 3.0},
        windows=(window(1.0, 10), window(3.0, 5, "evaluate")),
    )
    resumed = dataclasses.replace(resumed, started_utc="2026-01-01T00:00:13+00:00")
    found = goodput_of([killed, resumed])
    assert found == Goodput(elapsed_s=22.0, useful_s=6.0, repeated_s=4.0, start_s=6.0)
    (table,) = answer(Settings(), [killed, resumed]).tables
    assert [row[0].text for row in table.rows] == ["2 min", "5 min", "20 min", "1 h"]
    for row in table.rows:
        _, interval, rule, own = (cell.value for cell in row)
        assert own <= rule < 100
        assert (interval > 50.0) == (row[0].text == "1 h")


def test_the_cost_of_a_training_is_over_all_its_attempts(context):
    (spec,) = next(plan(Settings(), context))
    figures = {"accuracy": 0.9, "epochs_trained": 10, "mean_power_watts": 100.0}
    records = [record(spec, Status.KILLED), record(spec, figures=figures)]
    settings = Settings(cost=("price_per_hour=20", "co2_per_kwh=0.5"))
    (found,) = (f for f in answer(settings, records).findings if f.code == "training-cost")
    assert found.value == pytest.approx(20 * 18 / 3600)
    assert "0.0005 kWh" in found.text
    assert not any(f.code == "training-cost" for f in answer(Settings(), records).findings)
    unknown = [record(spec, figures={"accuracy": 0.9})]
    (found,) = (f for f in answer(settings, unknown).findings if f.code == "training-cost")
    assert "power was not measured" in found.text


@pytest.mark.parametrize("line", ["epochs=3", "tokens=1e9", "power_price=x"])
def test_prices_that_a_training_cannot_have(line):
    with pytest.raises(UsageError, match="cost="):
        Settings(cost=(line,))


@pytest.mark.parametrize("bleu", [None, 31.25])
def test_sentence_pairs_have_perplexity_bleu_and_the_time_of_an_epoch(context, bleu):
    (spec,) = next(plan(Settings(networks=("translator",)), context))
    work = dataclasses.replace(
        spec.work, network="translator", data="generated-sentences", epochs=2, beam_width=4
    )
    figures = {"accuracy": 0.5, "perplexity": 7.5, "epoch_s": 9.0, "tokens_per_s": 6000.0}
    y = {"validation_accuracy": (0.4, 0.5), "validation_loss": (3.0, 2.0), "perplexity": (20, 7.5)}
    if bleu is not None:
        figures |= {"bleu": bleu, "translated_per_s": 400.0}
        y["bleu"] = (10.0, bleu)
    windows = tuple(
        Window(start_s=0.0, elapsed_s=1.0, steps=1, samples=600, marks=(f"epoch-{n}",))
        for n in (1, 2)
    )
    trained = record(
        dataclasses.replace(spec, work=work),
        figures=figures,
        windows=windows,
        curves=tuple(
            Curve(name=name, x_name="epoch", x=(1.0, 2.0), y=values) for name, values in y.items()
        ),
    )
    shown = answer(Settings(networks=("translator",)), [trained])
    texts = {finding.code: finding.text for finding in shown.findings}
    assert "600 sentences/s, 6,000 tokens/s" in texts["epoch-time"]
    epochs = next(table for table in shown.tables if table.title == "Epochs")
    columns = [column.name for column in epochs.columns]
    row = [cell.value for cell in epochs.rows[1]]
    assert row[columns.index("perplexity")] == 7.5
    if bleu is None:
        assert "perplexity 7.5" in texts["perplexity"]
        assert "BLEU" not in columns
        return
    assert "BLEU 31.2 by beam search of 4 hypotheses, 400 sentences/s" in texts["bleu"]
    assert row[columns.index("BLEU")] == bleu
    assert "train-translator-bleu" in {chart.name for chart in shown.charts}


def test_a_training_of_two_classes_has_the_area_under_its_roc_curve(context):
    (spec,) = [*next(plan(Settings(networks=("dlrm-small",)), context))]
    curves = tuple(
        Curve(name=f"validation_{name}", x_name="epoch", x=(1.0, 2.0), y=values)
        for name, values in (("loss", (0.5, 0.4)), ("accuracy", (0.7, 0.8)), ("auc", (0.6, 0.75)))
    )
    figures = {"accuracy": 0.8, "auc": 0.75, "epochs_trained": 2}
    found = answer(Settings(), [record(spec, figures=figures, curves=curves)])
    (finding,) = [f for f in found.findings if f.code == "auc"]
    assert finding.value == pytest.approx(75)
    assert "75.0 %" in finding.text
    (column,) = [n for n, c in enumerate(found.tables[0].columns) if c.name == "AUC"]
    assert [row[column].value for row in found.tables[0].rows] == pytest.approx([60, 75])
    assert found.tables[0].columns[-1].name == "samples/s"
    assert {"AUC"} <= {line.name for chart in found.charts for line in chart.lines}


def test_a_segmentation_has_its_mean_intersection_over_union_and_worst_class(context):
    (spec,) = [*next(plan(Settings(networks=("unet",)), context))]
    epochs = (1.0, 2.0)
    curves = (
        Curve(name="validation_loss", x_name="epoch", x=epochs, y=(0.9, 0.4)),
        Curve(name="validation_accuracy", x_name="epoch", x=epochs, y=(0.7, 0.9)),
        Curve(name="validation_mean_iou", x_name="epoch", x=epochs, y=(0.3, 0.6)),
        Curve(name="class_iou", x_name="class", x=(0.0, 1.0, 3.0), y=(0.9, 0.2, 0.7)),
    )
    figures = {"accuracy": 0.9, "mean_iou": 0.6, "epochs_trained": 2}
    found = answer(Settings(), [record(spec, figures=figures, curves=curves)])
    (finding,) = [f for f in found.findings if f.code == "mean-iou"]
    assert finding.value == pytest.approx(60)
    for words in ("60.0 %", "3 classes", "class 1 with 20.0 %"):
        assert words in finding.text
    (column,) = [n for n, c in enumerate(found.tables[0].columns) if c.name == "mean IoU"]
    assert [row[column].value for row in found.tables[0].rows] == pytest.approx([30, 60])
    assert {"mean IoU"} <= {line.name for chart in found.charts for line in chart.lines}
    assert "class-iou" in " ".join(chart.name for chart in found.charts)


def test_a_detection_has_its_mean_average_precision_and_worst_class(context):
    (spec,) = [*next(plan(Settings(networks=("detectnet-little",)), context))]
    epochs = (1.0, 2.0)
    curves = (
        Curve(name="validation_loss", x_name="epoch", x=epochs, y=(0.9, 0.4)),
        Curve(name="validation_accuracy", x_name="epoch", x=epochs, y=(0.1, 0.3)),
        Curve(name="validation_map", x_name="epoch", x=epochs, y=(0.1, 0.3)),
        Curve(name="validation_map50", x_name="epoch", x=epochs, y=(0.2, 0.6)),
        Curve(name="class_ap", x_name="class", x=(0.0, 2.0), y=(0.4, 0.2)),
    )
    figures = {"accuracy": 0.3, "map": 0.3, "map50": 0.6, "epochs_trained": 2}
    found = answer(Settings(), [record(spec, figures=figures, curves=curves)])
    (finding,) = [f for f in found.findings if f.code == "mean-average-precision"]
    assert finding.value == pytest.approx(30)
    for words in ("30.0 %", "60.0 % at 0.5", "class 2 with 20.0 %"):
        assert words in finding.text
    assert "accuracy" not in [f.code for f in found.findings]
    names = [c.name for c in found.tables[0].columns]
    row = found.tables[0].rows[-1]
    assert [row[names.index(name)].value for name in ("mAP", "mAP50")] == pytest.approx([30, 60])
    assert "top-1" not in names
    lines = {line.name for chart in found.charts for line in chart.lines}
    assert {"mAP", "mAP50"} <= lines
    assert "class-ap" in " ".join(chart.name for chart in found.charts)
    assert "COCO" in found.notes[0]
