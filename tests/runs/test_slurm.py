"""Job scripts as they were when they were right, and one that a real Slurm runs."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cubemesh.errors import CubemeshError, UsageError
from cubemesh.runs.slurm import Resources, script, submit
from cubemesh.store import Store

GOLDEN = Path(__file__).with_name("slurm_two_nodes.sh")
WORDS = ["run", "strong-scaling", "--set", "devices=16"]
HOSTILE = ["--set", "networks=vgg16,alexnet; rm -r x"]
ALL = Resources(
    nodes=2, gpus_per_node=8, cpus_per_task=64, time="1-12:00:00", partition="gpu", account="lab"
)


def test_the_script_of_two_nodes_is_the_golden_one():
    assert script(ALL, WORDS + HOSTILE, "/opt/python", "/opt/cube mesh") == GOLDEN.read_text()


def test_a_job_on_one_node_has_explicit_resources_and_no_hosts():
    text = script(Resources(cpus_per_task=2), ["run", "quick"], "python")
    assert text.splitlines()[-1] == "exec python -m cubemesh run quick"
    assert "#SBATCH --cpus-per-task=2\n#SBATCH --time=1:00:00\n#SBATCH --output" in text
    assert "gpus" not in text
    assert "partition" not in text


def test_every_gpu_gets_cores():
    lines = script(Resources(gpus_per_node=8), ["run", "quick"], "python").splitlines()
    assert "#SBATCH --cpus-per-task=32" in lines
    assert Resources().cpus == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("runn", "quick"), "Nearest: run."),
        (("launch", "--slurm"), "'launch'"),
        (("run", "quick", "--fst"), "--fst"),
        (("run",), "NAME"),
        ((), "run quick"),
    ],
)
def test_a_wrong_command_is_refused_before_it_is_submitted(
    cubemesh, tmp_path, monkeypatch, words, named
):
    """An sbatch that leaves a file is on the path."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\ntouch {tmp_path}/submitted\necho 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    refused = cubemesh("launch", "--slurm", "--", *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert named in refused.stderr
    assert not (tmp_path / "submitted").exists()
    done = cubemesh("launch", "--slurm", "--json", "--", "run", "quick", "--set", "devices=1")
    assert (done.returncode, json.loads(done.stdout)["job"]) == (0, 7)


INJECTED = [
    "a; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "' touch pwned '",
    "#SBATCH -x",
    "é",
]
BREAKS = ["run\ntouch pwned\n#", "run\n#SBATCH --wrap=x", "a\rb", "a\0b", "a\x1b[2J", "a\u2028b"]


def test_bash_passes_the_words_of_a_command_on_unchanged(tmp_path):
    """The script runs here, with a program that prints its arguments in place of Python."""
    python = tmp_path / "my $(touch pwned) python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$PYTHONPATH" "$@"\n')
    python.chmod(0o755)
    text = script(Resources(), ["run", *INJECTED], str(python), "/x; touch pwned")
    done = subprocess.run(
        ["bash"], input=text, capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines() == ["/x; touch pwned", "-m", "cubemesh", "run", *INJECTED]
    assert list(tmp_path.iterdir()) == [python]
    plain = script(Resources(), ["run"], "python")
    assert text.count("\n#SBATCH ") == plain.count("\n#SBATCH ")


@pytest.mark.parametrize("word", BREAKS)
def test_words_with_line_breaks_are_refused(cubemesh, word):
    for words in ([word], ["run", word]):
        with pytest.raises(UsageError):
            script(Resources(), words, "python")
        refused = cubemesh("launch", "--slurm", "--dry-run", "--", *words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert not any(mark in refused.stderr for mark in "\0\r\x1b")
    with pytest.raises(UsageError):
        script(Resources(), ["run"], "python", word)


@pytest.mark.parametrize("verb", ["", "--help", "run quick", "$(x)", "-", "a/b", "rün"])
def test_a_first_word_that_is_no_command_is_refused(cubemesh, verb):
    with pytest.raises(UsageError):
        script(Resources(), [verb], "python")
    assert cubemesh("launch", "--slurm", "--dry-run", "--", verb).returncode == 2


def test_what_sbatch_says_is_cleaned(cubemesh, tmp_path, monkeypatch):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\nprintf 'no \\033]0;title\\007 \\377' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    refused = cubemesh("launch", "--slurm", "--", "run", "quick")
    assert refused.returncode == 1
    assert "title" in refused.stderr
    assert "\x1b" not in refused.stderr
    assert "\x07" not in refused.stderr


def test_invalid_resources_are_refused():
    with pytest.raises(UsageError, match="--time ١"):
        Resources(time="١")
    with pytest.raises(UsageError, match="--time soon"):
        Resources(time="soon")
    with pytest.raises(UsageError, match="--partition"):
        Resources(partition="gpu\n#SBATCH --wrap=x")
    with pytest.raises(UsageError, match=r"--cpus-per-task 4 .*--gpus-per-node 8"):
        Resources(gpus_per_node=8, cpus_per_task=4)
    with pytest.raises(UsageError):
        script(Resources(), [], "python")
    with pytest.raises(UsageError, match="report"):
        script(Resources(nodes=2), ["report"], "python")


def test_without_sbatch_the_error_names_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CubemeshError, match="sbatch"):
        submit("#!/bin/sh\n")


@pytest.mark.slurm
def test_a_real_slurm_runs_a_launched_job(slurm, tmp_path):
    store = tmp_path / "r.db"
    words = ["run", "minibatch", "--set", "framework=null", "--set", "script=step=0.001"]
    words += ["--set", "batch_sizes=8", "--set", "ceiling=false", "--quick", "--store", str(store)]
    launched = subprocess.run(
        [
            *(sys.executable, "-m", "cubemesh", "launch", "--slurm", "--time", "5", "--json"),
            *("--cpus-per-task", "1", "--", *words),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert launched.returncode == 0, launched.stderr
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout:
        time.sleep(0.5)
    (output,) = tmp_path.glob("cubemesh-*.out")
    with Store.open(str(store)) as opened:
        (record,) = opened.records()
    assert record.ok, output.read_text()


@pytest.mark.slurm
def test_the_tasks_of_a_real_step_are_ranks(slurm):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two tasks need two processors")
    code = (
        "import os; from cubemesh.worker.launch.launcher_env import export_torch_env; "
        "export_torch_env(os.environ); "
        "print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR')))"
    )
    done = subprocess.run(
        ["srun", "--ntasks=2", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    host = socket.gethostname().partition(".")[0]
    assert sorted(done.stdout.splitlines()) == [f"0 2 2 {host}", f"1 2 2 {host}"]
