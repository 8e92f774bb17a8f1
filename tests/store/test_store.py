"""What is put into a store comes out of it, and only that."""

import dataclasses
import math
import sqlite3

import pytest

from cubemesh.errors import StoreError, UsageError
from cubemesh.schema import (
    Ceiling,
    Cpu,
    Curve,
    Gpu,
    Machine,
    Memory,
    Outcome,
    Phase,
    Rank,
    RunSpec,
    Software,
    Status,
    Warning,
    new_experiment_run_id,
)
from cubemesh.schema.serialization import to_plain
from cubemesh.store import ExperimentRun, Store


def test_a_record_comes_back_equal(store, saving):
    record = saving.make_record(
        ranks=(Rank(rank=0, host="h", device="cpu", outcome=Outcome(status=Status.OK)),),
        phases=(Phase(name="compile", start_s=0.0, elapsed_s=1.25, cached=True),),
        curves=(Curve(name="loss", x_name="step", x=(1.0, 2.0), y=(0.1 + 0.2, 1e-300)),),
        warnings=(Warning(code="drift", cause="3 % — \udcff\x00", remedy="–"),),
        artifacts={"trace": "trace.json"},
    )
    store.save(record)
    assert store.record(record.run_id) == record
    assert store.records() == [record]
    assert store.find(record.key) == record


def test_infinity_and_not_a_number_survive_and_the_text_stays_strict_json(store, path, saving):
    losses = (1.0, math.inf, -math.inf, math.nan)
    curve = Curve(name="loss", x_name="step", x=(0.0, 1.0, 2.0, 3.0), y=losses)
    outcome = Outcome(status=Status.DIVERGED, facts={"loss": math.nan, "plain": "NaN"})
    record = dataclasses.replace(saving.make_record(curves=(curve,)), outcome=outcome)
    store.save(record)
    back = store.record(record.run_id)
    assert back.curves[0].y[:3] == losses[:3]
    assert math.isnan(back.curves[0].y[3])
    assert math.isnan(back.outcome.facts["loss"])
    assert back.outcome.facts["plain"] == "NaN"
    with sqlite3.connect(path) as plain:
        query = (
            "select json_valid(record), json_extract(record, '$.figures.throughput_per_s.value')"
        )
        assert plain.execute(f"{query} from records").fetchall() == [(1, 240.0)]


def test_a_stored_record_is_never_changed(store, saving):
    record = saving.make_record()
    store.save(record)
    with pytest.raises(StoreError, match=f"{record.run_id} is in the store .* already"):
        store.save(dataclasses.replace(record, elapsed_s=99.0))
    assert store.record(record.run_id).elapsed_s == 2.5


@pytest.mark.parametrize("status", list(Status))
def test_an_answer_may_stand_for_a_new_run_and_a_fault_may_not(store, saving, status):
    record = saving.make_record(status=status)
    store.save(record)
    faults = (Status.CRASHED, Status.KILLED, Status.TIMED_OUT)
    assert store.find(record.key) == (None if status in faults else record)
    assert store.attempts(record.key) == 1


def test_a_record_of_other_data_is_not_reused(store, saving):
    old, new = saving.make_record(0), saving.make_record(1)
    old = dataclasses.replace(old, key=dataclasses.replace(old.key, data_id="a"))
    new = dataclasses.replace(new, key=dataclasses.replace(new.key, data_id="b"))
    store.save(old)
    store.save(new)
    assert store.find(old.key) == old
    assert store.find(new.key) == new
    assert store.find(dataclasses.replace(new.key, data_id="c")) is None


def test_find_gives_the_newest_that_came_to_an_answer(store, saving):
    first, second = saving.make_record(0), saving.make_record(1)
    crashed = saving.make_record(2, status=Status.CRASHED)
    for record in (first, second, crashed):
        store.save(record)
    assert store.find(first.key) == second
    assert store.attempts(first.key) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"spec_id": "0" * 16},
        {"machine_id": "m2"},
        {"software_id": "s2"},
        {"code_version": "0.2.0"},
        {"repeat": 1},
    ],
)
def test_every_part_of_the_key_decides_about_reuse(store, saving, change):
    record = saving.make_record()
    store.save(record)
    other = dataclasses.replace(record.key, **change)
    assert store.find(other) is None
    assert store.attempts(other) == 0


def test_a_prefix_names_a_run_when_it_names_only_one(store, saving):
    records = [saving.make_record(n, batch=n + 1) for n in range(40)]
    for record in records:
        store.save(record)
    assert store.record(records[7].run_id[:10].upper()) == records[7]
    shared = next(c for c in "0123456789abcdef" if sum(r.run_id.startswith(c) for r in records) > 1)
    alike = [r for r in records if r.run_id.startswith(shared)]
    with pytest.raises(UsageError, match="several run ids") as raised:
        store.record(shared)
    for record in alike[:10]:
        said = f"{record.run_id}  little-cnn, null, batch {record.spec.batch_per_device}, ok"
        assert said in str(raised.value)


@pytest.mark.parametrize("given", ["zzz", "%", "_", "", "  "])
def test_an_id_that_names_nothing_is_wrong_use(store, saving, given):
    store.save(saving.make_record())
    with pytest.raises(UsageError, match="cubemesh results"):
        store.record(given)


def test_records_are_filtered_and_come_oldest_first(store, saving):
    late = saving.make_record(0, batch=1, started_utc="2026-03-01T00:00:00+00:00")
    early = saving.make_record(0, batch=2, started_utc="2026-01-01T00:00:00+00:00")
    other = saving.make_record(
        0, network="cifarnet", status=Status.OOM, started_utc="2026-02-01T00:00:00+00:00"
    )
    for record in (late, early, other):
        store.save(record)
    assert store.records() == [early, other, late]
    assert store.records(limit=2) == [other, late]
    assert store.records(network="little-cnn") == [early, late]
    assert store.records(outcome="oom", framework="null", machine_id="m1") == [other]
    assert store.records(outcome=Status.OK, limit=1) == [late]
    assert store.records(framework="pytorch") == []
    assert store.records([late.run_id, early.run_id]) == [early, late]
    assert store.records([]) == []


def test_wrong_filters_are_wrong_use(store):
    with pytest.raises(UsageError, match=r"'okay'.* outcome.*\bok\b"):
        store.records(outcome="okay")
    with pytest.raises(UsageError, match=r"\babc\b"):
        store.records(["abc"])


def test_work_without_a_network_is_kept_too(store, saving):
    record = dataclasses.replace(saving.make_record(), spec=RunSpec(work=Ceiling(size=512)))
    store.save(record)
    assert store.records() == [record]
    assert store.records(network="little-cnn") == []


def test_series_come_back_by_run_and_name(store, saving):
    record = saving.make_record()
    both = [saving.make_series(1500), saving.make_series(3, rank=1)]
    store.save(record, both)
    assert [s.rank for s in store.series(record.run_id)] == [0, 1]
    back = store.series(record.run_id, "resident_bytes")[0]
    assert back.values == both[0].values
    assert back.times_s == pytest.approx(both[0].times_s, abs=1e-5)
    assert store.series(record.run_id, "watts") == []
    assert store.series("none") == []


def test_a_record_whose_series_cannot_be_stored_is_not_stored_either(store, saving):
    record = saving.make_record()
    with pytest.raises(ValueError, match="two series"):
        store.save(record, [saving.make_series(), saving.make_series()])
    bad = dataclasses.replace(saving.make_series(), device=None)
    with pytest.raises(Exception, match=r"(?i)not.null"):
        store.save(record, [bad])
    assert store.records() == []
    store.save(record, [saving.make_series()])
    assert store.records() == [record]


def test_machines_are_kept_once_as_last_seen(store):
    machine = Machine(
        hostname="b",
        cpu=Cpu(model="x"),
        memory=Memory(total_bytes=2**34, available_bytes=2**33),
        gpus=(Gpu(index=0, name="n", uuid="GPU-1"),),
        software=Software(python="3.11.7", system="Linux", packages={"torch": "2.4"}),
    )
    other = dataclasses.replace(machine, hostname="a")
    upgraded = dataclasses.replace(
        machine, software=dataclasses.replace(machine.software, packages={"torch": "2.5"})
    )
    for seen in (machine, other, upgraded):
        store.save_machine(seen)
    assert store.machines() == [other, upgraded]
    assert store.machine(machine.machine_id) == upgraded
    assert store.machine("never") is None


def test_questions_grow_under_their_id(store):
    asked = "2026-01-01T00:00:00+00:00"
    settings = {"batches": [8, 16], "data": "digits", "share": None}
    experiment_run = ExperimentRun(
        experiment_run_id=new_experiment_run_id("minibatch", settings, asked),
        experiment="minibatch",
        settings=settings,
        overrides={"effort.steps": 5},
        machine_id="m1",
        started_utc=asked,
        suite="quick",
    )
    earlier = dataclasses.replace(
        experiment_run,
        experiment_run_id="e",
        experiment="other",
        started_utc="2025-01-01T00:00:00+00:00",
    )
    grown = dataclasses.replace(experiment_run, run_ids=("r1", "r2"), complete=True)
    for one in (experiment_run, earlier, grown):
        store.save_experiment_run(one)
    assert store.experiment_runs() == [earlier, grown]
    assert store.experiment_runs("minibatch") == [grown]
    assert store.experiment_runs("never") == []


def test_an_experiment_run_id_depends_on_all_its_arguments():
    asked = ("minibatch", {"batches": [8]}, "2026-01-01T00:00:00+00:00", "m1")
    ids = {new_experiment_run_id(*asked)}
    ids.add(new_experiment_run_id("other", *asked[1:]))
    ids.add(new_experiment_run_id(asked[0], {}, *asked[2:]))
    ids.add(new_experiment_run_id(*asked[:2], "2026-01-02T00:00:00+00:00", "m1"))
    ids.add(new_experiment_run_id(*asked[:3], "m2"))
    assert len(ids) == 5
    assert new_experiment_run_id(*asked) in ids
    assert all(len(i) == 12 for i in ids)


def test_a_record_of_a_newer_shape_is_left_out_by_name(store, path, saving):
    record = saving.make_record()
    store.save(record)
    with sqlite3.connect(path) as plain:
        plain.execute("update records set record = json_set(record, '$.novelty', 1)")
    assert store.records() == []
    (damage,) = store.damage
    assert (damage.what, damage.id) == ("run", record.run_id)
    assert "novelty" in damage.reason
    with pytest.raises(StoreError, match=f"Run {record.run_id} .*novelty.*newer cubemesh"):
        store.record(record.run_id)


def test_a_closed_store_is_one_file(path, saving):
    with Store.open(str(path)) as store:
        store.save(saving.make_record(), [saving.make_series()])
    assert not path.with_name(path.name + "-wal").exists()


def test_what_is_stored_is_found_after_reopening(location, saving):
    record = saving.make_record()
    with Store.open(location) as store:
        store.save(record, [saving.make_series()])
    with Store.open(location, must_exist=True, read_only=True) as store:
        assert store.records() == [record]
        assert to_plain(store.record(record.run_id)) == to_plain(record)
        store.check()


def test_a_store_in_memory(saving):
    with Store.open("sqlite://") as store:
        store.save(saving.make_record(), [saving.make_series()])
        assert len(store.records()) == 1


def test_records_are_filtered_by_work_machine_and_outcome(store, saving):
    def ceiling(number, **changed):
        record = saving.make_record(number, **changed)
        return dataclasses.replace(record, spec=RunSpec(work=Ceiling()))

    good, other = ceiling(1), ceiling(2)
    other = dataclasses.replace(other, key=dataclasses.replace(other.key, machine_id="another"))
    for record in (saving.make_record(0), good, other, ceiling(3, status=Status.OOM)):
        store.save(record)
    found = [
        store.records(machine_id=machine, work="ceiling", outcome="ok")
        for machine in (good.key.machine_id, "another", "none")
    ]
    assert found == [[good], [other], []]
