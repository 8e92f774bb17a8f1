"""`cubemesh accept`: its exit codes, its files, and that it always measures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cubemesh.experiments.acceptance.experiment import EXPERIMENT, Settings
from cubemesh.store import Store

pytestmark = pytest.mark.usefixtures("forked_servers")

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


def test_a_planted_slow_disk_is_found_by_its_stated_rate_and_by_the_fleet(
    accept, tmp_path: Path
) -> None:
    """The record of a real run, without warnings of other programs, which leave a check open."""
    slow = ("--set", "parts=disk", "--set", "script=step=0.02")
    assert accept(*slow).returncode == 1, "without evidence it is not judged"
    with Store.open(str(tmp_path / "s.sqlite")) as own:
        (record,) = own.records()
    assert record.software is not None, "the stack is stored with the run"
    record = replace(record, warnings=())
    stated = EXPERIMENT.answer(Settings(parts=("disk",), disk_gb_per_s=100.0), [record])
    (_, failure) = stated.findings
    assert failure.code == "check-failed"
    assert failure.text.startswith("disk read: 13.4 GB/s is 13.4 %")
    rate = record.figures["rate_bytes_per_s"]
    fleet = [
        replace(
            record,
            run_id=f"other{number}",
            key=replace(record.key, machine_id=f"other{number}"),
            started_utc="2020-01-01T00:00:00+00:00",
            figures={"rate_bytes_per_s": rate.scaled(2 + 0.01 * number, rate.unit)},
        )
        for number in range(3)
    ]
    (_, failure) = EXPERIMENT.answer(Settings(parts=("disk",)), [*fleet, record]).findings
    assert "of the mean of the fleet" in failure.text
    assert "3 runs of 3 machines" in failure.text


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
