from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from contextlib import closing

import pytest
from rich.console import Console

from cubemesh.runs.progress import Progress
from cubemesh.views.progress import INTERVAL_S, TerminalProgress, TuningProgress, step_speed
from cubemesh.worker.report.outcomes import not_installed


def observed(made, **console):
    file = io.StringIO()
    return TerminalProgress(Console(file=file, width=120, **console)), file


def test_on_a_pipe_each_run_is_a_plain_line(made, golden):
    watcher, file = observed(made)
    records = [made.record(8), made.record(4096, outcome=made.OOM)]
    watcher.expect(2, exact=True)
    watcher.plan([r.spec for r in records])
    for record in records:
        watcher.start(record.spec)
        watcher.progress(Progress(phase="measure", steps=3, step_s=0.02, fraction=0.5))
        watcher.finish(record, reused=record is records[1])
    golden.check("pipe.txt", file.getvalue())


def test_a_message_is_printed_once(made):
    watcher, file = observed(made)
    records = [made.record(b, outcome=made.OOM) for b in (4096, 8192)]
    watcher.plan([r.spec for r in records])
    for record in records:
        watcher.finish(record, reused=False)
    first, second = file.getvalue().splitlines()
    assert "needs 27 GiB" in first
    assert "out of memory" in second
    assert "needs 27 GiB" not in second


def test_a_run_without_its_framework_has_no_line(made):
    watcher, file = observed(made)
    records = [made.record(8, outcome=not_installed("jax")), made.record(16)]
    watcher.plan([r.spec for r in records])
    for record in records:
        watcher.finish(record, reused=False)
    (line,) = file.getvalue().splitlines()
    assert line.startswith("  2/≥2  ")


def test_time_left_is_the_mean_of_finished_runs_times_those_to_come(made):
    watcher, _ = observed(made)
    records = [made.record(b) for b in (8, 16, 32, 64)]
    watcher.plan([r.spec for r in records])
    assert watcher.time_left_s() is None
    watcher.finish(records[0], reused=True)
    assert watcher.time_left_s() is None, "a run that was there already took no time"
    watcher.finish(records[1], reused=False)
    watcher.finish(records[2], reused=False)
    typical = (records[1].elapsed_s + records[2].elapsed_s) / 2
    assert watcher.time_left_s() == typical
    watcher.start(records[3].spec)
    assert 0 <= watcher.time_left_s() <= typical


def test_no_time_is_left_of_a_run_that_takes_longer_than_the_others(made):
    now = [0.0]
    file = io.StringIO()
    console = Console(file=file, width=200)
    watcher = TerminalProgress(console, clock=lambda: now[0])
    record = made.record(8)
    watcher.plan([record.spec, record.spec])
    watcher.finish(record, reused=False)
    watcher.start(record.spec)
    now[0] = record.elapsed_s + INTERVAL_S
    watcher.progress(Progress(phase="measure"))
    assert file.getvalue().splitlines()[-1].endswith("longer than estimated")


@pytest.mark.parametrize(
    ("expected", "positions"),
    [
        (None, ["1/≥1", "2/≥2", "3/≥3"]),
        ({"runs": 3, "exact": True}, ["1/3", "2/3", "3/3"]),
        ({"runs": 2, "exact": False}, ["1/≥2", "2/≥2", "3/≥3"]),
        ({"runs": 2, "exact": True}, ["1/2", "2/2", "3/≥3"]),
    ],
)
def test_a_total_that_may_grow_is_marked(made, expected, positions):
    """Three plans of one run each."""
    watcher, file = observed(made)
    if expected is not None:
        watcher.expect(**expected)
    for batch in (8, 16, 32):
        watcher.plan([made.record(batch).spec])
        watcher.finish(made.record(batch), reused=False)
    assert [line.split()[0] for line in file.getvalue().splitlines()] == positions


def test_a_tuning_has_no_total(made):
    file = io.StringIO()
    watcher = TuningProgress(60, Console(file=file, force_terminal=True, width=120))
    with closing(watcher):
        for record in (made.record(8), made.record(16)):
            watcher.plan([record.spec])
            watcher.start(record.spec)
            watcher.finish(record, reused=False)
        watcher.start(record.spec)
        watcher._live.refresh()
    assert not re.search(r"\d/", re.sub(r"[a-z]+/s|samples/s", "", file.getvalue()))


def test_on_a_pipe_a_long_run_has_a_line_every_interval(made):
    now = [0.0]
    file = io.StringIO()
    watcher = TerminalProgress(Console(file=file, width=120), clock=lambda: now[0])
    record = made.record(8)
    watcher.expect(2, exact=True)
    watcher.plan([record.spec] * 2)
    watcher.start(record.spec)
    for second in range(2 * int(INTERVAL_S) + 1):
        now[0] = second
        watcher.progress(Progress(phase="measure", step_s=0.81))
    first, second = file.getvalue().splitlines()
    assert first.split()[0] == "0/2"
    assert "0.81 s/step" in first
    assert ("30 s so far" in first, "1 min so far" in second) == (True, True)
    watcher.finish(record, reused=False)
    watcher.start(record.spec)
    watcher.progress(Progress(phase="warm-up"))
    assert len(file.getvalue().splitlines()) == 3, "a line was just printed"


def test_the_live_line_shows_the_current_run_and_is_removed(made):
    watcher, file = observed(made, force_terminal=True)
    record = made.record(16)
    with closing(watcher):
        watcher.plan([record.spec] * 2)
        watcher.start(record.spec)
        watcher.progress(Progress(phase="measure", steps=3, step_s=0.81, fraction=0.5))
        watcher._live.refresh()
        watcher.finish(record, reused=False)
        watcher.start(record.spec)
        watcher._live.refresh()
    out = file.getvalue()
    assert "0.81 s/step" in out
    assert "0/≥2" in out
    assert "s left" in out
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1, "the cursor comes back"


def test_speed_reads_in_the_larger_of_its_units():
    assert step_speed(0.81) == "0.81 s/step"
    assert step_speed(0.0222) == "45 steps/s"


CODE = """
from cubemesh.schema import *
from cubemesh.views.progress import TerminalProgress
spec = RunSpec(work=TrainSteps(network="n", batch_per_device=2))
watcher = TerminalProgress()
watcher.plan([spec, spec])
watcher.start(spec)
print("data")
raise SystemExit(3)
"""


def test_a_real_terminal_gets_its_cursor_back_and_stdout_only_data():
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        stderr=theirs,
        stdout=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
        check=False,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    assert done.returncode == 3
    assert done.stdout == b"data\n"
    assert b"n \xc2\xb7 batch size 2" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
