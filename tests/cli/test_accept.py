"""`cubemesh accept`: its exit codes, its files, and that it always measures."""

import json
from pathlib import Path

import pytest

NULL = ("accept", "--quick", "--set", "framework=null", "--burn-in", "0")
DISK = ("--set", "parts=disk", "--set", "script=step=0.002")
"""256 MiB in 2 ms: 134 GB/s."""


@pytest.fixture
def accept(cubemesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return lambda *words: cubemesh(*NULL, *words, "--store", "s.sqlite", "--json")


def test_with_evidence_a_sound_disk_passes_and_without_it_is_not_judged(
    accept, tmp_path: Path
) -> None:
    first = accept(*DISK)
    assert (first.returncode, json.loads(first.stdout)["verdict"]) == (1, "not judged")
    words = ("--set", "disk_gb_per_s=100", "--badge", "badge.svg", "--report", "page.html")
    second = accept(*DISK, *words)
    assert second.returncode == 0, second.stderr
    before, document = json.loads(first.stdout), json.loads(second.stdout)
    assert (document["kind"], document["verdict"]) == ("acceptance", "pass")
    assert document["records"][0]["run_id"] != before["records"][0]["run_id"], "measured anew"
    assert "Pass: 1 of 1 judged check passed." in second.stderr
    assert "acceptance: pass · " in (tmp_path / "badge.svg").read_text()
    assert "Acceptance of" in (tmp_path / "page.html").read_text()


def test_a_fault_ends_with_99(accept) -> None:
    done = accept("--set", "parts=training", "--set", "script=step=0.002,nan@5")
    assert done.returncode == 99
    document = json.loads(done.stdout)
    assert document["verdict"] == "fail"
    assert [f["code"] for f in document["answer"]["findings"]] == [
        "acceptance-failed",
        "failed-run",
    ]
    assert "Fail: 1 check of 1 failed" in done.stderr


def test_a_wrong_setting_is_refused(accept) -> None:
    done = accept("--set", "min_of_fleet=90")
    assert done.returncode == 2
    assert "at most 1" in done.stderr


def test_it_is_scheduled_every_night_and_unscheduled(cubemesh, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "s.sqlite"))
    made = cubemesh(
        *("submit", "acceptance", "--nightly", "02:30", "--within", "90m"),
        *("--set", "framework=null", *store),
    )
    assert made.returncode == 0, made.stderr
    assert "schedule 1: every night from 02:30 to 04:00 UTC, when idle" in made.stdout
    listed = json.loads(cubemesh("jobs", "schedules", "--json", *store).stdout)
    assert [one["question"]["no_cache"] for one in listed["schedules"]] == [True]
    assert "none yet" in cubemesh("jobs", "schedules", *store).stdout
    assert cubemesh("jobs", "unschedule", "1", *store).returncode == 0
    assert "No schedules." in cubemesh("jobs", "schedules", *store).stdout
    assert cubemesh("jobs", "unschedule", "1", *store).returncode == 2
    for words in (("--nightly", "2"), ("--any-load",), ("--nightly", "02:00", "--hosts", "a,b")):
        refused = cubemesh("submit", "minibatch", "--set", "framework=null", *words, *store)
        assert refused.returncode == 2, words
