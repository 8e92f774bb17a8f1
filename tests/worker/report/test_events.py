import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.schema.outcome import Outcome, Status
from cubemesh.schema.record import Phase, Window
from cubemesh.schema.serialization import from_plain
from cubemesh.schema.series import Series
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
    path.write_bytes(b'{"event": "enter", "name": "build"}\n{"event": "en')
    assert [e["name"] for e in reader.read()] == ["build"]
    assert reader.read() == []
    with open(path, "ab") as file:
        file.write(b'ter", "name": "measure"}\n')
    assert [e["name"] for e in reader.read()] == ["measure"]


def test_a_line_torn_by_a_full_disk_loses_only_that_line(tmp_path):
    path = events_path(tmp_path, 0)
    path.write_bytes(b'{"event": "a"}\n{"event": "b", "na\n\xff\n7\n{"event": "c"}\n')
    assert [e["event"] for e in read_events(path)] == ["a", "c"]


def test_a_full_disk_is_an_error(tmp_path):
    log = EventLog(tmp_path / "full", 0, 0.0)
    log.close()
    (tmp_path / "full").unlink()
    (tmp_path / "full").symlink_to("/dev/full")
    log = EventLog(tmp_path / "full", 0, 0.0)
    with pytest.raises(OSError, match="No space left"):
        log.outcome(Outcome(status=Status.OK))
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
