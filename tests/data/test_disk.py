"""A file is read from its disk, block by block, and leaves nothing behind."""

import os
import re

import pytest

from cubemesh.data import disk
from cubemesh.data.mounts import Mount
from cubemesh.errors import UsageError

MIB = 1 << 20


@pytest.fixture
def opened(tmp_path):
    made = []

    def make(size_bytes=16 * MIB, folder=None):
        made.append(disk.DiskRead(str(folder or tmp_path), size_bytes))
        return made[-1]

    yield make
    for program in made:
        program.close()


def test_every_block_comes_in_turn_and_again(opened):
    program = opened(3 * disk.BLOCK_BYTES)
    seen = []
    for _ in range(4):
        program.call()
        seen.append(bytes(program._buffer[:64]))
    assert len(set(seen[:3])) == 3, "blocks are random, so no two begin alike"
    assert seen[3] == seen[0]
    assert program.work_per_call == disk.BLOCK_BYTES


def test_the_file_has_no_name(opened, tmp_path):
    program = opened()
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(program._file).st_nlink == 0
    assert os.fstat(program._file).st_size == 16 * MIB


def test_without_direct_reads_the_cache_is_dropped_and_looked_at(opened, monkeypatch):
    monkeypatch.setattr(disk, "_read_directly", lambda file, buffer: False)
    program = opened()
    for _ in range(4):
        program.call()
    assert "posix_fadvise" in program.what
    assert program._looked == 4


def test_pages_that_stay_in_memory_are_told(opened, monkeypatch):
    monkeypatch.setattr(disk, "_read_directly", lambda file, buffer: False)
    monkeypatch.setattr(disk, "mount_of", lambda folder: Mount("ext4", "/dev/sda1", "/"))
    program = opened()
    monkeypatch.setattr(program, "_drop", lambda: None)
    for _ in range(2):  # the first pass brings everything into memory
        program.call()
    program._looked = program._found = 0
    for _ in range(2):
        program.call()
    doubt = program.doubt()
    assert doubt is not None
    assert doubt.code == "page-cache"
    assert "2 of 2 blocks" in doubt.cause


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no tmpfs to write to")
def test_a_file_system_that_is_memory_is_told(opened):
    doubt = opened(folder="/dev/shm").doubt()
    assert doubt is not None
    assert doubt.code == "page-cache"
    assert "tmpfs" in doubt.cause


def test_a_folder_that_is_not_there_is_wrong_use(tmp_path):
    missing = str(tmp_path / "missing")
    with pytest.raises(UsageError, match=re.escape(f"folder={missing}: ")):
        disk.DiskRead(missing)


def test_a_disk_without_room_is_wrong_use(tmp_path, monkeypatch):
    def full(file, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UsageError, match="No space left"):
        disk.DiskRead(str(tmp_path), 8 * MIB)
