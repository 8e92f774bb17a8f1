import dataclasses

import pytest

from cubemesh.experiments import EXPERIMENTS, SUITES, Scale
from cubemesh.experiments.claims import CHECKS, judge
from cubemesh.experiments.claims.evidence import Evidence
from cubemesh.experiments.replay import documents, replay, replayed
from cubemesh.experiments.session import resolve
from cubemesh.model import (
    Breakdown,
    Figure,
    Gpu,
    Placement,
    ProgramSettings,
    Question,
    Rank,
    RunSpec,
    State,
    Status,
    TimeRow,
    Train,
    TrainSteps,
    warn,
)
from cubemesh.results.published import claims

CLAIMS = {c.id: c for c in claims()}
HOLDS, FAILS, UNTOLD = State.HOLDS, State.DOES_NOT_HOLD, State.CANNOT_BE_TESTED_HERE


def steps(record_of, network, step_s, **more):
    """Records of `network` whose steps at minibatch b take `step_s[b]` seconds."""
    return tuple(
        record_of(RunSpec(work=TrainSteps(network=network, batch_per_device=b)), step_s=t, **more)
        for b, t in step_s.items()
    )


def verdict(claim_id, records, machine=None):
    return judge(CLAIMS[claim_id], Evidence(records=records, machine=machine), EXPERIMENTS)


def on_v100(machine, records):
    gpu = Gpu(index=0, name="Tesla V100-SXM2-16GB", uuid="GPU-0")
    ran = Rank(rank=0, host="h", device="cuda:0", outcome=records[0].outcome)
    return (
        tuple(dataclasses.replace(r, ranks=(ran,)) for r in records),
        dataclasses.replace(machine, gpus=(gpu,)),
    )


@pytest.mark.parametrize(("ratio", "state"), [(2.8, HOLDS), (2.6, HOLDS), (1.2, FAILS)])
def test_a_ratio_holds_within_a_tenth_on_any_machine(record_of, ratio, state):
    found = verdict("001-3", steps(record_of, "little-cnn", {16: 0.016, 64: 0.064 / ratio}))
    assert found.state is state
    assert found.measured.value == pytest.approx(ratio)
    assert found.measured.low < ratio < found.measured.high


def test_a_ratio_whose_interval_reaches_the_tenth_holds(record_of):
    records = steps(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 2.4}, spread=0.1)
    assert verdict("001-3", records).state is HOLDS


def test_an_absolute_figure_belongs_to_its_device(record_of, machine):
    records = steps(record_of, "little-cnn", {16: 16 / 3000})
    elsewhere = verdict("001-1", records, machine)
    assert elsewhere.state is UNTOLD
    assert "another device" in elsewhere.reason
    assert elsewhere.measured.value == pytest.approx(3000)
    assert verdict("001-1", *on_v100(machine, records)).state is HOLDS
    slow = steps(record_of, "little-cnn", {16: 16 / 2000})
    assert verdict("001-1", *on_v100(machine, slow)).state is FAILS


def test_a_machine_with_the_device_that_ran_on_its_cpu_settles_nothing(record_of, machine):
    records, with_gpu = on_v100(machine, steps(record_of, "little-cnn", {16: 0.01}))
    (rank,) = records[0].ranks
    on_cpu = dataclasses.replace(records[0], ranks=(dataclasses.replace(rank, device="cpu"),))
    assert verdict("001-1", (on_cpu,), with_gpu).state is UNTOLD


def test_the_step_times_of_document_000_stand_beside(record_of, machine):
    found = verdict("000-1", steps(record_of, "vgg16", {64: 0.5}), machine)
    assert found.state is UNTOLD
    assert found.measured.value == pytest.approx(500)
    assert found.measured.unit == "ms"
    assert found.measured.low < 500 < found.measured.high


@pytest.mark.parametrize(
    ("after", "spread", "state"),
    [(0.89986, 0.001, HOLDS), (0.8, 0.001, FAILS), (0.845, 0.05, UNTOLD)],
)
def test_a_doubling_that_costs_more_than_double(record_of, after, spread, state):
    records = steps(record_of, "vgg16", {64: 0.42028, 128: after}, spread=spread)
    found = verdict("000-3", records)
    assert found.state is state
    assert found.measured.value == pytest.approx(after / 0.42028)


def sample_times(record_of, network, times_s, **more):
    return steps(record_of, network, {b: b * t for b, t in times_s.items()}, **more)


def test_larger_minibatches_take_less_time_for_every_network_measured(record_of):
    falls = sample_times(record_of, "alexnet", {8: 0.02, 64: 0.01})
    rises = sample_times(record_of, "vgg16", {8: 0.02, 64: 0.03})
    assert verdict("000-6", falls).state is HOLDS
    both = verdict("000-6", falls + rises)
    assert both.state is FAILS
    assert both.reason.startswith("vgg16")
    assert verdict("000-6", sample_times(record_of, "vgg16", {8: 0.02})).state is UNTOLD
    assert verdict("000-6", ()).state is UNTOLD


def test_the_sign_of_a_bend(record_of):
    hollow = sample_times(record_of, "alexnet", {4: 0.04, 8: 0.02, 16: 0.01})
    humped = sample_times(record_of, "alexnet", {4: 0.04, 8: 0.035, 16: 0.01})
    assert (verdict("000-4", hollow).state, verdict("000-5", hollow).state) == (FAILS, HOLDS)
    assert (verdict("000-4", humped).state, verdict("000-5", humped).state) == (HOLDS, FAILS)
    straight = sample_times(record_of, "alexnet", {4: 0.03, 8: 0.02, 16: 0.0101})
    assert verdict("000-4", straight).state is UNTOLD
    assert verdict("000-4", hollow[1:]).reason == "alexnet at minibatch 4 was not measured"
    one_sided = sample_times(record_of, "vgg16", {8: 0.02, 16: 0.01})
    assert verdict("000-4", humped + one_sided).state is HOLDS
    other = sample_times(record_of, "vgg16", {4: 0.04, 8: 0.02, 16: 0.01})
    assert verdict("000-5", other).reason == "no network it speaks of was measured"


@pytest.mark.parametrize(
    ("data", "epochs", "accuracy", "state"),
    [
        ("cifar-10", 30, 0.74, HOLDS),
        ("cifar-10", 30, 0.40, FAILS),
        ("cifar-10", 4, 0.74, UNTOLD),
        ("digits", 30, 0.74, UNTOLD),
    ],
)
def test_an_accuracy_needs_the_documents_data_and_epochs(record_of, data, epochs, accuracy, state):
    work = Train(network="little-cnn", batch_per_device=16, data=data, epochs=epochs)
    found = verdict("001-5", (record_of(RunSpec(work=work), accuracy=accuracy),))
    assert found.state is state
    assert found.measured.value == pytest.approx(100 * accuracy)


def test_what_failed_was_not_measured(record_of):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=16))
    found = verdict("001-1", (record_of(spec, status=Status.OOM, message="needs more"),))
    assert found.state is UNTOLD
    assert found.reason == "little-cnn at minibatch 16 was not measured"


def test_every_claim_gets_a_verdict_with_its_reason():
    for claim in claims():
        found = judge(claim, Evidence(records=()), EXPERIMENTS)
        assert found.state is UNTOLD
        assert found.reason
    assert "not measured on 2 devices" in verdict("001-15", ()).reason
    assert "experiment seq2seq" in judge(CLAIMS["002-5"], Evidence(records=()), ()).reason
    assert "no check" in judge(CLAIMS["002-1"], Evidence(records=()), ("devices",)).reason
    assert verdict("000-9", ()).reason == "it is a specification, not a measurement"
    assert set(CHECKS) <= set(CLAIMS)


def test_the_answer_of_a_replay(record_of, machine):
    records = steps(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 1.2})
    answer = replay("doc-001", [("minibatch", records), ("minibatch", records)], machine)
    assert answer.experiment == "doc-001"
    assert answer.findings[0].text == (
        "Of the 24 claims of document 001, 0 hold here, 1 does not, and 23 cannot be tested here."
    )
    assert answer.findings[1].text.startswith("001-3 does not hold: the document has 2.8 x; here")
    (table,) = answer.tables
    assert len(table.rows) == 24
    assert [row[0].text for row in table.rows[:14]] == [f"001-{i}" for i in range(1, 15)]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert answer.run_ids == tuple(r.run_id for r in records)


def question(asked, suite="doc-001", **more):
    return Question(
        question_id=f"q{asked}",
        suite=suite,
        asked_utc=f"2026-01-{asked:02}",
        **{"experiment": "minibatch", "machine_id": "m", "run_ids": ("r",), **more},
    )


def test_a_replay_stands_on_the_latest_question_of_each_experiment_and_network():
    old, new = question(1, settings={"network": "a"}), question(3, settings={"network": "a"})
    other = question(2, settings={"network": "b"})
    foreign = [
        question(4, suite=None),
        question(5, machine_id="n"),
        question(6, run_ids=()),
        question(7, experiment="of-a-later-version"),
    ]
    found = replayed("doc-001", [new, other, *foreign, old], "m")
    assert {q.question_id for q in found} == {"q3", "q2"}


def test_suites_that_replay_a_document_have_claims_of_it():
    assert documents() == ["doc-000", "doc-001", "doc-002", "doc-003", "doc-004"]
    for name in documents():
        assert any(c.document == SUITES[name].document for c in claims())
        assert all(ask.experiment in EXPERIMENTS for ask in SUITES[name].asks)


def at_224(record_of, network, step_s, on="host", **more):
    return tuple(
        record_of(
            RunSpec(
                work=TrainSteps(network=network, batch_per_device=b, image_size=224),
                program=ProgramSettings(data_on=on),
            ),
            step_s=t,
            **more,
        )
        for b, t in step_s.items()
    )


def test_claims_on_large_images_need_large_images(record_of):
    small = steps(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 2.8})
    found = verdict("001-6", small)
    assert found.state is UNTOLD
    assert "224 pixels was not measured; images of 32 pixels were" in found.reason
    large = at_224(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 1.3})
    assert verdict("001-6", large).state is HOLDS
    assert verdict("001-3", large).state is UNTOLD
    assert verdict("001-3", small + large).state is HOLDS


def test_host_fed_steps_stand_for_the_document_where_both_were_measured(record_of):
    host = at_224(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 1.3})
    device = at_224(record_of, "little-cnn", {16: 0.001, 64: 0.001}, on="device")
    assert verdict("001-6", host + device).measured.value == pytest.approx(1.3)


@pytest.mark.parametrize(("percent", "state"), [(75.0, HOLDS), (60.0, FAILS)])
def test_a_utilisation_bound_is_of_a_gpu_at_every_minibatch(record_of, percent, state):
    batches = dict.fromkeys((16, 32, 64, 128, 256), 0.01)
    busy = at_224(record_of, "little-cnn", batches, gpu_percent=90.0)
    lowest = at_224(record_of, "little-cnn", {16: 0.01}, gpu_percent=percent)
    found = verdict("001-7", lowest + busy[1:])
    assert found.state is state
    assert found.measured.value == percent
    assert verdict("001-7", busy[1:]).state is UNTOLD
    assert verdict("001-7", at_224(record_of, "little-cnn", batches)).state is UNTOLD


def test_utilisation_figures_belong_to_their_device(record_of, machine):
    records = at_224(record_of, "vgg16", {32: 0.2}, gpu_percent=95.0)
    elsewhere = verdict("001-13", records, machine)
    assert elsewhere.state is UNTOLD
    assert elsewhere.measured.value == 95.0
    assert verdict("001-13", *on_v100(machine, records)).state is HOLDS
    assert verdict("001-10", *on_v100(machine, records)).state is HOLDS
    assert verdict("001-14", records).reason.startswith("the document takes these")


@pytest.mark.parametrize("disturbed", [False, True])
def test_a_verdict_says_when_its_runs_were_disturbed(record_of, machine, disturbed):
    records = steps(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 2.8, 128: 0.04})
    busy = (warn("busy-host", "others", "stop"),) if disturbed else ()
    records = (records[0], dataclasses.replace(records[1], warnings=busy), records[2])
    found = verdict("001-3", records)
    assert found.doubts == (("busy-host",) if disturbed else ())
    assert found.run_id == records[1].run_id
    answer = replay("doc-001", [("minibatch", records)], machine)
    told = [f for f in answer.findings if "were disturbed" in f.text]
    (row,) = [row for row in answer.tables[0].rows if row[0].text == "001-3"]
    assert row[1].text == ("holds, disturbed" if disturbed else "holds")
    assert [f.text.partition(" rests")[0] for f in told] == (["001-3"] if disturbed else [])


def test_a_claim_is_held_against_its_own_experiment(record_of, machine):
    records = steps(record_of, "little-cnn", {16: 0.016, 64: 0.064 / 2.8})
    other = steps(record_of, "little-cnn", {16: 0.016, 64: 0.064})
    answer = replay("doc-001", [("model-size", other), ("minibatch", records)], machine)
    verdicts = {row[0].text: row[1].text for row in answer.tables[0].rows}
    assert verdicts["001-3"] == "holds"
    assert len(answer.run_ids) == len({r.run_id for r in (*records, *other)})


def test_every_figure_of_a_suite_is_asked_under_its_own_number():
    assert [a.place for a in SUITES["doc-001"].asks] == [
        "001 figure 1",
        "001 figure 1",
        "001 figure 2",
        "001 figure 3",
        "001 figure 4",
        "001 figure 4",
        "001 figures 5 and 6",
    ]
    assert all(a.place.startswith("000") for a in SUITES["doc-000"].asks)
    lines = resolve(["doc-000"], [], Scale.QUICK)
    networks = [one.request.settings.network for one in lines[1:]]
    assert networks == ["alexnet", "googlenet", "resnet-50"]
    assert len(resolve(["doc-000"], [], None)) == 8


def test_document_004s_shares_are_held_against_a_taken_apart_step(record_of, machine):
    def taken_apart(network, batch, busy):
        spec = RunSpec(work=TrainSteps(network=network, batch_per_device=batch))
        rows = (
            TimeRow(name="synchronise", seconds=0.094, calls=1),
            TimeRow(name="launch", seconds=0.006, calls=9),
        )
        record = record_of(spec)
        return dataclasses.replace(
            record,
            figures={**record.figures, "device_busy_percent": Figure(value=busy, unit="%")},
            breakdowns=(Breakdown(name="runtime call", rows=rows, method=""),),
            ranks=(Rank(rank=0, host="a", device="cuda:0", outcome=record.outcome),),
        )

    records = (taken_apart("alexnet", 256, 90.0), taken_apart("resnet-50", 32, 97.0))
    waiting, busy, missing = (verdict(f"004-{n}", records) for n in (7, 8, 9))
    assert (waiting.state, busy.state, missing.state) == (UNTOLD, UNTOLD, UNTOLD)
    assert waiting.measured.value == pytest.approx(94)
    assert busy.measured.value == pytest.approx(97)
    assert "not measured on a GPU" in missing.reason
    p100 = dataclasses.replace(
        machine, gpus=(Gpu(index=0, name="Tesla P100-SXM2-16GB", uuid="GPU-0"),)
    )
    assert verdict("004-7", records, p100).state is HOLDS
    assert verdict("004-8", records, p100).state is HOLDS


def trained_on(record_of, devices, scaling, loss):
    work = Train(
        network="little-cnn",
        batch_per_device=128,
        epochs=2,
        learning_rate=1e-4,
        rate_scaling=scaling,
    )
    record = record_of(RunSpec(work=work, placement=Placement(devices=devices)), accuracy=0.5)
    figures = {**record.figures, "validation_loss": Figure(value=loss, unit="")}
    return dataclasses.replace(record, run_id=f"{devices}-{scaling}", figures=figures)


@pytest.mark.parametrize(
    ("constant", "scaled", "state"),
    [((1.0, 2.0), 1.1, HOLDS), ((1.0, 2.0), 1.5, FAILS), ((1.0, 0.9), 1.0, FAILS)],
)
def test_losses_that_grow_unless_the_rate_is_scaled(record_of, constant, scaled, state):
    records = (
        trained_on(record_of, 1, "none", constant[0]),
        trained_on(record_of, 2, "none", constant[1]),
        trained_on(record_of, 2, "linear", scaled),
    )
    found = verdict("001-22", records)
    assert found.state is state
    assert found.measured.value == pytest.approx(scaled / constant[0])
    assert verdict("001-22", records[:1]).state is UNTOLD


def test_days_of_unnamed_networks_are_told_and_not_judged(record_of):
    record = trained_on(record_of, 1, "none", 1.0)
    days = Figure(value=3.0, unit="days")
    record = dataclasses.replace(record, figures={"projected_90_epochs_days": days})
    found = verdict("003-10", (record,))
    assert (found.state, found.measured.value) == (UNTOLD, 3.0)
