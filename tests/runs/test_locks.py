import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cubemesh.errors import BusyError, CubemeshError
from cubemesh.runs import locks as locks_module
from cubemesh.runs.executor import Executor
from cubemesh.runs.locks import DeviceLocks, lock_folder
from cubemesh.schema import Placement, RunSpec, TrainSteps
from cubemesh.store import Store

HOLD = """
import signal, sys
from pathlib import Path
from cubemesh.runs.locks import DeviceLocks
locks = DeviceLocks(Path(sys.argv[1]))
locks.take("cpu")
print("locked", flush=True)
signal.pause()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has locked the CPU until it is killed."""
    script = tmp_path / "holder.py"
    script.write_text(HOLD)
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def holder_of(folder, device):
    """The process that has the lock, as the error of another names it."""
    with pytest.raises(BusyError) as refused:
        DeviceLocks(folder).take(device)
    return int(re.search(r"process (\d+)", str(refused.value))[1])


def test_a_locked_device_is_refused_and_its_holder_named(tmp_path, holder):
    locks = DeviceLocks(tmp_path)
    with pytest.raises(BusyError, match=rf"process {holder.pid} \(holder\.py"):
        locks.take("cpu")
    locks.take("GPU-1234")
    locks.close()


def test_the_lock_of_a_killed_process_is_released(tmp_path, holder):
    holder.kill()
    holder.wait()
    locks = DeviceLocks(tmp_path)
    locks.take("cpu")
    locks.take("cpu")
    assert holder_of(tmp_path, "cpu") == os.getpid()
    locks.close()


def test_waiting_ends_when_the_device_is_released(tmp_path, holder, monkeypatch):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        holder.kill()
        holder.wait()

    monkeypatch.setattr(locks_module.time, "sleep", sleep)
    locks = DeviceLocks(tmp_path)
    said = []
    locks.take("cpu", wait_s=600, announce=said.append)
    assert len(slept) == 1
    (sentence,) = said
    assert f"process {holder.pid}" in sentence
    assert "10 min" in sentence
    assert holder_of(tmp_path, "cpu") == os.getpid()
    locks.close()


def test_waiting_ends_after_wait_s(tmp_path, holder):
    with pytest.raises(BusyError, match="300 ms"):
        DeviceLocks(tmp_path).take("cpu", wait_s=0.3)


def test_closing_releases_the_devices(tmp_path):
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    first.take("cpu")
    with pytest.raises(BusyError):
        second.take("cpu")
    first.close()
    second.take("cpu")
    assert holder_of(tmp_path, "cpu") == os.getpid()
    second.close()


def test_the_lock_folder_must_belong_to_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = lock_folder()
    assert folder == tmp_path / "cubemesh"
    assert folder.stat().st_mode & 0o777 == 0o700
    os.chmod(folder, 0o777)
    with pytest.raises(CubemeshError, match="0700"):
        lock_folder()
    folder.rmdir()
    (tmp_path / "else").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "else")
    with pytest.raises(CubemeshError):
        lock_folder()


def test_without_a_runtime_folder_locks_are_in_tmp(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert str(lock_folder()) == f"/tmp/cubemesh-{os.getuid()}"


@pytest.fixture
def cpu_in_use(own_folders):
    """The CPU is locked, as if by another run."""
    locks = DeviceLocks(lock_folder())
    locks.take("cpu")
    yield
    locks.close()


@pytest.mark.parametrize(
    "verb",
    [
        ("run", "minibatch", "--set", "batch_sizes=8", "--set", "device=cpu"),
        ("train", "little-cnn", "--set", "device=cpu"),
        ("tune", "little-cnn", "--set", "frameworks=pytorch"),
        pytest.param(
            ("collectives", "--device", "cpu"),
            marks=pytest.mark.skipif(
                len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores"
            ),
        ),
    ],
)
def test_every_measuring_verb_can_wait_for_a_device(cubemesh, cpu_in_use, tmp_path, verb):
    command = (*verb, "--store", str(tmp_path / "s.sqlite"))
    refused = cubemesh(*command)
    assert (refused.returncode, refused.stdout) == (75, "")
    assert "--wait" in refused.stderr
    waited = cubemesh(*command, "--wait", "50ms")
    assert waited.returncode == 75
    assert waited.stderr.count("50 ms") == 2, "before and after"
    assert cubemesh(*command, "--wait", "soon").returncode == 2


def test_time_budgets_do_not_include_waiting(tmp_path, holder, monkeypatch, machine):
    monkeypatch.setattr(locks_module, "lock_folder", lambda: tmp_path)

    def sleep(seconds):
        holder.kill()
        holder.wait()

    monkeypatch.setattr(locks_module.time, "sleep", sleep)
    spec = RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=1), placement=Placement(device="cpu")
    )
    with (
        Store.open(str(tmp_path / "s.sqlite")) as store,
        Executor(store, machine=machine, wait_s=600) as executor,
    ):
        before = time.monotonic()
        executor._lock_devices(spec)
        waited = executor.waited_s
        assert 0 < waited <= time.monotonic() - before


def test_a_simulated_run_needs_no_device(cubemesh, cpu_in_use, tmp_path):
    options = ("--set", "framework=null", "--set", "batch_sizes=8", "--set", "ceiling=false")
    done = cubemesh("run", "minibatch", *options, "--store", str(tmp_path / "s.sqlite"))
    assert done.returncode == 0, done.stderr


def test_what_cannot_run_here_is_reported_although_the_device_is_in_use(
    cubemesh, cpu_in_use, tmp_path
):
    options = ("--set", "devices=4096", "--set", "device=cpu", "--set", "batch_sizes=8")
    command = ("run", "minibatch", "--json", *options, "--set", "ceiling=false")
    done = cubemesh(*command, "--store", str(tmp_path / "s.sqlite"))
    (record,) = json.loads(done.stdout)["records"]
    assert (done.returncode, record["outcome"]) == (1, "unsupported")
    assert "devices=4096" in record["outcome_detail"]["message"]


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda p: p.symlink_to("/nowhere/x")])
def test_what_is_no_folder_of_locks_is_named(tmp_path, monkeypatch, make):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    make(tmp_path / "cubemesh")
    with pytest.raises(CubemeshError, match=f"{tmp_path}/cubemesh"):
        lock_folder()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda p: p.symlink_to("/nowhere/x")])
def test_what_is_no_lock_file_is_named_and_not_waited_for(tmp_path, make):
    make(tmp_path / "device-cpu.lock")
    with pytest.raises(CubemeshError, match=r"device-cpu\.lock"):
        DeviceLocks(tmp_path).take("cpu")


def test_a_holder_whose_command_is_not_utf_8(tmp_path):
    first = DeviceLocks(tmp_path)
    first.take("cpu")
    (tmp_path / "device-cpu.lock").write_bytes(b"7 \xff\xfe\n")
    with pytest.raises(BusyError, match="process 7 "):
        DeviceLocks(tmp_path).take("cpu")
    first.close()


def test_on_a_full_disk_a_device_is_locked_without_the_name_of_its_holder(small_disk):
    with open(small_disk / "filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1000))
    first = DeviceLocks(small_disk)
    first.take("cpu")
    with pytest.raises(BusyError, match="another process"):
        DeviceLocks(small_disk).take("cpu")
    first.close()
    first.take("cpu")
    first.close()
