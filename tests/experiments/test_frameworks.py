import dataclasses
import re

import pytest

from answers import finding, findings, in_order, texts, values
from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.frameworks import EXPERIMENT, NETWORKS, Settings, known
from cubemesh.experiments.registry import Context, Scale
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.runs import Executor
from cubemesh.schema import (
    ExperimentRun,
    Forward,
    ForwardBackward,
    Infer,
    ProgramSettings,
    RunSpec,
    Status,
    TrainSteps,
    warn,
)
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.worker.report.outcomes import not_installed


def test_full_settings_are_the_papers(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.FULL)
    planned, _ = play(EXPERIMENT.plan(Settings(), context), record_of)
    assert {s.work.network for s in planned} == set(NETWORKS)
    assert {s.batch_per_device for s in planned} == {64}
    assert {s.budget.steps for s in planned} == {100}
    assert {s.work.image_size for s in planned} == {None}
    trained = {name for name, line in FRAMEWORKS.items() if line.trains and name != "null"}
    assert {s.program.framework for s in planned} == set(known()) == trained
    assert len(planned) == 7 * len(known()) * 2
    assert [s.work.kind for s in planned[:2]] == ["forward", "train_steps"]


def test_a_cpu_runs_less_and_settings_override(machine, play, record_of):
    planned, sent = play(
        EXPERIMENT.plan(Settings(frameworks=("null",)), Context(machine=machine)), record_of
    )
    assert {s.batch_per_device for s in planned} == {8}
    reduced = [w for w in EXPERIMENT.answer(Settings(), sent).warnings if w.code == "reduced"]
    assert len(reduced) == 1
    named = Settings(networks=("alexnet",), frameworks=("null",), batch_sizes=(16,), steps=5)
    planned, _ = play(EXPERIMENT.plan(named, Context(machine=machine)), record_of)
    assert {(s.batch_per_device, s.budget.steps, s.budget.windows) for s in planned} == {(16, 5, 6)}


def test_names_of_networks_are_forgiving():
    wanted = request(EXPERIMENT, {"networks": "ResNet50,vgg-16"})
    assert wanted.settings.networks == ("resnet-50", "vgg16")


def matrix(record_of, step_s, kinds=(Forward, TrainSteps), **more):
    """Records of every (network, framework) of `step_s`; a forward pass takes a third of it."""
    return [
        record_of(
            RunSpec(
                work=kind(network=network, batch_per_device=64),
                program=ProgramSettings(framework=framework),
            ),
            step_s=seconds / (3 if kind is Forward else 1),
            **more,
        )
        for (network, framework), seconds in step_s.items()
        for kind in kinds
    ]


STEPS = {
    ("alexnet", "pytorch"): 0.10,
    ("alexnet", "pytorch-compiled"): 0.05,
    ("vgg16", "pytorch"): 0.40,
    ("vgg16", "pytorch-compiled"): 0.48,
    ("resnet-50", "pytorch"): 0.300,
    ("resnet-50", "pytorch-compiled"): 0.298,
}


def test_fastest_frameworks_and_the_gain_of_compiling(record_of):
    answer = EXPERIMENT.answer(Settings(), matrix(record_of, STEPS))
    found = {(f.code, f.text.split()[0].strip(":")): f for f in answer.findings}
    assert found["fastest-framework", "alexnet"].value == pytest.approx(2)
    assert found["fastest-framework", "vgg16"].value == pytest.approx(1.2)
    assert ("equal-frameworks", "resnet-50") in found
    (compiling,) = [f.text for f in answer.findings if f.code == "throughput-ratio"]
    assert in_order(compiling, "faster", "alexnet", "2.00 ± 0.03×")
    assert in_order(compiling, "slower", "vgg16", "0.83 ± 0.01×")
    assert in_order(compiling, "resnet-50", "1.01 ± 0.01×")
    card = next(f for f in answer.findings if f.question)
    assert card.value == 1
    assert found["forward-share", "A"].value == pytest.approx(100 / 3)


def test_the_matrix_is_two_tables_and_two_charts_in_milliseconds(record_of):
    answer = EXPERIMENT.answer(Settings(), matrix(record_of, STEPS))
    forward, training, published = answer.tables
    assert [c.name for c in training.columns] == ["network", "pytorch", "pytorch-compiled"]
    assert [row[0].text for row in training.rows] == ["alexnet", "vgg16", "resnet-50"]
    assert training.rows[0][1].value == pytest.approx(100)
    assert training.rows[0][1].low < 100 < training.rows[0][1].high
    assert forward.rows[0][1].value == pytest.approx(100 / 3)
    assert len(set(texts(published, "network"))) == 3
    times = values(published, "forward + backward")
    assert len(times) == 6
    assert all(time > 0 for time in times)
    assert [len(chart.lines) for chart in answer.charts] == [2, 2]
    assert answer.charts[1].kind == "bar"


def test_failed_runs_are_shown(record_of):
    absent = not_installed("jax").message
    records = [
        *matrix(record_of, STEPS),
        *matrix(
            record_of,
            {("alexnet", "jax"): 1.0, ("vgg16", "jax"): 1.0},
            status=Status.NOT_INSTALLED,
            message=absent,
        ),
        *matrix(
            record_of,
            {("resnet-50", "jax"): 1.0},
            status=Status.OOM,
            message="out of memory: the forecast is 27 GiB",
        ),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    training = answer.tables[1]
    assert [row[3].reason for row in training.rows] == [
        "not installed",
        "not installed",
        "out of memory",
    ]
    failed = [f.text for f in answer.findings if f.code == "failed-run"]
    assert absent.rstrip(".") + "." in failed
    assert any(in_order(text, "jax", "resnet-50", "out of memory", "27 GiB") for text in failed)
    points = answer.charts[1].lines[2].points
    assert all(p.y is None and p.reason for p in points)


def test_a_single_framework_is_not_ranked(record_of):
    steps = {k: v for k, v in STEPS.items() if k[1] == "pytorch"}
    answer = EXPERIMENT.answer(Settings(), matrix(record_of, steps))
    assert not any("fastest" in f.code for f in answer.findings)
    speeds = findings(answer, "throughput")
    assert [f.text.partition(" ")[0] for f in speeds] == [network for network, _ in steps]
    assert [f.value for f in speeds] == pytest.approx([64 / s for s in steps.values()])
    assert "(pytorch, fp32, batch size 64)" in speeds[0].text
    assert EXPERIMENT.answer(Settings(), []).charts == ()


def test_noisy_runs_are_neither_ranked_nor_compared(record_of):
    records = matrix(record_of, STEPS)
    records[1] = dataclasses.replace(records[1], warnings=(warn("busy-host", "others", "stop"),))
    answer = EXPERIMENT.answer(Settings(), records)
    assert not any(
        f.code == "fastest-framework" and f.text.startswith("alexnet") for f in answer.findings
    )
    (noisy,) = (f for f in answer.findings if f.code == "noisy-runs")
    assert "alexnet (pytorch)" in noisy.text
    assert noisy.caveats == ("busy-host",)
    (compiling,) = [f.text for f in answer.findings if f.code == "throughput-ratio"]
    assert "alexnet" in compiling
    assert not re.search(r"alexnet \d", compiling)
    assert "faster" not in compiling
    card = next(f for f in answer.findings if f.question)
    assert (card.code, card.value, card.unit) == ("fastest-frameworks", 1, "of 2: pytorch")
    assert card.caveats == ()


def test_frameworks_that_are_fastest_equally_often_are_all_named(record_of):
    answer = EXPERIMENT.answer(Settings(), matrix(record_of, STEPS))
    card = next(f for f in answer.findings if f.question)
    assert card.value == 1
    assert in_order(card.unit, "3", "pytorch-compiled", "pytorch")


def test_each_framework_has_its_usual_layout(machine, play, record_of):
    wanted = Settings(networks=("alexnet",), frameworks=("pytorch", "keras", "tensorflow"))
    planned, sent = play(EXPERIMENT.plan(wanted, Context(machine=machine)), record_of)
    assert {(s.program.framework, s.program.layout) for s in planned} == {
        ("pytorch", "nchw"),
        ("keras", "nhwc"),
        ("tensorflow", "nhwc"),
    }
    layouts = "nchw in pytorch; nhwc in keras and"
    assert any(layouts in note for note in EXPERIMENT.answer(wanted, sent).notes)
    alike = [r for r in sent if r.spec.program.framework != "pytorch"]
    assert not any("nhwc in" in note for note in EXPERIMENT.answer(wanted, alike).notes)


def test_compiled_frameworks_name_one_that_exists():
    for line in FRAMEWORKS.values():
        assert line.compiles is None or line.compiles in FRAMEWORKS


PAPERS_PASSES = ("inference", "forward-backward")


def test_the_papers_passes_are_inference_and_forward_backward(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.FULL)
    settings = Settings(networks=("alexnet",), frameworks=("pytorch",), passes=PAPERS_PASSES)
    planned, sent = play(EXPERIMENT.plan(settings, context), record_of)
    assert [type(s.work) for s in planned] == [Infer, ForwardBackward]
    assert planned[0].work.scenario == "offline"
    assert {(s.batch_per_device, s.budget.steps) for s in planned} == {(64, 100)}
    titles = [table.title for table in EXPERIMENT.answer(settings, sent).tables]
    assert titles[:2] == ["Forward in evaluation mode, without the loss", "Forward + backward"]


def test_frameworks_are_ranked_by_the_pass_with_most_parts(record_of):
    def timed(kind, framework, step_s, **fields):
        work = kind(network="alexnet", batch_per_device=64, **fields)
        spec = RunSpec(work=work, program=ProgramSettings(framework=framework))
        return record_of(spec, step_s=step_s)

    records = [
        timed(Infer, "pytorch", 0.01, scenario="offline"),
        timed(Infer, "jax", 0.03, scenario="offline"),
        timed(ForwardBackward, "pytorch", 0.10),
        timed(ForwardBackward, "jax", 0.05),
    ]
    answer = EXPERIMENT.answer(Settings(passes=PAPERS_PASSES), records)
    fastest = finding(answer, "fastest-framework")
    assert fastest.text.startswith("alexnet makes a forward and backward pass fastest with jax")
    assert fastest.question == "Which framework is fastest in the forward and backward pass?"
    share = finding(answer, "inference-share")
    assert (share.value, share.unit) == (pytest.approx(60), "% of a forward and backward pass")
    assert [chart.name for chart in answer.charts] == [
        "frameworks-inference",
        "frameworks-forward-backward",
    ]
    assert len([note for note in answer.notes if "evaluation mode" in note]) == 1
    training = EXPERIMENT.answer(Settings(), matrix(record_of, STEPS))
    assert not findings(training, "inference-share")


def test_a_pass_must_be_named():
    with pytest.raises(UsageError, match="inference, forward, forward-backward"):
        Settings(passes=())
    with pytest.raises(UsageError, match="passes=backward is not valid"):
        request(EXPERIMENT, {"passes": "backward"})
    with pytest.raises(UsageError, match="--set passes"):
        request(EXPERIMENT, {"scenario": "offline"})


def test_passes_and_scale_are_stored_with_a_simulated_matrix(tmp_path):
    """Each pass with times of its own, in workers of the null framework."""
    from cubemesh.experiments.runner import run_experiment
    from cubemesh.machines import probe
    from cubemesh.store import Store

    machine = probe()
    texts = {
        "networks": "little-cnn",
        "frameworks": "null",
        "batch_sizes": "8",
        "passes": "inference,forward-backward,training",
        "script": "infer.step=0.01,forward-backward.step=0.03,train-steps.step=0.04",
    }
    with (
        Store.open(str(tmp_path / "s.sqlite")) as store,
        Executor(store, machine=machine, runs_folder=tmp_path / "runs") as executor,
    ):
        context = Context(machine=machine, scale=Scale.QUICK)
        answered = run_experiment(EXPERIMENT, request(EXPERIMENT, texts), context, executor, store)
        (stored,) = store.experiment_runs()
    assert stored.scale == "quick"
    before = {key: value for key, value in to_plain(stored).items() if key != "scale"}
    assert from_plain(ExperimentRun, before).scale is None, "of an earlier version"
    assert [r.spec.work.kind for r in answered.records] == [
        "infer",
        "forward_backward",
        "train_steps",
    ]
    times = [table.rows[0][1].value for table in answered.answer.tables]
    assert times == pytest.approx([10, 30, 40])


def test_a_small_matrix_for_real(tmp_path):
    """PyTorch forward and in training on this CPU, and the null framework."""
    pytest.importorskip("torch")
    from cubemesh.experiments.runner import run_experiment
    from cubemesh.machines import probe
    from cubemesh.store import Store

    machine = probe()
    texts = {
        "networks": "little-cnn",
        "frameworks": "pytorch,null",
        "batch_sizes": "8",
        "steps": "5",
        "seconds": "0.1",
        "warmup_seconds": "0.3",
        "threads": "1",
    }
    with (
        Store.open(str(tmp_path / "s.sqlite")) as store,
        Executor(store, machine=machine, runs_folder=tmp_path / "runs") as executor,
    ):
        context = Context(machine=machine, scale=Scale.QUICK)
        answered = run_experiment(EXPERIMENT, request(EXPERIMENT, texts), context, executor, store)
    forward, training = answered.answer.tables  # nobody published times of little-cnn
    kinds = {record.run_id: record.spec.work.kind for record in answered.records}
    for table, kind in ((forward, "forward"), (training, "train_steps")):
        cell = table.rows[0][1]  # which is faster depends on load
        assert kinds[cell.run_id] == kind
        assert cell.value > 0
    assert len(answered.records) == 4
