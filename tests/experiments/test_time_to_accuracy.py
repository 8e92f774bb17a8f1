"""Time, energy and epochs to an accuracy, from simulated records."""

import dataclasses

import pytest

from answers import finding, in_order, texts, values
from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.registry import Context, Scale
from cubemesh.experiments.time_to_accuracy import EXPERIMENT, NO_ENERGY, Settings
from cubemesh.papers.claims import check_claim
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import ClaimState, Figure, Status, Unknown, Window


def asked_of(play, record_of, machine, scale=Scale.DEFAULT, **settings):
    context = Context(machine=machine, scale=scale)
    planned, _ = play(EXPERIMENT.plan(Settings(**settings), context), record_of)
    return planned


def test_it_goes_up_to_all_cores_with_a_scaled_rate(machine, play, record_of):
    one, two = asked_of(play, record_of, machine, Scale.QUICK)
    assert (one.placement.devices, two.placement.devices) == (1, 2)
    assert (one.work.rate_scaling, two.work.rate_scaling) == ("none", "linear")
    assert {s.work.target_accuracy for s in (one, two)} == {0.8}
    assert two.program.sync == "all-reduce"
    (other,) = asked_of(play, record_of, machine, devices=(4,), target_accuracy=0.5, epochs=3)
    assert (other.placement.devices, other.work.target_accuracy, other.work.epochs) == (4, 0.5, 3)


def test_a_cpu_device_has_the_same_cores_alone_and_among_others(machine, play, record_of):
    one, two = asked_of(play, record_of, machine)
    assert {s.placement.threads for s in (one, two)} == {1}
    assert (one.placement.pinning, two.placement.pinning) == ("cores", "none")
    (two_cores,) = asked_of(play, record_of, machine, threads=(2,))
    assert (two_cores.placement.devices, two_cores.placement.threads) == (1, 2)


def trained(record_of, spec, *, epochs, epoch_s, accuracy, watts=None):
    """A record of so many epochs, each of training and an evaluation that takes a second."""
    record = record_of(spec, accuracy=accuracy)
    windows = []
    for n in range(epochs):
        start = 5.0 + n * (epoch_s + 1)
        made = {"steps": 10, "samples": 640, "marks": (f"epoch-{n + 1}",)}
        windows.append(Window(start_s=start, elapsed_s=epoch_s, **made))
        windows.append(Window(phase="evaluate", start_s=start + epoch_s, elapsed_s=1.0, **made))
    figures = {**record.figures, "epochs_trained": Figure(value=epochs, unit="")}
    if watts is not None:
        figures["mean_power_watts"] = Figure(value=watts, unit="W")
    return dataclasses.replace(record, run_id=spec.spec_id, windows=tuple(windows), figures=figures)


def test_time_energy_and_speed_up(machine, play, record_of):
    one, two = asked_of(play, record_of, machine)
    records = [
        trained(record_of, one, epochs=4, epoch_s=9.0, accuracy=0.96, watts=50.0),
        trained(record_of, two, epochs=5, epoch_s=4.0, accuracy=0.95, watts=80.0),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    best, speed_up = answer.findings
    assert best.code == "time-to-accuracy"
    assert best.value == pytest.approx(25.0)  # five epochs of 4 s and 1 s
    assert in_order(best.text, "2 kJ", "2 devices", "5")
    assert (speed_up.code, speed_up.value) == ("speed-up", pytest.approx(1.6))
    (table,) = answer.tables
    assert [row[2].value for row in table.rows] == [pytest.approx(40.0), pytest.approx(25.0)]
    assert [row[3].value for row in table.rows] == [pytest.approx(2000), pytest.approx(2000)]
    (chart,) = answer.charts
    assert [p.x for p in chart.lines[1].points][:2] == [pytest.approx(5.0), pytest.approx(10.0)]


def test_a_missed_target_has_its_accuracy(machine, play, record_of):
    one, two = asked_of(play, record_of, machine)
    records = [
        trained(record_of, one, epochs=30, epoch_s=1.0, accuracy=0.91),
        record_of(two, status=Status.UNSUPPORTED, message="devices=2: one core here."),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    assert [f.code for f in answer.findings] == ["target-missed", "failed-run"]
    assert "91.0 % after 30 epochs" in answer.findings[0].text
    assert "one core here" in answer.findings[1].text
    first, second = answer.tables[0].rows
    assert first[2].reason.startswith("95 % was not reached")
    assert second[2].reason.startswith("not supported")


def test_unknown_energy_is_a_gap_and_its_reason_given_once(machine, play, record_of):
    one, two = asked_of(play, record_of, machine)
    record = trained(record_of, one, epochs=4, epoch_s=9.0, accuracy=0.96)
    other = trained(record_of, two, epochs=4, epoch_s=9.0, accuracy=0.96, watts=50.0)
    (table,) = EXPERIMENT.answer(Settings(), [record, other]).tables
    assert [row[3].reason for row in table.rows] == [NO_ENERGY, ""]
    why = "not measurable: GPU board: the sensor fell silent"
    unknown = dataclasses.replace(record, unmeasured=(Unknown(what="energy and power", why=why),))
    again = dataclasses.replace(
        trained(record_of, two, epochs=4, epoch_s=9.0, accuracy=0.96), unmeasured=unknown.unmeasured
    )
    answer = EXPERIMENT.answer(Settings(), [unknown, again])
    assert why in finding(answer, "unknown-energy").text
    assert "energy" not in [column.name for column in answer.tables[0].columns]
    assert {len(row) for row in answer.tables[0].rows} == {len(answer.tables[0].columns)}


def both(play, record_of, machine, stale_epochs, stale_accuracy=0.96):
    """Trainings of one device, and of two with all-reduce and asynchronously."""
    strategies = ("all-reduce", "asynchronous")
    one, reduced, stale = asked_of(play, record_of, machine, strategies=strategies)
    records = [
        trained(record_of, one, epochs=2, epoch_s=9.0, accuracy=0.96),
        trained(record_of, reduced, epochs=2, epoch_s=4.0, accuracy=0.96),
        trained(record_of, stale, epochs=stale_epochs, epoch_s=3.0, accuracy=stale_accuracy),
    ]
    return (
        [one, reduced, stale],
        records,
        EXPERIMENT.answer(Settings(strategies=strategies), records),
    )


def test_asynchronous_and_synchronous_in_one_answer(machine, play, record_of):
    specs, _, answer = both(play, record_of, machine, 5)
    assert [(s.placement.devices, s.program.sync, s.work.rate_scaling) for s in specs] == [
        (1, "none", "none"),
        (2, "all-reduce", "linear"),
        (2, "asynchronous", "none"),
    ]
    found = finding(answer, "asynchronous-epochs")
    assert found.value == pytest.approx(2.5)
    assert in_order(
        found.text, "2 devices", "95 %", "5 epochs", "20 s", "2 epochs", "10 s", "2.5", "2×"
    )
    (table,) = answer.tables
    assert texts(table, "strategy") == ["none", "all-reduce", "asynchronous"]
    assert values(table, "epochs") == [2, 2, 5]
    assert [line.name for line in answer.charts[0].lines][1:] == [
        "2 devices, all-reduce",
        "2 devices, asynchronous",
    ]


def test_an_asynchronous_training_that_misses_the_target_needs_at_least_its_epochs(
    machine, play, record_of
):
    *_, answer = both(play, record_of, machine, 30, 0.9)
    found = finding(answer, "asynchronous-epochs")
    assert found.value == pytest.approx(15)
    assert "at least 15×" in found.text
    assert finding(answer, "target-missed").text.startswith("2 devices, asynchronous")


def test_no_synchronization_has_no_accuracy_of_all_devices():
    with pytest.raises(UsageError, match="none"):
        Settings(strategies=("none",))
    with pytest.raises(UsageError, match="asynchronous"):
        Settings(strategies=("asynchronos",))
    with pytest.raises(UsageError, match="strategies"):
        request(EXPERIMENT, {"sync": "asynchronous"})


@pytest.mark.parametrize(
    ("epochs", "accuracy", "state"),
    [
        (3, 0.96, "HOLDS"),
        (2, 0.96, "CANNOT_BE_TESTED_HERE"),
        (1, 0.96, "DOES_NOT_HOLD"),
        (30, 0.9, "HOLDS"),
    ],
)
def test_the_claim_about_stale_gradients(machine, play, record_of, epochs, accuracy, state):
    _, records, _ = both(play, record_of, machine, epochs, accuracy)
    claim = next(c for c in claims() if c.id == "001-21")
    verdict = check_claim(claim, Evidence(records=tuple(records)))
    assert verdict.state is ClaimState[state]
    assert verdict.measured.value == pytest.approx(epochs / 2)
    assert check_claim(claim, Evidence(records=tuple(records[:2]))).measured is None


def test_several_seeds_settle_the_claim_about_stale_gradients(machine, play, record_of):
    def pair(seed, stale_epochs):
        specs, *_ = both(play, record_of, machine, stale_epochs)
        return [
            trained(
                record_of,
                dataclasses.replace(spec, work=dataclasses.replace(spec.work, seed=seed)),
                epochs=epochs,
                epoch_s=1.0,
                accuracy=0.96,
            )
            for spec, epochs in zip(specs[1:], (20, stale_epochs), strict=True)
        ]

    def judged(*stale):
        records = [r for seed, epochs in enumerate(stale) for r in pair(seed, epochs)]
        claim = next(c for c in claims() if c.id == "001-21")
        return check_claim(claim, Evidence(records=tuple(records)))

    assert judged(24, 25, 23).state is ClaimState.HOLDS
    assert judged(16, 17, 15).state is ClaimState.DOES_NOT_HOLD
    assert judged(20, 20, 20).state is ClaimState.CANNOT_BE_TESTED_HERE
    verdict = judged(18, 25, 20)
    assert verdict.state is ClaimState.CANNOT_BE_TESTED_HERE
    assert in_order(verdict.reason, "3 pairs", "more seeds")
    assert verdict.measured.low < 1 < verdict.measured.high
