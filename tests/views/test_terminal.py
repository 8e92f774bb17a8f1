from __future__ import annotations

import io

import pytest
from rich.console import Console

from cubemesh.experiments.runner import ExperimentResult
from cubemesh.schema import Answer, Cell, Column, ExperimentRun, Outcome, Status, Table
from cubemesh.views import terminal
from cubemesh.worker.report.outcomes import not_installed


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False)


def text(console: Console) -> str:
    return console.file.getvalue()


def test_an_answer(console, sample, golden):
    terminal.print_answer(console, sample.answers[0])
    golden.check("answer.txt", text(console))


def test_a_machine_with_gpus(console, made, golden):
    terminal.print_machine(console, made.machine(gpus=2))
    golden.check("machine.txt", text(console))


def test_a_record_with_its_telemetry(console, made, golden):
    terminal.print_record(console, made.record(64, warnings=(made.BUSY,)), made.series(64))
    golden.check("record.txt", text(console))


def test_a_record_that_was_profiled(console, made, golden):
    terminal.print_record(console, made.taken_apart(8))
    golden.check("profiled.txt", text(console))


def test_a_record_that_crashed(console, made):
    terminal.print_record(console, made.hostile().records.popitem()[1])
    assert "crashed: </script><img src=x onerror=alert(1)>" in text(console)


def test_results(console, sample, golden):
    terminal.print_results(console, list(sample.records.values()))
    golden.check("results.txt", text(console))


@pytest.mark.parametrize("filtered", [True, False])
def test_no_results(console, golden, filtered):
    terminal.print_results(console, [], filtered=filtered)
    golden.check(f"no-results{'-filtered' if filtered else ''}.txt", text(console))


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


def result(made, experiment: str, *records, title: str = "An answer"):
    """An experiment with its records and an answer."""
    return ExperimentResult(
        experiment_run=ExperimentRun(
            experiment_run_id="q" * 12,
            experiment=experiment,
            settings={},
            machine_id="m",
            started_utc="2026-11-20T15:00:00Z",
            run_ids=tuple(r.run_id for r in records),
            complete=True,
        ),
        records=records,
        answer=Answer(title=title, experiment=experiment, question="", findings=()),
    )


def test_what_could_not_run_is_one_line_for_each_reason(console, made):
    missing = [made.record(b, outcome=not_installed("pytorch")) for b in (8, 16, 32)]
    alone = made.record(8, outcome=Outcome(status=Status.UNSUPPORTED, message="one GPU"))
    terminal.print_experiments(
        console,
        [
            result(made, "minibatch", *missing[:2]),
            result(made, "ceilings", made.record(8), missing[0], title="Measured"),
            result(made, "collectives", alone),
            result(made, "precision", missing[2]),
        ],
    )
    assert text(console).splitlines() == [
        "Measured",
        "",
        "Not measured: minibatch, precision. pytorch is not installed. Install it with: pip "
        "install 'cubemesh[torch]', or set a Python that has it: --python pytorch=PATH.",
        "Not measured: collectives. one GPU.",
    ]


def test_a_list_of_results_has_each_reason_once(console, made):
    missing = [made.record(b, outcome=not_installed("pytorch")) for b in (8, 16, 32)]
    terminal.print_results(console, missing)
    assert text(console).count("cubemesh[torch]") == 1


def test_a_wide_table_wraps_on_a_terminal():
    columns = (Column(name="check"), Column(name="rate", unit="GB/s"), Column(name="note"))
    cells = (Cell(text="copy in device memory"), Cell(value=3.5), Cell(text="set disk_gb_per_s"))
    table = Table(title="Checks", columns=columns, rows=(cells,))
    wide = Console(file=io.StringIO(), width=30, highlight=False)
    terminal.print_table(wide, table)
    assert "  copy in device memory          3.5  set disk_gb_per_s" in text(wide)
    narrow = Console(file=io.StringIO(), width=30, force_terminal=True, color_system=None)
    terminal.print_table(narrow, table)
    assert text(narrow).splitlines()[1:] == [
        "  check         rate  note",
        "              (GB/s)",
        "  copy in        3.5  set",
        "  device              disk_gb_",
        "  memory              per_s",
    ]
