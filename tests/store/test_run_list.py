"""Lists of runs: every filter and every order give what the records themselves give."""

import math
import shutil
from contextlib import ExitStack

import pytest

from cubemesh.errors import UsageError
from cubemesh.schema import (
    Cpu,
    ExperimentRun,
    Figure,
    Machine,
    Memory,
    Outcome,
    Software,
    Status,
)
from cubemesh.store import Store, run_list
from cubemesh.store.run_list import FACETS, SORTS, FigureBounds, RunFilter

NETWORKS = ("little-cnn", "resnet-50", "vgg16")


def machine(name: str) -> Machine:
    return Machine(
        hostname=name,
        cpu=Cpu(model="test", usable_cores=2),
        memory=Memory(),
        software=Software(python="3", system="Linux", packages={}),
    )


@pytest.fixture(scope="module")
def templates():
    """The locations of filled stores, by the kind of database: tests copy them."""
    return {}


@pytest.fixture
def template(database, templates, saving, request, tmp_path_factory):
    """The location of a filled store of this kind."""
    if database not in templates:
        location = str(tmp_path_factory.mktemp("filled") / "template.sqlite")
        if database == "postgresql":
            server = request.getfixturevalue("_postgresql")
            server.execute("create database filled template template0")
            location = server.url_of("filled")
        with Store.open(location) as store:
            fill(store, saving)
        templates[database] = location
    return templates[database]


@pytest.fixture(scope="module")
def opened():
    """Filled stores that tests share, by the kind of database; closed at the end."""
    with ExitStack() as stack:
        yield stack, {}


@pytest.fixture
def filled(database, template, opened, request, tmp_path_factory):
    """A store of 60 runs, of which every fifth has no figure: tests only read it."""
    stack, stores = opened
    if database not in stores:
        location = str(tmp_path_factory.mktemp("shared") / "shared.sqlite")
        if database == "postgresql":  # a template with connections cannot be copied
            server = request.getfixturevalue("_postgresql")
            server.execute("create database filled_shared template filled")
            location = server.url_of("filled_shared")
        else:
            shutil.copy(template, location)
        stores[database] = stack.enter_context(Store.open(location))
    return stores[database]


@pytest.fixture
def changed(new_location, template):
    """A store as `filled`, of one test, which changes it."""
    with Store.open(new_location("results", template)) as store:
        yield store


def fill(store, saving):
    boxes = [machine("alpha"), machine("beta")]
    for box in boxes:
        store.save_machine(box)
    for i in range(60):
        failed = i % 5 == 4
        record = saving.make_record(
            i,
            batch=8 << i % 4,
            network=NETWORKS[i % 3],
            framework=("null", "pytorch")[i % 2],
            status=Status.OOM if failed else Status.OK,
            machine_id=boxes[i % 7 == 0].machine_id,
        )
        figures = {} if failed else {"throughput_per_s": figure(100.0 + i * 37 % 50)}
        if i % 3 == 0:
            figures["energy_per_sample_j"] = figure(float(i // 6))
        outcome = record.outcome
        if failed:
            outcome = Outcome(status=Status.OOM, message=f"Needs {i} GiB at 50% of_all.")
        store.save(saving.replace(record, figures=figures, outcome=outcome))


def figure(value: float) -> Figure:
    return Figure(value=value, unit="samples/s", low=value - 1, high=value + 1, n=12)


def paged(store, filter=None, limit=7, **order):
    """All rows, page by page."""
    rows, cursor = [], None
    while True:
        filters = () if filter is None else (filter,)
        page = store.list_runs(*filters, after=cursor, limit=limit, **order)
        rows += page.rows
        cursor = page.next
        assert cursor is None or len(page.rows) == limit
        if cursor is None:
            return rows


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("sort", [*SORTS, "figure.energy_per_sample_j", "figure.absent"])
def test_pages_give_every_run_once_in_order_with_missing_values_last(filled, sort, descending):
    rows = paged(filled, sort=sort, descending=descending)
    assert sorted(row.run_id for row in rows) == sorted(r.run_id for r in filled.records())
    if sort.startswith("figure."):
        own = filled.figures([row.run_id for row in rows])
        name = sort.removeprefix("figure.")
        values = [own[r.run_id][name].value if name in own[r.run_id] else None for r in rows]
    else:
        values = [getattr(row, sort) for row in rows]
    present = [value for value in values if value is not None]
    assert values == present + [None] * (len(values) - len(present))
    assert present == sorted(present, reverse=descending)


@pytest.mark.parametrize(
    ("filter", "fits"),
    [
        (RunFilter(), lambda r: True),
        (RunFilter(network="vgg16"), lambda r: r.spec.work.network == "vgg16"),
        (
            RunFilter(network=("vgg16", "resnet-50"), framework="pytorch"),
            lambda r: r.spec.work.network != "little-cnn" and r.spec.program.framework == "pytorch",
        ),
        (RunFilter(outcome="oom"), lambda r: not r.ok),
        (RunFilter(machine="beta"), lambda r: r.key.machine_id == machine("beta").machine_id),
        (
            RunFilter(machine=machine("beta").machine_id),
            lambda r: r.key.machine_id == machine("beta").machine_id,
        ),
        (RunFilter(batch_per_device=(8, 16)), lambda r: r.spec.batch_per_device in (8, 16)),
        (RunFilter(devices=1, precision="fp32", work="train_steps"), lambda r: True),
        (RunFilter(devices=2), lambda r: False),
        (
            RunFilter(text="Beta VGG"),
            lambda r: r.spec.work.network == "vgg16" and r.attempt % 7 == 1,
        ),
        (RunFilter(text="50% of_all"), lambda r: not r.ok),
        (RunFilter(text="50_"), lambda r: False),
        (RunFilter(since="2026-01-01T00:30"), lambda r: r.started_utc >= "2026-01-01T00:30"),
        (RunFilter(until="2026-01-01T00:30:00Z"), lambda r: r.started_utc < "2026-01-01T00:30"),
        (RunFilter(since="2026-01-01", until="2026-01-01"), lambda r: True),
        (RunFilter(since="2026-01-02"), lambda r: False),
        (RunFilter(since="2026-01-01T01:30+01:00"), lambda r: r.started_utc >= "2026-01-01T00:30"),
        (
            RunFilter(figures=(FigureBounds(name="energy_per_sample_j", low=2.0, high=5.0),)),
            lambda r: 2.0 <= (r.figure("energy_per_sample_j") or -1.0) <= 5.0,
        ),
        (
            RunFilter(
                figures=(
                    FigureBounds(name="energy_per_sample_j"),
                    FigureBounds(name="throughput_per_s", high=130.0),
                )
            ),
            lambda r: (
                "energy_per_sample_j" in r.figures
                and 0 < (r.figure("throughput_per_s") or 0) <= 130
            ),
        ),
    ],
)
def test_filters_match_what_the_records_say(filled, filter, fits):
    wanted = [r.run_id for r in filled.records() if fits(r)]
    assert [row.run_id for row in filled.each_run(filter)] == wanted
    page = filled.list_runs(filter, limit=100)
    assert [row.run_id for row in page.rows] == wanted[::-1]
    counted = not filter.text and not filter.figures
    assert page.total == (len(wanted) if counted else None)
    by_rate = paged(filled, filter, sort="samples_per_s")
    assert sorted(row.run_id for row in by_rate) == sorted(wanted)


def test_several_filters_are_not_counted_in_a_large_store(filled, monkeypatch):
    two = RunFilter(network="vgg16", outcome="ok")
    assert filled.list_runs(two).total == 16
    monkeypatch.setattr(run_list, "_SMALL", 50)
    assert filled.list_runs(two).total is None
    assert filled.list_runs(RunFilter(network="vgg16")).total == 20
    monkeypatch.setattr(run_list, "MAX_COUNTED", 10)
    assert filled.list_runs(RunFilter(network="vgg16")).total is None
    assert filled.list_runs().total == 60


def test_a_row_has_what_the_record_has(filled):
    record = filled.records()[0]
    row = next(filled.each_run())
    assert (row.run_id, row.workload_id, row.started_utc) == (
        record.run_id,
        record.spec.workload_id,
        record.started_utc,
    )
    assert (row.hostname, row.outcome, row.windows) == ("beta", "ok", 12)
    assert (row.samples_per_s, row.samples_per_s_low) == (100.0, 99.0)
    assert filled.figures([row.run_id])[row.run_id]["throughput_per_s"] == figure(100.0)
    assert filled.figure_names() == ["energy_per_sample_j", "throughput_per_s"]


def test_runs_stored_between_two_pages_shift_nothing(changed, saving):
    first = changed.list_runs(limit=10)
    for i in range(100, 105):
        changed.save(saving.make_record(i))
    second = changed.list_runs(limit=10, after=first.next)
    stored = [r.run_id for r in changed.records()][:60][::-1]
    assert [r.run_id for r in (*first.rows, *second.rows)] == stored[:20]


def test_facets_count_the_other_filters(filled):
    facets = filled.run_facets(RunFilter(network="vgg16", outcome="oom"))
    assert set(facets) == set(FACETS)
    counted = {one.value: one.runs for one in facets["network"]}
    assert counted == dict.fromkeys(NETWORKS, 4)
    assert {one.value: one.runs for one in facets["outcome"]} == {"ok": 16, "oom": 4}
    assert sum(one.runs for one in facets["framework"]) == 4


def test_runs_are_found_by_experiment_and_experiment_run(changed):
    ids = [r.run_id for r in changed.records()]
    runs = [
        ExperimentRun(
            experiment_run_id=f"e{i}",
            experiment=name,
            machine_id="m",
            started_utc="2026-01-01T00:00:00+00:00",
            run_ids=tuple(own),
        )
        for i, (name, own) in enumerate([("minibatch", ids[:6]), ("frameworks", ids[4:10])])
    ]
    for run in runs:
        changed.save_experiment_run(run)
        changed.save_experiment_run(run)
    found = [row.run_id for row in changed.each_run(RunFilter(experiment="frameworks"))]
    assert found == ids[4:10]
    assert [row.run_id for row in changed.each_run(RunFilter(experiment="e0"))] == ids[:6]
    rows = {row.run_id: row for row in changed.each_run()}
    assert (rows[ids[5]].experiment, rows[ids[5]].experiment_run_id) == ("minibatch", "e0")
    assert rows[ids[20]].experiment is None


def test_a_machine_and_an_experiment_run_may_be_stored_before_or_after_their_runs(store, saving):
    box = machine("gamma")
    one = saving.make_record(1, machine_id=box.machine_id)
    run = ExperimentRun(
        experiment_run_id="e",
        experiment="train",
        machine_id=box.machine_id,
        started_utc="2026-01-01T00:00:00+00:00",
        run_ids=(one.run_id,),
    )
    store.save_experiment_run(run)
    store.save(one)
    store.save_machine(box)
    (row,) = store.each_run(RunFilter(text="gamma"))
    assert (row.hostname, row.experiment, row.experiment_run_id) == ("gamma", "train", "e")


def test_figures_that_are_no_number_are_not_listed(store, saving):
    odd = {
        "loss": Figure(value=math.nan, unit=""),
        "throughput_per_s": Figure(value=math.inf, unit="1/s"),
    }
    record = saving.replace(saving.make_record(), figures=odd)
    store.save(record)
    (row,) = store.each_run()
    assert row.samples_per_s is None
    assert store.figures([row.run_id]) == {row.run_id: {}}
    assert store.list_runs(sort="figure.loss").rows == (row,)
    assert store.list_runs(RunFilter(figures=(FigureBounds(name="loss"),))).rows == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sort": "colour"}, "column to sort by"),
        ({"limit": 0}, "1 to 1000 rows"),
        ({"limit": 1001}, "1 to 1000 rows"),
        ({"after": "x"}, "cursor"),
        ({"after": "é"}, "cursor"),
        ({"filter": RunFilter(outcome="broken")}, "outcome"),
        ({"filter": RunFilter(since="yesterday")}, "since=yesterday is not a date"),
        ({"filter": RunFilter(until="0001-01-01T00:00+10:00")}, "is not a date"),
    ],
)
def test_bad_input_is_named(store, wrong, message):
    with pytest.raises(UsageError, match=message):
        store.list_runs(**wrong)


def test_a_cursor_belongs_to_one_order(filled):
    cursor = filled.list_runs(limit=5).next
    for other in ({"sort": "elapsed_s"}, {"descending": False}):
        with pytest.raises(UsageError, match="another order"):
            filled.list_runs(after=cursor, **other)
