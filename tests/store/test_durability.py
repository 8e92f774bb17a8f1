"""What was reported as stored is there after `kill -9`, and no writer loses another's work."""

import threading

from cubemesh.store import Store
from forks import Forked


def test_twenty_kills_lose_nothing_that_was_reported(saving, location):
    text, code = Forked(saving.kill, location, 20, 0.1).communicate()
    reported = text.split()
    assert code == 0
    with Store.open(location) as store:
        store.check()
        kept = {record.run_id for record in store.records()}
        assert len(reported) >= 10, "every other saver is killed after its first record"
        assert set(reported) <= kept
        assert len(kept) - len(reported) <= 20  # stored, but killed before it could say so
        for run_id in reported[::5]:
            assert len(store.series(run_id)[0].values) == 700


def test_kills_while_a_store_is_made_leave_one_that_opens(saving, tmp_path):
    text, code = Forked(saving.kill, str(tmp_path / "*.sqlite"), 10, 0.1).communicate()
    reported = set(text.split())
    assert code == 0
    kept = set()
    for number in range(10):
        with Store.open(str(tmp_path / f"{number}.sqlite")) as store:
            store.check()
            kept |= {record.run_id for record in store.records()}
    assert reported <= kept


def test_two_processes_share_a_new_store(saving, location):
    savers = [Forked(saving.save, location, name, 30) for name in ("m1", "m2")]
    outputs = [saver.communicate() for saver in savers]
    assert [code for _, code in outputs] == [0, 0]
    reported = " ".join(text for text, _ in outputs).split()
    assert len(reported) == 60
    with Store.open(location, read_only=True) as store:
        assert {r.run_id for r in store.records()} == set(reported)
        assert len(store.records(machine_id="m2")) == 30


def test_threads_share_a_store(store, saving):
    def save(name: str) -> None:
        for number in range(10):
            store.save(saving.make_record(number, machine_id=name), [saving.make_series(5)])

    threads = [threading.Thread(target=save, args=(f"m{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.records()) == 30
