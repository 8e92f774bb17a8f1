"""The GitHub Action: its schema, and its steps in bash as a runner executes them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli_forkserver import Forkserver
from command_on_path import command_on_path

yaml = pytest.importorskip("yaml", reason="needs PyYAML (extra dev)")
ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
SETTINGS = (
    "framework=null\nscript=step=0.002,jitter=0.01\nbatch_sizes=8\nnetworks=little-cnn\n"
    "ceiling=false\nforward=false\nrepeats=3\nsteps=12\nseconds=0.05\n"
)


@dataclass(frozen=True)
class Step:
    """What a step did."""

    code: int
    stdout: str
    stderr: str
    outputs: dict[str, str]
    summary: str


@pytest.fixture
def workspace(tmp_path: Path, forkserver: Forkserver) -> Iterator[Path]:
    """A runner's workspace with `cubemesh` on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    with command_on_path(folder, forkserver):
        yield tmp_path


@pytest.fixture
def run_step(workspace: Path) -> Callable[..., Step]:
    """Executes one step with the inputs given, the others at their default."""

    def run(index: int, **inputs: str) -> Step:
        step = ACTION["runs"]["steps"][index]
        values = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
        values |= {name.replace("_", "-"): value for name, value in inputs.items()}
        output, summary = workspace / "output", workspace / "summary"
        for path in (output, summary):
            path.write_text("")
        own = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: values[m[1]], text)
            for name, text in step.get("env", {}).items()
        }
        assert not [name for name, text in own.items() if "${{" in text]
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=workspace,
            env={
                **os.environ,
                **own,
                "PATH": f"{workspace / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT / "src"),
                "GITHUB_ACTION_PATH": str(ROOT),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(summary),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        return Step(done.returncode, done.stdout, done.stderr, outputs, summary.read_text())

    return run


def test_the_file_is_valid_by_the_schema_of_actions():
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema (extra dev)")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*command, "vendor.github-actions", str(ROOT / "action.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_expression_is_expanded_inside_a_script():
    """Inputs arrive as environment variables: a script cannot be extended by an input."""
    assert [s["name"] for s in ACTION["runs"]["steps"] if "${{" in s["run"]] == []


def test_every_input_is_read():
    text = json.dumps(ACTION["runs"])
    assert [name for name in ACTION["inputs"] if f"inputs.{name} " not in text] == []
    read = set(re.findall(r"steps\.measure\.outputs\.([\w-]+)", json.dumps(ACTION["outputs"])))
    assert read == {"verdict", "exit-code", "store", "report"}


def test_the_install_step_installs_the_action_with_its_extras(run_step, workspace):
    python = workspace / "bin" / "python3"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    done = run_step(0, extras="jax,views")
    assert done.stdout.split("\n")[:-1] == ["-m", "pip", "install", f"{ROOT}[jax,views]"]
    assert run_step(0, extras="").stdout.split("\n")[-2] == str(ROOT)


def test_a_first_run_writes_a_store_that_later_runs_compare_with(run_step, workspace):
    first = run_step(
        1, experiment="minibatch", settings=SETTINGS, store="base.sqlite", baseline="none.sqlite"
    )
    assert first.code == 0, first.stdout + first.stderr
    assert first.outputs == {
        "verdict": "no-baseline",
        "exit-code": "0",
        "store": "base.sqlite",
        "report": "base.xml",
    }
    assert "::notice title=cubemesh::No baseline" in first.stdout
    assert (workspace / "base.sqlite").exists()

    common = {"experiment": "minibatch", "settings": SETTINGS, "baseline": "base.sqlite"}
    same = run_step(1, **common, store="same.sqlite", fail_below="0.5")
    assert same.code == 0, same.stdout + same.stderr
    assert same.outputs["verdict"] == "passed"
    assert same.summary.startswith("### cubemesh: passed\n\n```\n")
    assert "not significantly below 0.5." in same.summary

    breached = run_step(1, **common, store="breached.sqlite", fail_below="1.5")
    assert breached.code == 99
    assert breached.outputs == {
        "verdict": "regression",
        "exit-code": "99",
        "store": "breached.sqlite",
        "report": "breached.xml",
    }
    assert "Threshold breached" in breached.summary
    assert re.search("::error title=cubemesh::regression: .*Threshold breached", breached.stdout)

    again = run_step(1, **common, store="same.sqlite")
    assert again.code == 2
    assert "same.sqlite exists" in again.stdout

    other = run_step(1, **common | {"settings": SETTINGS + "seed=1"}, store="other.sqlite")
    assert (other.code, other.outputs["verdict"]) == (1, "failed")
    assert "Not in the baseline: little-cnn, batch size 8." in other.summary


def test_a_missed_target_is_no_regression(run_step):
    settings = "framework=null\ndevices=1\nepochs=3\nrepeats=3\nscript=accuracy=0.1:0.9,step=0.002"
    common = {"experiment": "time-to-accuracy", "settings": settings}
    reached = run_step(1, **common, store="base.sqlite")
    assert (reached.code, reached.outputs["verdict"]) == (0, "no-baseline"), reached.stdout

    common["settings"] += "\ntarget_accuracy=0.95"
    for baseline, fail_below, verdict in (
        ("", "1", "target-missed"),
        ("base.sqlite", "0.5", "target-missed"),
        ("base.sqlite", "1.5", "regression"),
    ):
        store = f"missed-{len(baseline)}-{fail_below}.sqlite"
        missed = run_step(1, **common, baseline=baseline, fail_below=fail_below, store=store)
        assert (missed.code, missed.outputs["verdict"]) == (99, verdict), missed.stdout
        assert re.search(f"::error title=cubemesh::{verdict}: .*95", missed.stdout)
        assert missed.summary.count("95") >= 2


def test_wrong_settings_fail_with_the_message(run_step):
    done = run_step(1, experiment="minibatch", settings="netwrok=x", store="s.sqlite")
    assert (done.code, done.outputs["verdict"]) == (2, "failed")
    assert "network" in done.summary
