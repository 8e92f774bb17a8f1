"""The summary of a performance check: one screen, whatever was found."""

import io
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cubemesh.api.report import report
from cubemesh.schema import Answer, Finding
from cubemesh.views.summary import HEADINGS, print_page, print_summary
from record_fixtures import MACHINE

STORE = "2026-11-26-one-h200-performance-check.sqlite"
EARLIER_STORE = "2026-11-23-one-h200-performance-check.sqlite"
CPU_STORE = "2026-11-24-two-cores-performance-check.sqlite"
ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "records"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_summary_with_every_caveat_is_one_screen(tmp_path: Path, width: int) -> None:
    found = report(store=shutil.copy(RECORDS / EARLIER_STORE, tmp_path))
    (answer,) = found.answers
    codes = tuple(dict.fromkeys(w.code for w in answer.warnings))
    noisy = replace(answer, findings=tuple(replace(f, caveats=codes) for f in answer.findings))
    console = Console(width=width, file=io.StringIO(), record=True)
    print_summary(console, found.machine, noisy)
    print_page(console, tmp_path / "page.html")
    lines = console.export_text().splitlines()
    assert len(lines) <= 45
    assert all(line == line.rstrip() for line in lines)
    expected = [*HEADINGS, "Caveats", "Next", "Report"]
    headings = [line for line in lines if line in expected]
    # With six caveats there is no room for what only repeats a command, nor, on 60 columns, for
    # the conditions of other people's results.
    left_out = {60: ("What others reach", "Further"), 80: ("Further",), 120: ()}[width]
    assert headings == [one for one in expected if one not in left_out]
    commands = lines[lines.index("Next") : lines.index("Report")]
    trained = [line.split()[2] for line in commands if "cubemesh train" in line]
    assert trained == ["resnet-50", "gpt2"], "the headline's network first"
    assert any("minutes=10" in line for line in commands), "what there was no time for"
    assert all("  # " in line for line in commands[1:-1]), "each says what it is for"
    explained = sum("±" in line and "95 % confidence interval" in line for line in lines)
    assert explained == (width >= 80)


@pytest.mark.parametrize("name", [STORE, CPU_STORE])
def test_the_docs_show_the_summary_of_the_stored_run(tmp_path: Path, name: str) -> None:
    found = report(store=shutil.copy(RECORDS / name, tmp_path))
    console = Console(width=80, file=io.StringIO(), record=True)
    print_summary(console, found.machine, found.answers[0])
    lines = console.export_text().splitlines()
    shown = "\n".join(f"    {line}" if line else "" for line in lines)
    assert shown in (ROOT / "docs" / "report.md").read_text()


def test_the_same_caveats_are_those_of_the_finding_above() -> None:
    findings = tuple(
        Finding(code=code, text="Text.", caveats=(caveat,))
        for code, caveat in (
            ("throughput", "drift"),
            ("largest-loss", "busy-host"),
            ("throughput-loss", "busy-host"),
            ("further-gain", "drift"),
        )
    )
    answer = Answer(experiment="quick", question="?", title="Quick", findings=findings)
    console = Console(width=80, file=io.StringIO(), record=True)
    print_summary(console, MACHINE, answer)
    shown = re.findall(r"\(! ([^)]*)\)", console.export_text())
    assert shown == ["drift", "busy-host", "the same", "drift"]
