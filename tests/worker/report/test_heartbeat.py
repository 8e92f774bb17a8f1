"""Signs of life: they come by themselves, end with the run, and a full disk does not stop them."""

import time
from pathlib import Path

import pytest

from cubemesh.schema import Figure, Outcome, Status
from cubemesh.worker.report import heartbeat
from cubemesh.worker.report.events import EventLog, events_path, read_events


def test_signs_come_while_the_main_thread_waits_and_the_outcome_is_last(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.01)
    log = EventLog(events_path(tmp_path, 0), 0, time.perf_counter())
    with heartbeat.Heartbeat(log):
        while len(read_events(events_path(tmp_path, 0))) < 3:
            time.sleep(0.001)
    log.outcome(Outcome(status=Status.OK))
    log.close()
    *signs, last = [event["event"] for event in read_events(events_path(tmp_path, 0))]
    assert set(signs) == {"alive"}
    assert last == "outcome"


def test_an_error_ends_them_and_is_not_hidden(tmp_path):
    log = EventLog(events_path(tmp_path, 0), 0, time.perf_counter())
    with pytest.raises(KeyError), heartbeat.Heartbeat(log):
        raise KeyError("the run's own")
    log.close()  # nobody writes to it any more


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_does_not_make_a_rank_look_dead():
    log = EventLog(Path("/dev/full"), 0, time.perf_counter())
    log.alive()
    with pytest.raises(OSError, match="No space left"):
        log.figure("f", Figure(value=1.0, unit=""))
    log.close()
