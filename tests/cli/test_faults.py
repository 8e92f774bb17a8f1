"""Faults as a user of the command meets them: real signals, real limits, real disks."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cubemesh.cli.main import _SAVED as SAVED
from cubemesh.errors import StoreError
from cubemesh.store import Store
from patience import wait_until

pytestmark = pytest.mark.usefixtures("forked_servers")

NULL = ("--set", "framework=null", "--set", "ceiling=false")
SLOW = (
    *("run", "minibatch", *NULL, "--set", "batch_sizes=1,2,3,4"),
    *("--set", "script=real=1,step=0.01", "--set", "steps=8", "--set", "seconds=0"),
    *("--set", "windows=2", "--set", "warmup_seconds=0.1"),
)

ENDLESS = (
    *("run", "minibatch", *NULL, "--set", "script=real=1,step=0.01,per_sample=0.1"),
    *("--set", "steps=2", "--set", "seconds=0", "--set", "windows=2", "--set", "warmup_seconds=0"),
)
"""A step takes 0.1 s per sample, asleep: a batch size of 1,000 lasts longer than any test, and one
of 20 longer than it takes to see what was stored before it."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cubemesh", *arguments]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def ids(store: Path) -> list[str]:
    """The runs of a store; none before it exists."""
    if not store.exists():
        return []
    with Store.open(str(store), must_exist=True, read_only=True) as opened:
        return [r.run_id for r in opened.records()]


def wait_for_runs(store: Path, count: int) -> None:
    def stored() -> bool:
        with contextlib.suppress(StoreError):  # while it is created
            return len(ids(store)) >= count
        return False

    wait_until(stored, f"{count} runs are stored")


def workers_of(home: str) -> list[psutil.Process]:
    """Living processes that belong to runs in this cache folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CUBEMESH_RUNS_FOLDER", "").startswith(home):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def test_kill_9_in_mid_suite_then_the_same_command(
    cubemesh, forkserver, tmp_path: Path, own_folders: Path
):
    store = tmp_path / "s.sqlite"
    process = forkserver.start(*SLOW, "--store", str(store))
    wait_for_runs(store, 2)
    process.kill()
    process.communicate()
    before = ids(store)
    wait_until(lambda: not workers_of(str(own_folders)), "the workers end")
    with sqlite3.connect(store) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    report = cubemesh("report", "--store", str(store), "--output", str(tmp_path / "half.html"))
    assert report.returncode == 0, report.stderr

    output = json.loads(cubemesh(*SLOW, "--store", str(store), "--json").stdout)
    assert [r["run_id"] for r in output["records"]][: len(before)] == before
    assert [r["outcome"] for r in output["records"]] == ["ok"] * 4
    assert len(ids(store)) == 4


def test_ctrl_c_saves_finished_runs_and_exits_130(
    cubemesh, forkserver, tmp_path: Path, own_folders: Path
):
    store = tmp_path / "s.sqlite"
    process = forkserver.start(*ENDLESS, "--set", "batch_sizes=1,1000", "--store", str(store))
    wait_for_runs(store, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert SAVED in err
    assert "Traceback" not in err
    assert out == ""
    assert workers_of(str(own_folders)) == []
    again = cubemesh(*ENDLESS, "--set", "batch_sizes=1", "--store", str(store), "--json")
    assert [r["run_id"] for r in json.loads(again.stdout)["records"]] == ids(store)


def test_after_an_upgrade_the_same_command_measures_again(cubemesh, tmp_path: Path):
    arguments = (
        *("run", "minibatch", *NULL, "--set", "batch_sizes=8", "--json"),
        *("--store", str(tmp_path / "s.sqlite")),
    )
    first = json.loads(cubemesh(*arguments).stdout)
    upgraded = tmp_path / "site" / "numpy-99.0.dist-info"
    upgraded.mkdir(parents=True)
    (upgraded / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 99.0\n")
    path = os.pathsep.join(filter(None, [str(upgraded.parent), os.environ.get("PYTHONPATH")]))
    second = json.loads(run(*arguments, PYTHONPATH=path).stdout)
    assert first["records"][0]["run_id"] != second["records"][0]["run_id"]


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("segfault@3", "crashed", "SIGSEGV"),
        ("exit:7@3", "crashed", "code 7"),
        ("kill@3", "killed", "SIGKILL"),
        ("hang@3", "timed_out", "time limit of 1 s"),
        ("error@3", "crashed", "RuntimeError"),
        ("nan@3", "diverged", "nan"),
    ],
)
def test_faults_are_outcomes_with_their_reason(cubemesh, script, status, message, tmp_path: Path):
    limit_s = 1 if status == "timed_out" else 300
    result = cubemesh(
        *("run", "minibatch", *NULL, "--set", "batch_sizes=8", "--set", f"script={script}"),
        *("--set", f"time_limit_s={limit_s}", "--json", "--store", str(tmp_path / "s.sqlite")),
    )
    assert result.returncode == 1
    (record,) = json.loads(result.stdout)["records"]
    assert record["outcome"] == status
    assert message in record["outcome_detail"]["message"]
    assert len(ids(tmp_path / "s.sqlite")) == 1


def test_the_worker_reports_a_batch_above_its_memory_limit(cubemesh, tmp_path: Path):
    """The limit is below the forecast, and above the need of the smaller batch."""
    result = cubemesh(
        *("run", "minibatch", "--quick", "--set", "networks=little-cnn", "--set", "ceiling=false"),
        *(
            "--set",
            "batch_sizes=8,4096",
            "--set",
            "memory_limit_bytes=600MiB",
            "--set",
            "threads=1",
        ),
        *("--set", "steps=1", "--set", "seconds=0.1", "--set", "warmup_seconds=0.1"),
        *("--json", "--store", str(tmp_path / "s.sqlite")),
    )
    small, large = json.loads(result.stdout)["records"]
    assert small["outcome"] == "ok"
    assert large["outcome"] == "oom"
    detail = large["outcome_detail"]
    assert detail["origin"] == "worker"
    assert detail["facts"]["forecast_bytes"] > detail["facts"]["limit_bytes"] == 600 << 20
    assert 8 <= detail["facts"]["largest_batch_that_fits"] < 4096
    assert result.returncode == 0, "one point was measured, and the other is an answer"


def test_a_truncated_cifar_file_is_found_before_anything_runs(cubemesh, tmp_path: Path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    for name in names:
        with open(folder / name, "wb") as file:
            file.truncate(30_730_000)
    os.truncate(folder / "data_batch_3.bin", 30_000_000)
    store = tmp_path / "s.sqlite"
    result = cubemesh(
        *("run", "batch-accuracy", "--set", "data=cifar-10", "--set", f"data_path={folder}"),
        *("--set", "framework=null", "--store", str(store)),
    )
    assert result.returncode == 1
    assert "data_batch_3.bin" in result.stderr
    assert "30,000,000" in result.stderr
    assert "30,730,000" in result.stderr
    assert ids(store) == []


def test_a_full_disk_is_an_error_and_loses_nothing(cubemesh, small_disk: Path):
    """The suite goes on; what the disk does not hold is stored when it has room."""
    store = small_disk / "s.sqlite"
    batches = ",".join(map(str, range(1, 9)))
    result = cubemesh(
        *("run", "minibatch", *NULL, "--set", f"batch_sizes={batches}", "--store", str(store)),
        "--json",
    )
    assert result.returncode == 1
    assert "full" in result.stderr
    assert str(store) in result.stderr
    assert "Traceback" not in result.stderr
    measured = {record["run_id"] for record in json.loads(result.stdout)["records"]}
    assert len(measured) == 8
    (small_disk / "s.sqlite-shm").unlink(missing_ok=True)
    assert 1 <= len(ids(store)) < 8
    assert cubemesh("results", "--recover", "--store", str(store)).returncode == 1
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    recovered = cubemesh("results", "--recover", "--store", str(store), "--json")
    assert recovered.returncode == 0, recovered.stderr
    assert {record["run_id"] for record in json.loads(recovered.stdout)["records"]} == measured
    assert set(ids(store)) == measured


def test_a_store_deleted_in_mid_suite_has_every_run_at_the_end(
    cubemesh, forkserver, tmp_path: Path
):
    store = tmp_path / "s.sqlite"
    process = forkserver.start(
        *ENDLESS, "--set", "batch_sizes=1,2,20", "--json", "--store", str(store)
    )
    wait_for_runs(store, 2)
    store.unlink()
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "deleted" in err
    measured = [record["run_id"] for record in json.loads(out)["records"]]
    assert len(measured) == 3
    assert set(ids(store)) == set(measured)
    page = tmp_path / "page.html"
    assert cubemesh("report", "--store", str(store), "--output", str(page)).returncode == 0


def test_a_read_only_store_is_an_error_before_anything_runs(cubemesh, small_disk: Path):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = small_disk / "s.sqlite"
    result = cubemesh("run", "minibatch", *NULL, "--set", "batch_sizes=8", "--store", str(store))
    assert result.returncode == 1
    assert str(store) in result.stderr
    assert "Traceback" not in result.stderr


def test_sigterm_ends_the_workers(forkserver, tmp_path: Path, own_folders: Path):
    store = tmp_path / "s.sqlite"
    process = forkserver.start(*ENDLESS, "--set", "batch_sizes=1,1000", "--store", str(store))
    wait_for_runs(store, 1)
    process.terminate()
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert SAVED in err
    assert workers_of(str(own_folders)) == []


def test_a_limit_below_a_small_batch_is_enforced(cubemesh, tmp_path: Path):
    """Stacks that are allowed on top of the limit are no room for arrays."""
    result = cubemesh(
        *("run", "minibatch", "--quick", "--set", "ceiling=false", "--set", "batch_sizes=8"),
        *("--set", "memory_limit_bytes=20MiB", "--set", "steps=1", "--set", "seconds=0.1"),
        *("--set", "warmup_seconds=0.1", "--json", "--store", str(tmp_path / "s.sqlite")),
    )
    (record,) = json.loads(result.stdout)["records"]
    assert record["outcome"] == "oom"
    assert record["outcome_detail"]["origin"] == "worker"
    assert result.returncode == 1
