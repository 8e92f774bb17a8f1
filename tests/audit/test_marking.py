"""An inconsistent finding has no verdict, and the answer says so everywhere."""

from dataclasses import replace

from rich.console import Console

from cubemesh.audit.marking import LABEL, marked
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    Part,
    Point,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
)
from cubemesh.schema.warning import INCONSISTENT
from cubemesh.views.json_output import answer_json
from cubemesh.views.terminal import print_answer
from record_fixtures import record_of

NOTHING_LOST = Finding(
    code="largest-overhead",
    text="resnet-50: No bottleneck at batch size 16.",
    question="What is lost?",
    value=0.5,
    unit="% host",
)
FINE = Finding(code="throughput", text="1,600 samples/s.", value=1600.0, unit="samples/s")


def table(title: str, unit: str, value: float) -> Table:
    return Table(title=title, columns=(Column(name="a", unit=unit),), rows=((Cell(value=value),),))


def contradicting() -> tuple[Answer, list[RunRecord]]:
    """Parts that exceed the step by 27 %, and a verdict that nothing is lost."""
    record = record_of(RunSpec(work=TrainSteps(network="resnet-50", batch_per_device=16)))
    parts = (("compute", 0.0126), ("launch_gaps", 0.0001), ("unattributed", -0.0027))
    record = replace(record, parts=tuple(Part(name=n, seconds=s, method="") for n, s in parts))
    answer = Answer(
        experiment="time-breakdown",
        question="",
        title="Breakdown",
        findings=(NOTHING_LOST, FINE),
        tables=(
            Table(
                title="Parts", columns=(Column(name="a", unit="%"),), rows=((Cell(value=126.0),),)
            ),
            Table(title="Rates", columns=(Column(name="b", unit="s"),), rows=((Cell(value=1.0),),)),
        ),
        charts=(
            Chart(
                name="parts",
                title="Bars",
                kind="bar",
                x=Axis(name="network", scale="category"),
                y=Axis(name="share", unit="%"),
                lines=(Line(name="compute", points=(Point(x="resnet-50", y=126.0),)),),
            ),
        ),
    )
    return answer, [record]


def test_a_verdict_without_evidence_is_dropped() -> None:
    (after,) = marked([contradicting()])
    verdict, fine = after.findings
    assert fine == FINE
    assert (verdict.code, verdict.question) == ("largest-overhead", "What is lost?")
    assert (verdict.value, verdict.low, verdict.unit) == (None, None, "")
    assert INCONSISTENT in verdict.caveats
    assert "27 %" in verdict.text
    assert verdict.remedy


def test_tables_and_charts_that_fail_say_so() -> None:
    (after,) = marked([contradicting()])
    assert [t.title for t in after.tables] == [f"Parts{LABEL}", "Rates"]
    assert [c.title for c in after.charts] == [f"Bars{LABEL}"]


def test_each_contradiction_is_a_warning_of_the_answer() -> None:
    (after,) = marked([contradicting()])
    causes = [w.cause for w in after.warnings if w.code == INCONSISTENT]
    assert len(causes) == 4  # the parts, a cell, a bar, the verdict
    assert any("126 %" in cause for cause in causes)


def test_terminal_and_json_show_it() -> None:
    (after,) = marked([contradicting()])
    console = Console(record=True, width=200)
    print_answer(console, after)
    text = console.export_text()
    assert "Inconsistent, no verdict." in text
    found = answer_json(after)["findings"][0]
    assert found["value"] is None
    assert INCONSISTENT in found["caveats"]


def test_a_consistent_answer_stays_as_it_is_and_marking_twice_changes_nothing() -> None:
    answer, records = contradicting()
    fine = replace(answer, findings=(FINE,), tables=(), charts=())
    assert marked([(fine, [replace(r, parts=()) for r in records])]) == [fine]
    (once,) = marked([(answer, records)])
    assert len(marked([(once, records)])[0].findings) == len(once.findings)
