from dataclasses import replace

import pytest
from sqlalchemy import text

from cubemesh.errors import StoreWarning
from cubemesh.store import Store
from cubemesh.store.stored_series import StoredSeries, each_samples


@pytest.fixture
def stored(location, saving):
    """A store of forty runs with two series each, and their ids."""
    with Store.open(location) as store:
        ids = []
        for number in range(40):
            record = replace(saving.make_record(), run_id=f"{number:012x}")
            store.save(record, [saving.make_series(rank=0), saving.make_series(rank=1)])
            ids.append(record.run_id)
    return location, ids


def counted(store: Store, monkeypatch) -> list[str]:
    """The runs of each query for series."""
    asked = []
    whole = store.each_samples

    def each(run_ids):
        for run_id, found in whole(run_ids):
            asked.append(run_id)
            yield run_id, found

    monkeypatch.setattr(store, "each_samples", each)
    return asked


def test_every_series_is_read_once_and_in_order(stored, monkeypatch):
    location, ids = stored
    with Store.open(location, read_only=True) as store:
        asked = counted(store, monkeypatch)
        series = StoredSeries(store, ids, closes=False)
        assert asked == [], "nothing is read before it is asked for"
        found = dict(each_samples(series, reversed(ids)))
        assert asked == list(found) == ids[::-1]
        for run_id in ids[:3]:
            as_series = [one.as_series() for one in found[run_id]]
            assert as_series == store.series(run_id) == series[run_id]
            assert [one.rank for one in as_series] == [0, 1]


def test_it_reads_after_the_store_was_closed(stored):
    location, ids = stored
    with Store.open(location, read_only=True) as store:
        series = StoredSeries(store, ids, closes=True)
    assert len(series) == 40
    assert len(series[ids[7]]) == 2


def test_a_run_that_is_none_of_them_is_a_key_error(stored):
    location, ids = stored
    with Store.open(location, read_only=True) as store:
        series = StoredSeries(store, ids[:1], closes=False)
        assert (ids[0] in series, ids[1] in series) == (True, False)
        with pytest.raises(KeyError):
            series[ids[1]]
        assert series.get(ids[1], ()) == ()


def test_a_damaged_series_is_a_warning_when_it_is_read(stored):
    location, ids = stored
    with Store.open(location) as store, store._database.engine.begin() as connection:
        damaged = text("update series set data = :data where rank = 0 and run_id = :run_id")
        connection.execute(damaged, {"data": b"\0", "run_id": ids[5]})
    with Store.open(location, read_only=True) as store:
        series = StoredSeries(store, ids, closes=False)
        with pytest.warns(StoreWarning, match=ids[5]) as warned:
            found = dict(each_samples(series, ids))
        assert len(warned) == 1
    assert [one.rank for one in found[ids[5]]] == [1]


def test_series_in_memory_are_given_as_they_are():
    assert list(each_samples({"a": (1,)}, ["a", "b"])) == [("a", (1,)), ("b", ())]
