"""The lock of a checkpoint folder, with real processes that hold it and die."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cubemesh.errors import BusyError, UsageError
from cubemesh.training import folder_lock
from cubemesh.training.folder_lock import LOCK_FILE, FolderLock, holder_of
from patience import PATIENCE_S, wait_until

HOLD = """
import sys
from pathlib import Path
from cubemesh.training.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print(lock.run, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock of `tmp_path`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.run = process.stdout.readline().strip()
        yield process
        process.kill()


def test_a_second_run_is_refused_and_told_which_is_the_first(tmp_path, other):
    with pytest.raises(BusyError) as caught:
        FolderLock(tmp_path)
    for word in (other.run, f"process {other.pid} "):
        assert word in str(caught.value)
    assert holder_of(tmp_path).run == other.run
    other.send_signal(signal.SIGSTOP)
    assert holder_of(tmp_path).run == other.run, "a stopped process holds it too"
    other.kill()
    other.wait()
    assert holder_of(tmp_path) is None
    lock = FolderLock(tmp_path)
    assert holder_of(tmp_path).pid == os.getpid()
    lock.close()
    lock.close()
    assert holder_of(tmp_path) is None
    assert holder_of(tmp_path / "none") is None


def test_of_many_at_once_one_has_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "TRIES", 1)
    together, found = threading.Barrier(8), []

    def claim():
        together.wait(PATIENCE_S)
        try:
            found.append(FolderLock(tmp_path))
        except BusyError:
            found.append(None)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    (lock,) = [one for one in found if one is not None]
    assert len(found) == 8
    lock.check()
    lock.close()


def on_another_host(folder):
    """What a run on another host leaves, or has there, on a file system that shows its lock to no
    other."""
    text = {"run": "a1", "host": "node7", "kernel": "another", "pid": 7, "started_utc": "2026"}
    Path(folder, LOCK_FILE).write_text(json.dumps(text))


def test_a_living_run_on_another_host_is_noticed_without_a_common_lock(tmp_path, monkeypatch):
    on_another_host(tmp_path)
    monkeypatch.setattr(folder_lock, "WATCH_S", PATIENCE_S)
    done, times = threading.Event(), iter(range(1, 1 << 30))

    def touch():
        while not done.wait(0.01):
            os.utime(tmp_path / LOCK_FILE, ns=(next(times),) * 2)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(BusyError, match="process 7 on node7"):
            FolderLock(tmp_path)
        assert holder_of(tmp_path).run == "a1"
    finally:
        done.set()
        thread.join()


def test_a_dead_run_on_another_host_is_replaced(tmp_path, monkeypatch):
    on_another_host(tmp_path)
    monkeypatch.setattr(folder_lock, "WATCH_S", 0.0)
    lock = FolderLock(tmp_path)
    assert holder_of(tmp_path).run == lock.run
    lock.close()


def test_a_run_that_was_taken_over_notices(tmp_path):
    lock = FolderLock(tmp_path)
    lock.check()
    on_another_host(tmp_path)
    with pytest.raises(UsageError, match="a1"):
        lock.check()
    lock.close()
    assert "node7" in (tmp_path / LOCK_FILE).read_text(), "the other's name stays"


def test_a_holder_touches_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "TOUCH_S", 0.01)
    lock = FolderLock(tmp_path)
    os.utime(tmp_path / LOCK_FILE, (0, 0))
    wait_until(lambda: (tmp_path / LOCK_FILE).stat().st_mtime > 0, "the file is touched")
    lock.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 4000])
def test_a_lock_file_that_names_nobody_is_free(tmp_path, text):
    (tmp_path / LOCK_FILE).write_text(text)
    FolderLock(tmp_path).close()
    assert holder_of(tmp_path) is None


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_link_is_not_followed(tmp_path, make):
    """What it names would be emptied."""
    other = tmp_path / "other"
    other.write_text("mine")
    make(other, tmp_path / LOCK_FILE)
    for look in (FolderLock, holder_of):
        with pytest.raises(OSError, match=rf"no file of its own|{os.strerror(errno.ELOOP)}"):
            look(tmp_path)
    assert other.read_text() == "mine"


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / LOCK_FILE)
    for look in (FolderLock, holder_of):
        with pytest.raises(OSError, match="no file of its own"):
            look(tmp_path)
