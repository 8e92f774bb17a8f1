"""What was reported as stored is there after `kill -9`, and no writer loses another's work."""

import random
import signal
import subprocess
import sys
import threading
import time

from cubemesh.results import Store

KILLS = 10


def start(saving, path, name, count):
    command = [sys.executable, saving.__file__, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_ten_kills_lose_nothing_that_was_reported(saving, path):
    chance = random.Random(1)
    reported = set()
    for kill in range(0, KILLS, 2):  # two at a time, so that they also stand in each other's way
        savers = [start(saving, path, f"m{kill}{i}", 100_000) for i in range(2)]
        first = [saver.stdout.readline() for saver in savers]
        time.sleep(chance.uniform(0.0, 0.2))
        for saver in savers:
            saver.send_signal(signal.SIGKILL)
        rest = [saver.communicate()[0] for saver in savers]
        assert [saver.returncode for saver in savers] == [-signal.SIGKILL] * 2
        # A line cut short by the kill was not reported.
        lines = "".join(first).splitlines() + [
            line for text in rest for line in text.split("\n")[:-1]
        ]
        reported |= set(lines)
    with Store.open(str(path)) as store:
        store.check()
        kept = {record.run_id for record in store.records()}
        assert len(reported) >= KILLS
        assert reported <= kept
        for run_id in list(reported)[:5]:
            assert len(store.series(run_id)[0].values) == 700


def test_kills_while_the_store_is_made_leave_a_store_that_opens(saving, tmp_path):
    chance = random.Random(2)
    for attempt in range(4):
        path = tmp_path / f"{attempt}.sqlite"
        saver = start(saving, path, "m", 100_000)
        until = time.monotonic() + 20
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.02))
        saver.kill()
        reported = set(saver.communicate()[0].split("\n")[:-1])
        with Store.open(str(path)) as store:
            store.check()
            assert reported <= {record.run_id for record in store.records()}


def test_two_processes_and_a_reader_share_a_new_store(saving, path):
    savers = [start(saving, path, name, 50) for name in ("m1", "m2")]
    outputs = [saver.communicate(timeout=60)[0].split() for saver in savers]
    assert [saver.returncode for saver in savers] == [0, 0]
    assert [len(ids) for ids in outputs] == [50, 50]
    with Store.open(str(path), read_only=True) as store:
        assert {r.run_id for r in store.records()} == {*outputs[0], *outputs[1]}
        assert len(store.records(machine_id="m2")) == 50


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
