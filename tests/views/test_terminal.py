from __future__ import annotations

import io

import pytest
from rich.console import Console

from cubemesh.views import terminal


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False)


def text(console: Console) -> str:
    return console.file.getvalue()


def test_answer_reads_table_findings_warnings_notes(console, sample):
    terminal.print_answer(console, sample.answers[0])
    lines = text(console).splitlines()
    assert lines[0] == "LittleCNN against minibatch"
    assert lines[1] == "  minibatch     images/s     step   memory"
    assert lines[2] == "  8          372.1 ± 2.4  21.5 ms  330 MiB"
    assert lines[8] == "  4,096      out of memory: needs 27 GiB, 24 here; 2,048 fits"
    assert "Throughput stops growing at minibatch 128. Larger minibatches only" in text(console)
    assert lines[-3].startswith("! Other processes used 8 %")
    assert lines[-3].endswith("Run it again on a quiet machine.")
    assert lines[-1].startswith("Reduced: 14 windows")


def test_machine_tells_what_is_not_known(console, made):
    terminal.print_machine(console, made.machine(gpus=2))
    out = text(console)
    assert out.startswith("node-17 · 2 × NVIDIA H200")
    assert "L2 cache" in out
    assert "0–1: nvlink, 18 links" in out
    assert "the hypervisor hides the frequency driver" in out


def test_record_tells_settings_phases_series_and_traceback(console, made):
    terminal.print_record(console, made.record(64, warnings=(made.BUSY,)), made.series(64))
    out = text(console)
    assert "1,734 ± 11 samples/s" in out
    assert "warm-up  1.9 s" in out
    assert "CPU utilisation" in out
    assert "! Other processes used 8 %" in out
    terminal.print_record(console, made.hostile().records.popitem()[1])
    assert "crashed: </script><img src=x onerror=alert(1)>" in text(console)


def test_results_are_a_line_a_run(console, sample):
    terminal.print_results(console, list(sample.records.values()))
    lines = text(console).splitlines()
    assert len(lines) == 1 + len(sample.records)
    assert "2,169 ± 14 samples/s" in lines[5]
    assert lines[4].endswith("!"), "a run with warnings is marked"
    assert lines[7].endswith("out of memory: needs 27 GiB, 24 here; 2,048 fits")


def test_no_results_say_what_to_do(console):
    terminal.print_results(console, [])
    assert "cubemesh run minibatch" in text(console)


def test_markup_and_escapes_from_outside_are_only_text(made):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)
    nasty = "[bold red]x[/] \x1b[2J\x07"
    terminal.print_results(console, [made.record(8, network=nasty, step_s=0.1)])
    assert "[bold red]x[/]" in text(console)
    assert "\x1b[2J" not in text(console)
    assert "\x07" not in text(console)


def test_no_color_means_none(monkeypatch, made):
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    terminal.print_record(console, made.record(64, outcome=made.OOM))
    assert "\x1b[3" not in text(console)


def test_a_step_that_was_taken_apart_tells_its_parts_and_its_biggest_loss(console, made):
    terminal.print_record(console, made.taken_apart(8))
    lines = text(console).splitlines()
    at = lines.index("Where the step's time goes")
    assert lines[at + 1].split() == ["compute", "16", "ms,", "74.4", "%"]
    assert lines[at + 3].split() == ["launch", "gaps", "4.3", "ms,", "20.0", "%"]
    assert "20 % launch gaps at minibatch 8: raise the minibatch or capture" in lines[at + 6]
    assert "  2 more  1.9 ms" in lines
    assert "trace.json" in text(console)
