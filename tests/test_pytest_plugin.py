"""The pytest plugin in pytest sessions of its own: a scripted clock, and the null framework."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_servers")

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent

STEP = """
import itertools

def test_step(cubemesh_benchmark):
    now, number = [0.0], itertools.count()
    def step():
        now[0] += {step_s} * (1 + 0.01 * (next(number) % 3))
    found = cubemesh_benchmark(step, samples=8, clock=lambda: now[0])
    assert 8 / {step_s} * 0.9 < found.throughput_per_s <= 8 / {step_s}
"""
"""A step that lasts as long as its script says: the test depends on no clock."""
NETWORK = """
def test_network(cubemesh_benchmark):
    cubemesh_benchmark.network(
        "little-cnn", batch_per_device=8, framework="null", script="step={step_s},jitter=0.01",
        seconds=0.05, steps=12,
    )
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch) -> Callable[..., pytest.RunResult]:
    """Runs one test file in a pytest session, with the plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))

    def run(text: str, *options: str, process: bool = False) -> pytest.RunResult:
        pytester.makepyfile(test_speed=text)
        words = ("-p", "cubemesh.pytest_plugin", *options)
        if process:
            return pytester.runpytest_subprocess(*words)
        return pytester.runpytest_inprocess(*words)

    return run


def test_a_slower_step_fails_with_the_sentence_of_the_comparison(session, pytester):
    for step_s in (0.01, 0.01001, 0.00999, 0.01):
        saved = session(STEP.format(step_s=step_s), "--cubemesh-save")
        saved.assert_outcomes(passed=1)
    (path,) = (pytester.path / ".cubemesh-baseline").glob("*.json")
    runs = json.loads(path.read_text())["runs"]
    assert len(runs) == 4
    assert all(len(run["windows"]) >= 12 for run in runs)

    same = session(STEP.format(step_s=0.01), "--cubemesh-fail-below", "0.95")
    same.assert_outcomes(passed=1)
    same.stdout.fnmatch_lines(
        ["*cubemesh*", "test_speed.py::test_step: 79*/s. No significant difference between the "
         "baseline and this version: *not significantly below 0.95."]
    )  # fmt: skip
    slower = session(STEP.format(step_s=0.012), "--cubemesh-fail-below", "0.95")
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(
        ["*this version is 16.* % slower than the baseline: 0.83*Threshold breached*below 0.95."]
    )
    reported = session(STEP.format(step_s=0.012))
    reported.assert_outcomes(passed=1)
    reported.stdout.fnmatch_lines(["*this version is 16.* % slower than the baseline*"])


def test_one_saved_session_is_not_enough(session):
    session(STEP.format(step_s=0.01), "--cubemesh-save").assert_outcomes(passed=1)
    found = session(STEP.format(step_s=0.01), "--cubemesh-fail-below", "0.95")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*Inconclusive: not enough data*"])


def test_without_a_baseline_a_threshold_fails_and_a_report_passes(session, pytester):
    failed = session(STEP.format(step_s=0.01), "--cubemesh-fail-below", "0.95")
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*nothing to compare with (no run)*--cubemesh-save*"])
    session(STEP.format(step_s=0.01)).assert_outcomes(passed=1)
    assert not (pytester.path / ".cubemesh-baseline").exists()


def test_runs_of_another_machine_are_not_compared(session, pytester):
    session(STEP.format(step_s=0.01), "--cubemesh-save")
    (path,) = (pytester.path / ".cubemesh-baseline").glob("*.json")
    document = json.loads(path.read_text())
    document["runs"][0]["machine"] = "64 cores of Another CPU"
    path.write_text(json.dumps(document))
    found = session(STEP.format(step_s=0.01), "--cubemesh-fail-below", "0.95")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*its runs are of 64 cores of Another CPU*"])


def test_a_slower_network_fails(session):
    saved = session(NETWORK.format(step_s=0.002), "--cubemesh-save")
    saved.assert_outcomes(passed=1)
    # The null framework's clock is simulated; the script is part of the workload, so the
    # baseline is compared under the same script.
    same = session(NETWORK.format(step_s=0.002), "--cubemesh-fail-below", "0.5")
    same.assert_outcomes(passed=1)
    breached = session(NETWORK.format(step_s=0.002), "--cubemesh-fail-below", "1.5")
    breached.assert_outcomes(failed=1)
    breached.stdout.fnmatch_lines(["*Threshold breached*below 1.5."])
    unknown = session(NETWORK.format(step_s=0.004), "--cubemesh-fail-below", "0.5")
    unknown.assert_outcomes(failed=1)
    unknown.stdout.fnmatch_lines(["*no run of this workload*"])


@pytest.mark.parametrize("ratio", ["0", "fast", "-1", "nan"])
def test_a_wrong_threshold_is_a_usage_error(session, ratio):
    found = session(STEP.format(step_s=0.01), f"--cubemesh-fail-below={ratio}")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines([f"*'{ratio}' is not a ratio above 0, such as 0.95*"])


def test_the_entry_point_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"cubemesh": "cubemesh.pytest_plugin"}


def test_loading_the_plugin_imports_nothing_heavy(session):
    code = """
    import sys

    def test_light():
        assert not {"torch", "numpy", "pydantic", "sqlalchemy", "networkx"} & set(sys.modules)
    """
    session(code, process=True).assert_outcomes(passed=1)
