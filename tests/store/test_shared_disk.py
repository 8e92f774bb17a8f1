"""A store on a file system of several hosts: its journal, and its one writer."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cubemesh.errors import BusyError
from cubemesh.store import Store, shared_disk
from cubemesh.store.shared_disk import file_system, is_shared

LINE = "36 35 98:0 / {point} rw,noatime master:1 - {kind} source rw,errors=continue"


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """Writes a mountinfo of (mount point, type)."""

    def write(*pairs):
        lines = [LINE.format(point=point, kind=kind) for point, kind in pairs]
        made = tmp_path / "mountinfo"
        made.write_text("\n".join(lines))
        monkeypatch.setattr(shared_disk, "MOUNTS", made)
        return made

    return write


def journal(path: Path) -> str:
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute("pragma journal_mode").fetchone()[0]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((kind, "delete") for kind in ("nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "lustre")),
        *((kind, "wal") for kind in ("ext4", "xfs", "tmpfs", "overlay", "fuseblk")),
    ],
)
def test_the_journal_follows_the_file_system(path, saving, mounts, kind, mode):
    mounts(("/", "ext4"), (path.parent, kind))
    with Store.open(str(path)) as store:
        store.save(saving.make_record())
        assert journal(path) == mode
        with store._database.read() as connection:
            synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar()
        assert synchronous == (2 if mode == "wal" else 3)
        assert path.with_name("results.sqlite.writer").exists() == (mode == "delete")
    assert not path.with_name("results.sqlite.writer").exists()


def test_a_store_in_wal_mode_is_switched_when_it_has_moved(path, saving, mounts):
    record = saving.make_record()
    with Store.open(str(path)) as store:
        store.save(record)
    assert journal(path) == "wal"
    mounts(("/", "nfs4"))
    with Store.open(str(path)) as store:
        assert store.records() == [record]
    assert journal(path) == "delete"


def test_the_longest_mount_point_counts_and_the_last_at_one_place(tmp_path, mounts):
    inner = tmp_path / "a b"
    inner.mkdir()
    escaped = str(inner).replace(" ", "\\040")
    mounts(("/", "ext4"), (escaped, "xfs"), (escaped, "nfs4"), (tmp_path, "ext4"))
    assert file_system(inner) == "nfs4"
    assert file_system(tmp_path) == "ext4"
    (tmp_path / "link").symlink_to(inner)
    assert is_shared(tmp_path / "link" / "results.sqlite")
    mounts()
    assert file_system(inner) == ""


def test_a_second_writer_is_refused_and_readers_are_not(path, saving, mounts):
    mounts(("/", "nfs4"))
    with Store.open(str(path)) as store:
        store.save(saving.make_record())
        with pytest.raises(BusyError, match="postgresql"):
            Store.open(str(path), busy_timeout_s=0.1)
        with Store.open(str(path), read_only=True) as reader:
            assert len(reader.records()) == 1
    Store.open(str(path)).close()


def test_the_lock_of_a_killed_process_is_taken_over(path, mounts):
    made = mounts(("/", "nfs4"))
    script = (
        "import pathlib, signal, sys\n"
        "from cubemesh.store import Store, shared_disk\n"
        "shared_disk.MOUNTS = pathlib.Path(sys.argv[1])\n"
        "store = Store.open(sys.argv[2])\n"
        "print('open', flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, "-c", script, str(made), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.raises(BusyError, match=rf"process {other.pid} "):
            Store.open(str(path), busy_timeout_s=0.1)
        other.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # leaves a zombie
        Store.open(str(path), busy_timeout_s=0.1).close()


def test_the_lock_of_another_host_is_left_alone(path, mounts):
    mounts(("/", "nfs4"))
    lock = path.with_name("results.sqlite.writer")
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": 0}))
    with pytest.raises(BusyError, match="elsewhere") as refused:
        Store.open(str(path), busy_timeout_s=0.1)
    assert f"remove {lock} by hand" in str(refused.value)
    assert lock.exists()
