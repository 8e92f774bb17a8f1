"""Repeated runs of a small suite: conditions, the table, continuing, and the end of the load."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from patience import wait_until

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"

SUITE = """
import os
import psutil, pytest

def busy():
    parents = psutil.Process().parents()
    soak = next(p for p in parents if any(word.endswith("/soak.py") for word in p.cmdline()))
    return len([p for p in soak.children() if "while True: pass" in p.cmdline()])

@pytest.mark.parametrize("number", range(3))
def test_passes(number, request):
    assert not hasattr(request.config, "workerinput"), "--workers 0"

def test_needs_an_idle_machine():
    assert busy() == 0, "2 | 3"

def test_needs_two_cores():
    assert len(os.sched_getaffinity(0)) > 1

def test_fails_in_its_fixture(request):
    pytest.skip("not here")
"""

HANGS = """
import signal
from pathlib import Path

def test_hangs():
    Path(__file__).with_name("hangs").touch()
    signal.pause()
"""


FEW_PLUGINS = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout",
}
"""Plugins of the small suite: those whose options a run is given; others take a second to load."""


def start(folder: Path, suite: str, *words: str) -> subprocess.Popen[str]:
    file = folder / "test_small.py"
    file.write_text(suite)
    pytest_words = ("--", str(file), "--rootdir", str(folder), "-c", os.devnull)
    own = ("--output", str(folder / "out"), "--workers", "0")
    return subprocess.Popen(
        [sys.executable, str(SOAK), *own, *words, *pytest_words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **FEW_PLUGINS},
        text=True,
    )


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    lines = text.partition(heading)[2].partition("\n## ")[0].splitlines()
    found = [[cell.strip() for cell in li[1:-1].split(" | ")] for li in lines if li[:1] == "|"]
    return found[2:]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="binds a run to one of two cores")
def test_failures_are_named_with_their_condition_and_a_stored_run_is_not_repeated(tmp_path):
    words = ("--runs", "3", "--busy", "1", "--load", "1", "--one-core", "1")
    first = start(tmp_path, SUITE, *words)
    out, err = first.communicate()
    assert first.returncode == 1, err
    document = json.loads((tmp_path / "out" / "soak.json").read_text())
    assert [(r["condition"], r["passed"], r["failed"], r["skipped"]) for r in document["runs"]] == [
        ("idle", 5, 0, 1),
        ("busy", 4, 1, 1),
        ("one core", 4, 1, 1),
    ]
    assert out == (tmp_path / "out" / "soak.md").read_text()
    assert [(name.partition("::")[2], under) for name, under, _ in rows(out, "## Failures")] == [
        ("test_needs_an_idle_machine", "busy (run 2)"),
        ("test_needs_two_cores", "one core (run 3)"),
    ]
    slow = rows(out, "## Slowest tests")
    assert {name.partition("::")[2] for name, *_ in slow} == {
        *(f"test_passes[{n}]" for n in range(3)),
        "test_needs_an_idle_machine",
        "test_needs_two_cores",
    }

    (tmp_path / "out" / "run-02.json").write_text('{"number": 2')  # torn
    again = start(tmp_path, SUITE, *words)
    _, err = again.communicate()
    assert again.returncode == 1
    assert [line for line in err.splitlines() if line.endswith("...")] == ["run 2 of 3, busy ..."]
    repeated = json.loads((tmp_path / "out" / "soak.json").read_text())["runs"]
    assert repeated[0] == document["runs"][0]
    assert repeated[1] != document["runs"][1]


def test_all_passed_is_exit_0_and_no_tests_exit_1(tmp_path):
    words = ("--runs", "1", "--busy", "0", "--one-core", "0")
    suites = {"passing": "def test_passes():\n    pass\n", "empty": ""}
    processes = {}
    for name, suite in suites.items():
        (tmp_path / name).mkdir()
        processes[name] = start(tmp_path / name, suite, *words)
    passing, empty = processes.values()
    _, err = passing.communicate()
    assert passing.returncode == 0, err
    out, _ = empty.communicate()
    assert empty.returncode == 1
    ((_, under, message),) = rows(out, "## Failures")
    assert (under, "code 5" in message) == ("idle (run 1)", True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_load_and_the_suite_end_with_it(tmp_path, number):
    words = ("--runs", "1", "--busy", "1", "--load", "1", "--one-core", "0")
    process = start(tmp_path, HANGS, *words)
    wait_until(lambda: len(children(process)) == 2 and (tmp_path / "hangs").exists())
    found = children(process)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
    for one in found:
        one.wait()
    assert list((tmp_path / "out").glob("run-*.json")) == []


@pytest.mark.parametrize(
    ("runs", "busy", "one_core", "expected"),
    [
        (10, 5, 1, ["idle", "busy"] * 4 + ["busy", "one core"]),
        (3, 0, 0, ["idle"] * 3),
        (3, 2, 1, ["busy", "busy", "one core"]),
    ],
)
def test_conditions_of_the_runs(script, runs, busy, one_core, expected):
    assert script("soak").conditions(runs, busy, one_core) == expected


@pytest.mark.parametrize("words", [("--runs", "2", "--busy", "2"), ("--runs", "0", "--busy", "0")])
def test_more_conditions_than_runs_are_refused(script, capsys, words):
    with pytest.raises(SystemExit) as refused:
        script("soak").main([*words, "--one-core", "1"])
    assert refused.value.code == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)


def test_results_in_the_repository_do_not_repeat_the_runs(script, tmp_path, monkeypatch):
    soak = script("soak")
    monkeypatch.setattr(soak, "ROOT", tmp_path)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    output = tmp_path / "results"
    output.mkdir()
    before = soak.version([], output)
    (output / "run-01.json").write_text("{}")
    assert soak.version([], output) == before
    (tmp_path / "changed.py").write_text("")
    assert soak.version([], output) != before
