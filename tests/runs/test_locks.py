import os
import re
import subprocess
import sys
import time

import pytest

from cubemesh.errors import BusyError, CubemeshError
from cubemesh.runs.locks import DeviceLocks, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from cubemesh.runs.locks import DeviceLocks
locks = DeviceLocks(Path(sys.argv[1]))
locks.take("cpu")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def hold(tmp_path):
    held = []

    def start(seconds):
        script = tmp_path / "holder.py"
        script.write_text(HOLD)
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "held\n"
        held.append(process)
        return process

    yield start
    for process in held:
        process.kill()
        process.wait()
        process.stdout.close()


def taken_by(folder, device):
    """The process that has the lock, as another that wants it is told."""
    with pytest.raises(BusyError) as refused:
        DeviceLocks(folder).take(device)
    return int(re.search(r"process (\d+)", str(refused.value))[1])


def test_a_device_in_use_is_refused_and_its_holder_named(tmp_path, hold):
    holder = hold(60)
    locks = DeviceLocks(tmp_path)
    with pytest.raises(BusyError, match=rf"process {holder.pid} \(holder\.py"):
        locks.take("cpu")
    locks.take("GPU-1234")
    locks.close()


def test_a_killed_holder_holds_no_more(tmp_path, hold):
    holder = hold(60)
    holder.kill()
    holder.wait()
    locks = DeviceLocks(tmp_path)
    locks.take("cpu")
    locks.take("cpu")
    assert taken_by(tmp_path, "cpu") == os.getpid()
    locks.close()


def test_waiting_gets_the_device_when_it_is_given_back(tmp_path, hold):
    hold(0.5)
    locks, start = DeviceLocks(tmp_path), time.monotonic()
    locks.take("cpu", wait_s=30)
    assert time.monotonic() - start > 0.1
    locks.close()


def test_waiting_ends(tmp_path, hold):
    hold(60)
    with pytest.raises(BusyError, match="300 ms"):
        DeviceLocks(tmp_path).take("cpu", wait_s=0.3)


def test_closing_gives_back(tmp_path):
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    first.take("cpu")
    with pytest.raises(BusyError):
        second.take("cpu")
    first.close()
    second.take("cpu")
    assert taken_by(tmp_path, "cpu") == os.getpid()
    second.close()


def test_the_folder_is_the_users_own(tmp_path, monkeypatch):
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


def test_without_a_runtime_folder_it_is_in_tmp(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert str(lock_folder()) == f"/tmp/cubemesh-{os.getuid()}"
