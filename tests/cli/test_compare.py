"""Comparing as a user does it: alternating runs, stored runs, and the exit code for CI."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cubemesh.cli import app
from cubemesh.errors import UsageError

pytestmark = pytest.mark.usefixtures("forked_servers")

SCRIPT = "script=step=0.01,jitter=0.02"
RUN = (
    *("run", "minibatch", "--quick", "--set", "framework=null", "--set", SCRIPT),
    *("--set", "ceiling=false", "--set", "forward=false", "--set", "batch_sizes=8"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs each at minibatch 8, and at 8 of a script that takes 6 % longer."""
    path = tmp_path_factory.mktemp("compare") / "s.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(path.parent))  # locks of its own, as tests have
        for script in (SCRIPT, "script=step=0.0106,jitter=0.02"):
            settings = ("--set", script, "--set", "repeats=3")
            done = cubemesh(*RUN[:5], *RUN[7:], *settings, store=path)
            assert done.exit_code == 0, done.exception
    return path


def cubemesh(*arguments: str, store: Path) -> Any:
    """Run the command as a user would, in this process; its workers have their own."""
    return CliRunner().invoke(app, [*arguments, "--store", str(store)])


@pytest.mark.parametrize(("threshold", "code"), [("0.5", 0), ("0.99", 99)])
def test_a_run_against_a_slower_program_breaches_a_threshold(tmp_path, threshold, code):
    path = tmp_path / "s.sqlite"
    slower = ("--against", "script=step=0.0106,jitter=0.02", "--fail-below", threshold)
    done = cubemesh(*RUN, *slower, "--json", store=path)
    assert done.exit_code == code, done.stderr
    output = json.loads(done.stdout)
    (record,) = output["records"]
    assert record["comparison"]["verdict"] == "slower"
    assert record["comparison"]["value"] == pytest.approx(1 / 1.06, rel=0.02)
    assert record["figures"]["throughput_ratio"]["value"] == record["comparison"]["value"]
    assert record["spec"]["against"]["program"]["script"].startswith("step=0.0106")
    assert record["step_s"]["median"] == pytest.approx(0.01, rel=0.02), "figures are A's"
    assert output["answer"]["findings"][0]["value"] == record["comparison"]["value"]
    shown = cubemesh("results", record["run_id"][:8], store=path).stdout
    assert "script=step=0.0106" in shown
    assert "slower" in shown


def test_stored_runs_are_compared(store):
    a, b = (f"script=step={s}" for s in ("0.01", "0.0106"))
    runs = json.loads(cubemesh("results", "--json", store=store).stdout)["records"]
    spec = {r["spec"]["program"]["script"]: r["spec_id"] for r in runs}
    first, second = spec["step=0.01,jitter=0.02"], spec["step=0.0106,jitter=0.02"]
    done = cubemesh("compare", first, second, "--json", store=store)
    assert done.exit_code == 0, done.stderr
    output = json.loads(done.stdout)
    assert (output["schema"], output["kind"]) == (1, "comparison")
    assert len(output["a"]["run_ids"]) == len(output["b"]["run_ids"]) == 3
    assert output["ratio"]["value"] == pytest.approx(1 / 1.06, rel=0.03)
    assert {d["what"] for d in output["differences"]} >= {"script"}
    assert output["ratio"]["low"] < output["ratio"]["value"] < output["ratio"]["high"]
    text = cubemesh("compare", first, second, "--fail-below", "0.2", store=store)
    assert text.exit_code == 0
    assert a.removeprefix("script=") in text.stdout
    assert b.removeprefix("script=") in text.stdout


def test_single_runs_differ_only_by_a_stored_spread(store, tmp_path):
    alone = tmp_path / "alone.sqlite"
    assert cubemesh(*RUN, store=alone).exit_code == 0
    run = json.loads(cubemesh("results", "--json", store=alone).stdout)["records"][0]["run_id"]
    runs = json.loads(cubemesh("results", "--json", store=store).stdout)["records"]
    repeats = [r["run_id"] for r in runs[:2]]
    known = cubemesh("compare", *repeats, "--json", store=store)
    assert "3 stored runs" in json.loads(known.stdout)["ratio"]["method"]
    unknown = cubemesh(
        "compare", run, "framework=null,batch_per_device=16", "--store-b", str(store), store=alone
    )
    assert isinstance(unknown.exception, UsageError)
    assert "batch_per_device=16" in str(unknown.exception)
    other = tmp_path / "other.sqlite"
    again = cubemesh(*RUN, "--set", "seed=1", store=other)
    assert again.exit_code == 0, again.stderr
    done = cubemesh(
        *("compare", run, "network=little-cnn", "--store-b", str(other)),
        *("--fail-below", "0.9"),
        store=alone,
    )
    assert done.exit_code == 1
    assert "repeats=3" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("compare", "network=little-cnn", "network=little-cnn"), "script"),
        (("compare", "abcd", "abce"), "abcd"),
        (("compare", "ab", "abce"), "'ab'"),
        (("compare", "netwrok=x", "abce"), "network"),
        ((*RUN, "--fail-below", "0.9"), "--against"),
        ((*RUN, "--against", "steps=3"), "steps=3"),
        ((*RUN, "--against", "device=cuda"), "cubemesh compare A B"),
        ((*RUN, "--against", "pinning=compact"), "pinning=compact"),
        ((*RUN, "--against", "framework=pytorch"), "repeats=3"),
        ((*RUN, "--against", "presision=fp64"), "precision"),
        ((*RUN, "--against", "network"), "key=value"),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(arguments, named, store):
    done = CliRunner().invoke(app, [*arguments, "--store", str(store)])
    assert isinstance(done.exception, UsageError)
    assert named in str(done.exception)


def test_a_thread_count_that_the_framework_cannot_change_is_an_outcome(tmp_path):
    done = cubemesh(*RUN, "--against", "threads=7", "--json", store=tmp_path / "s.sqlite")
    (record,) = json.loads(done.stdout)["records"]
    assert record["outcome"] == "unsupported"
    assert "thread" in record["outcome_detail"]["message"]
    assert record["comparison"] is None
