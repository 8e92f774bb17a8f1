"""JUnit XML, for the test reports of CI systems: a test case a run, a comparison and a target.

    a run that completed                                    passed
    out of memory, not supported, not installed, diverged   skipped: a result, and not a fault
    crashed, killed, timed out                              error
    a comparison below the threshold of --fail-below        failure
    a comparison without enough data for the threshold      error
    a requested target accuracy that was not reached        failure

Names of test cases are the same from run to run, so that a CI system shows their history. Figures
with their intervals are properties.
"""

from __future__ import annotations

import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, BinaryIO

from cubemesh.experiments.analysis.comparison import Gate, ratio_of_record
from cubemesh.exports.contents import ExportedRuns
from cubemesh.exports.labels import run_label, run_labels
from cubemesh.schema import Outcome, RunRecord
from cubemesh.schema.comparison import Ratio
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.untrusted import clean

if TYPE_CHECKING:
    from cubemesh.store.compare import StoredComparison

_REGRESSION, _INCONCLUSIVE, _MISSED = "regression", "not-enough-data", "target-missed"


def write(runs: ExportedRuns, file: BinaryIO) -> None:
    """Write a suite for the runs of each machine, and one for the comparisons."""
    root = Xml.Element("testsuites", name="cubemesh")
    gate = runs.gate
    by_machine: dict[str, list[RunRecord]] = {}
    for record in runs.records:
        by_machine.setdefault(record.key.machine_id, []).append(record)
    for machine_id, records in by_machine.items():
        suite = Xml.SubElement(root, "testsuite", name=f"runs on {machine_id}")
        machine = runs.machines.get(machine_id)
        if machine is not None:
            suite.set("hostname", clean(machine.hostname))
        suite.set("timestamp", records[0].started_utc[:19])
        for record, name in zip(records, run_labels(records), strict=True):
            _add_run(suite, record, name, gate)
    if runs.comparisons or (runs.gate is not None and not runs.gate.ratios):
        suite = Xml.SubElement(root, "testsuite", name="comparisons")
        for comparison in runs.comparisons:
            _add_comparison(suite, comparison, gate)
        if not runs.comparisons:
            case = _case(suite, "cubemesh.compare", "baseline", 0.0)
            _end(case, "error", _INCONCLUSIVE, "No run could be compared.")
    if runs.targets:
        suite = Xml.SubElement(root, "testsuite", name="targets")
        for name, missed in runs.targets.items():
            case = _case(suite, "cubemesh.target", name, 0.0)
            if missed:
                _end(case, "failure", _MISSED, " ".join(missed))
    for suite in root:
        _count(suite, [suite])
    _count(root, list(root))
    Xml.indent(root)
    Xml.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
    file.write(b"\n")


def _add_run(suite: Xml.Element, record: RunRecord, name: str, gate: Gate | None) -> None:
    group = f"cubemesh.{record.spec.work.kind}.{record.spec.program.framework}"
    case = _case(suite, group, name, record.elapsed_s)
    _add_properties(case, _run_properties(record))
    outcome, ratio = record.outcome, ratio_of_record(record)
    if not outcome.ok:
        _end(case, "skipped" if outcome.status.expected else "error", outcome.status, _why(outcome))
    elif gate is not None and record.spec.against is not None:
        _judge(case, ratio, gate)
    if record.warnings:
        text = "\n".join(f"{w.code}: {w.cause} {w.remedy}" for w in record.warnings)
        Xml.SubElement(case, "system-out").text = clean(text)


def _add_comparison(suite: Xml.Element, comparison: StoredComparison, gate: Gate | None) -> None:
    first, second = comparison.first.records[0], comparison.second.records[0]
    same = first.spec.workload_id == second.spec.workload_id
    name = run_label(second) + ("" if same else f" over {run_label(first)}")
    case = _case(suite, "cubemesh.compare", name, 0.0)
    ratio = comparison.ratio
    listed = {"throughput_ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    differences = {f"differs: {d.what}": f"{d.first} → {d.second}" for d in comparison.differences}
    found = {name: repr(value) for name, value in listed.items() if value is not None}
    _add_properties(case, {**found, "verdict": ratio.verdict.value, **differences}.items())
    if gate is not None:
        _judge(case, ratio, gate)


def _judge(case: Xml.Element, ratio: Ratio | None, gate: Gate) -> None:
    """Mark a comparison that breaches the threshold, or that is inconclusive."""
    breached = dict(zip(gate.ratios, gate.breached, strict=True)).get(ratio) if ratio else None
    if ratio is None or breached is None:
        why = (ratio.why if ratio else "") or "The ratio has no interval."
        _end(case, "error", _INCONCLUSIVE, why)
    elif breached:
        text = f"{ratio.value:.3f} of the throughput, 95 % interval {ratio.low:.3f} to "
        text += f"{ratio.high:.3f}: below {gate.below:g}."
        _end(case, "failure", _REGRESSION, text)


def _run_properties(record: RunRecord) -> Iterator[tuple[str, str]]:
    yield "run_id", record.run_id
    yield "workload_id", record.spec.workload_id
    yield "code_version", record.key.code_version
    for name, figure in record.figures.items():
        yield name, repr(figure.value)
        if figure.low is not None:
            yield f"{name}_low", repr(figure.low)
        if figure.high is not None:
            yield f"{name}_high", repr(figure.high)


def _case(suite: Xml.Element, group: str, name: str, seconds: float) -> Xml.Element:
    time = f"{Decimal(repr(float(seconds))):f}"  # XML Schema's decimals have no exponent
    return Xml.SubElement(suite, "testcase", classname=group, name=clean(name), time=time)


def _add_properties(case: Xml.Element, pairs: Iterable[tuple[str, str]]) -> None:
    listed = Xml.SubElement(case, "properties")
    for name, value in pairs:
        Xml.SubElement(listed, "property", name=clean(name), value=clean(value))


def _end(case: Xml.Element, tag: str, kind: str, message: str) -> None:
    Xml.SubElement(case, tag, type=kind, message=clean(message)).text = clean(message)


def _why(outcome: Outcome) -> str:
    return outcome.message or STATUS_WORDS[outcome.status]


def _count(element: Xml.Element, suites: list[Xml.Element]) -> None:
    """Set the numbers of an element's test cases and their total time."""
    cases = [case for suite in suites for case in suite.iter("testcase")]
    element.set("tests", str(len(cases)))
    for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(plural, str(sum(case.find(tag) is not None for case in cases)))
    element.set("time", f"{sum(Decimal(case.get('time', '0')) for case in cases):f}")
