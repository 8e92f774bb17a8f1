import contextlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.schema.outcome import Outcome, Status
from cubemesh.schema.record import Phase, Window
from cubemesh.schema.serialization import from_plain
from cubemesh.schema.series import Series
from cubemesh.worker.report import events
from cubemesh.worker.report.events import EventLog, EventReader, events_path, read_events


@pytest.fixture
def log(tmp_path):
    log = EventLog(events_path(tmp_path, 0), rank=0, origin=time.perf_counter())
    yield log
    log.close()


def events_of(tmp_path):
    return read_events(events_path(tmp_path, 0))


def test_events_are_read_as_they_were_logged(log, tmp_path):
    start = log.origin + 2.0
    with log.phase("build"):
        pass
    log.started(host="a", device="cpu", threads=3)
    log.window(Window(start_s=start, elapsed_s=0.5, steps=4, samples=32))
    log.outcome(Outcome(status=Status.OK))
    enter, phase, rank, window, outcome = events_of(tmp_path)
    assert (enter["event"], enter["name"]) == ("enter", "build")
    assert from_plain(Phase, phase["phase"]).name == "build"
    assert (rank["event"], rank["device"], rank["threads"]) == ("rank", "cpu", 3)
    read = from_plain(Window, window["window"])
    assert read.start_s == pytest.approx(2.0)
    assert (read.steps, read.samples) == (4, 32)
    assert from_plain(Outcome, outcome["outcome"]).ok


def test_a_failed_phase_is_entered_and_has_no_end(log, tmp_path):
    with pytest.raises(ZeroDivisionError), log.phase("build"):
        1 / 0  # noqa: B018
    assert [e["event"] for e in events_of(tmp_path)] == ["enter"]


def test_series_times_become_seconds_of_the_run(log, tmp_path):
    log.series(Series(name="x", times_s=(log.origin + 1.0,), values=(7.0,)))
    (event,) = events_of(tmp_path)
    assert from_plain(Series, event["series"]).times_s == pytest.approx((1.0,))


def test_progress_is_logged_five_times_a_second_at_most(log, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(log, "now", lambda: clock[0])
    for step in range(64):
        clock[0] = step / 64
        log.progress("measure", step, 0.1, None)
    assert [e["steps"] for e in events_of(tmp_path)] == [0, 13, 26, 39, 52]


def test_a_torn_last_line_is_left_out_until_it_is_complete(tmp_path):
    path = events_path(tmp_path, 0)
    reader = EventReader(path)
    assert reader.read() == []
    path.write_bytes(b'{"event": "enter", "t": 0, "name": "build"}\n{"event": "en')
    assert [e["name"] for e in reader.read()] == ["build"]
    assert reader.read() == []
    with open(path, "ab") as file:
        file.write(b'ter", "t": 1, "name": "measure"}\n')
    assert [e["name"] for e in reader.read()] == ["measure"]


def test_a_line_torn_by_a_full_disk_loses_only_that_line(tmp_path):
    path = events_path(tmp_path, 0)
    path.write_bytes(
        b'{"event": "alive", "t": 0}\n{"event": "enter", "na\n\xff\n'
        b'{"event": "library", "t": 1, "name": "gloo"}\n'
    )
    reader = EventReader(path)
    assert [e["event"] for e in reader.read()] == ["alive", "library"]
    assert reader.refused.count == 2


def test_a_path_that_is_not_utf_8_is_logged(log, tmp_path):
    log.outcome(Outcome(status=Status.CRASHED, message=os.fsdecode(b"no file /\xff")))
    (event,) = events_of(tmp_path)
    assert event["outcome"]["message"] == "no file /?"


def test_an_event_without_end_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "MOST_EVENT_BYTES", 100)
    path = events_path(tmp_path, 0)
    reader, after = EventReader(path), b'{"event": "alive", "t": 0}\n'
    path.write_bytes(after + b'{"event": "enter", "t": 0, "name": "' + b"x" * 150)
    assert len(reader.read()) == 1
    with open(path, "ab") as file:
        file.write(b"x" * 150)
    assert reader.read() == []
    with open(path, "ab") as file:
        file.write(b'"}\n' + after)
    assert reader.read() == [{"event": "alive", "t": 0}]
    assert reader.refused.count == 1


def test_events_beyond_the_most_are_refused_but_not_the_outcome(log, tmp_path, monkeypatch):
    monkeypatch.setattr(events, "MOST_EVENTS", 2)
    for name in "abc":
        log.library(name)
    log.alive()
    log.outcome(Outcome(status=Status.OK))
    reader = EventReader(events_path(tmp_path, 0))
    assert [e["event"] for e in reader.read()] == ["library", "library", "alive", "outcome"]
    assert reader.refused.count == 1


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda p: p.symlink_to("/etc/passwd")])
def test_what_is_no_event_file_is_neither_waited_for_nor_followed(tmp_path, make):
    path = events_path(tmp_path, 0)
    make(path)
    reader = EventReader(path)
    assert reader.read() == reader.read() == []
    assert reader.refused.count == 1


def test_a_full_disk_is_an_error(tmp_path):
    log = EventLog(tmp_path / "full", 0, 0.0)
    log.close()
    (tmp_path / "full").unlink()
    (tmp_path / "full").symlink_to("/dev/full")
    log = EventLog(tmp_path / "full", 0, 0.0)
    with pytest.raises(OSError, match="No space left"):
        log.outcome(Outcome(status=Status.OK))
    log.close()


def fill(folder):
    """Take all room of a disk."""
    with open(folder / "filling", "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1000))


def test_events_wait_for_room_on_a_full_disk(small_disk):
    path = events_path(small_disk, 0)
    log, reader = EventLog(path, 0, 0.0), EventReader(path)
    fill(small_disk)
    names = [f"library {n} {'x' * 500}" for n in range(20)]
    for name in names:
        log.library(name)
    sizes = {reader.changed()[0]}
    seen = [event["name"] for event in reader.read()]
    assert len(seen) < 20
    os.utime(path, (0, 0))
    log.alive()
    sizes.add(reader.changed()[0])
    assert len(sizes) == 1, "nothing was written"
    assert reader.changed()[1] > 0, "the time of change is the heartbeat"
    with pytest.raises(OSError, match="No space left"):
        log.outcome(Outcome(status=Status.OK))
    (small_disk / "filling").unlink()
    log.alive()
    *others, last = reader.read()
    assert seen + [event["name"] for event in others] == names
    assert last["event"] == "outcome"
    assert reader.refused.count == 0
    log.close()


def test_what_waits_for_room_has_an_end(small_disk, monkeypatch):
    monkeypatch.setattr(events, "MOST_UNWRITTEN_BYTES", 1000)
    log = EventLog(events_path(small_disk, 0), 0, 0.0)
    fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        log.library("x" * 2000)
    log.close()


@given(cuts=st.lists(st.integers(0, 400)), names=st.lists(st.text(max_size=8), max_size=12))
def test_however_a_file_grows_every_event_is_read_once(tmp_path_factory, cuts, names):
    folder = tmp_path_factory.mktemp("events")
    log = EventLog(folder / "whole", 0, 0.0)
    for name in names:
        log.started(host=name, device="cpu", threads=1)
    log.close()
    text = (folder / "whole").read_bytes()
    reader, read = EventReader(folder / "grown"), []
    for cut in [*sorted(c for c in cuts if c < len(text)), len(text)]:
        (folder / "grown").write_bytes(text[:cut])
        read += reader.read()
    assert [e["host"] for e in read] == names
