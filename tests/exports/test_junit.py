"""JUnit XML, read by junitparser: a case a run, with outcomes and regressions as CI shows them."""

import dataclasses
import xml.etree.ElementTree as Xml

import pytest

from cubemesh.experiments.analysis.comparison import Gate
from cubemesh.schema import Status
from cubemesh.schema.comparison import classify_ratio
from cubemesh.store.compare import SettingDifference, StoredComparison
from cubemesh.store.select import RunSelection

junitparser = pytest.importorskip("junitparser")


def cases(content):
    """Every test case, by name."""
    xml = junitparser.JUnitXml.fromstring(content)
    found = {case.name: case for suite in xml for case in suite}
    assert len(found) == xml.tests
    return xml, found


def properties(case):
    return {p.name: p.value for p in case.iterchildren(junitparser.Properties) for p in p}


def test_a_case_for_each_run(runs, exported):
    xml, found = cases(exported("junit", runs))
    assert (xml.tests, xml.skipped, xml.errors, xml.failures) == (3, 1, 0, 0)
    first, second, third = found.values()
    assert first.name == "little-cnn batch_per_device=8"
    assert first.classname == "cubemesh.train_steps.pytorch"
    assert (first.time, xml.time) == (12.0, 36.0)
    own = properties(first)
    figure = runs[0].figures["throughput_per_s"]
    assert float(own["throughput_per_s"]) == figure.value
    assert float(own["throughput_per_s_low"]) == figure.low
    assert float(own["throughput_per_s_high"]) == figure.high
    assert float(properties(second)["below_zero_high"]) == 5e-324
    (skipped,) = third.result
    assert isinstance(skipped, junitparser.Skipped)
    assert skipped.type == "oom"
    assert '"quoted" \\ <b>&amp;</b>' in skipped.message
    assert "\ufffd" in skipped.message, "what XML cannot hold is replaced"
    assert next(iter(xml)).hostname == "bench"


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_outcomes_that_are_faults_are_errors(runs, exported, status):
    record = dataclasses.replace(
        runs[2], outcome=dataclasses.replace(runs[2].outcome, status=status)
    )
    xml, found = cases(exported("junit", [record]))
    (case,) = found.values()
    (result,) = case.result
    kind = junitparser.Skipped if status.expected else junitparser.Error
    assert isinstance(result, kind)
    assert result.type == status.value
    assert (xml.skipped, xml.errors) == ((1, 0) if status.expected else (0, 1))


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(0.88, 0.92, "failure"), (0.84, 0.96, None), (None, None, "error")],
)
def test_a_comparison_below_the_threshold_is_a_failure(runs, exported, low, high, kind):
    ratio = classify_ratio(0.9, low, high, n=3, freedom=2, method="", why="" if low else "one run")
    one = StoredComparison(
        first=RunSelection(text="a", records=runs[:1]),
        second=RunSelection(text="b", records=runs[1:2]),
        ratio=ratio,
        differences=(SettingDifference(what="layout", first="nchw", second="nhwc"),),
    )
    gate = Gate(below=0.95, ratios=(ratio,))
    content = exported("junit", runs[:2], comparisons=(one,), gate=gate)
    xml, found = cases(content)
    (compared,) = (case for case in found.values() if case.classname == "cubemesh.compare")
    assert [type(r).__name__.lower() for r in compared.result] == ([kind] if kind else [])
    assert (xml.failures, xml.errors) == (int(kind == "failure"), int(kind == "error"))
    own = properties(compared)
    assert float(own["throughput_ratio"]) == ratio.value
    assert own["differs: layout"] == "nchw → nhwc"
    (without,) = Xml.fromstring(exported("junit", (), comparisons=(one,)))
    assert without.get("failures") == "0", "no threshold, no verdict"


def test_a_gate_without_a_comparison_is_an_error(runs, exported):
    xml, _ = cases(exported("junit", runs[:1], gate=Gate(below=0.9, ratios=())))
    assert (xml.tests, xml.errors) == (2, 1)


def test_a_missed_target_is_a_failure(runs, exported):
    targets = {"train target_accuracy=0.5": (), "train target_accuracy=0.9": ("Not reached.",)}
    _, found = cases(exported("junit", runs[:1], targets=targets))
    assert found["train target_accuracy=0.5"].result == []
    (result,) = found["train target_accuracy=0.9"].result
    assert isinstance(result, junitparser.Failure)
    assert (result.type, result.message) == ("target-missed", "Not reached.")


def test_no_runs_make_an_empty_report(exported):
    xml, found = cases(exported("junit", ()))
    assert (xml.tests, found) == (0, {})
