"""Heartbeats: from a thread, until the run ends, also when the disk is full."""

import time
from pathlib import Path

import pytest

from cubemesh.schema import Figure, Outcome, Status
from cubemesh.worker.report import heartbeat
from cubemesh.worker.report.events import EventLog, events_path, read_events


def test_heartbeats_come_while_the_main_thread_waits_and_the_outcome_is_last(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.01)
    log = EventLog(events_path(tmp_path, 0), 0, time.perf_counter())
    with heartbeat.heartbeat(log):
        while len(read_events(events_path(tmp_path, 0))) < 3:
            time.sleep(0.001)
    log.outcome(Outcome(status=Status.OK))
    log.close()
    *heartbeats, last = [event["event"] for event in read_events(events_path(tmp_path, 0))]
    assert set(heartbeats) == {"alive"}
    assert last == "outcome"


def test_an_error_ends_the_heartbeat_and_is_raised(tmp_path):
    log = EventLog(events_path(tmp_path, 0), 0, time.perf_counter())
    with pytest.raises(KeyError), heartbeat.heartbeat(log):
        raise KeyError("the run's own")
    log.close()  # no thread writes to it any more


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_stops_no_heartbeat():
    log = EventLog(Path("/dev/full"), 0, time.perf_counter())
    log.alive()
    log.figure("f", Figure(value=1.0, unit=""))
    log.alive()
    log.close()
