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


def test_a_sound_disk_passes_and_is_measured_anew(accept, tmp_path: Path) -> None:
    words = (*DISK, "--set", "disk_gb_per_s=100", "--badge", "badge.svg", "--report", "page.html")
    first, second = accept(*words), accept(*words)
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    document, again = json.loads(first.stdout), json.loads(second.stdout)
    assert (document["kind"], document["verdict"]) == ("acceptance", "pass")
    assert document["records"][0]["run_id"] != again["records"][0]["run_id"]
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


def test_without_evidence_it_ends_with_1(accept) -> None:
    done = accept(*DISK)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, "not judged")


def test_a_wrong_setting_is_refused(accept) -> None:
    done = accept("--set", "min_of_fleet=90")
    assert done.returncode == 2
    assert "at most 1" in done.stderr
