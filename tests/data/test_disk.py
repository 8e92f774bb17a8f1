"""Files are read and written on their disks, block by block, and leave nothing behind."""

import mmap
import os
import re
import threading

import pytest

from cubemesh.data import disk
from cubemesh.data.mounts import Mount
from cubemesh.errors import UsageError
from cubemesh.schema.work import Ceiling

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


def test_a_file_that_does_not_fit_is_refused_before_it_is_written(tmp_path, monkeypatch):
    def never(file, data):
        raise AssertionError("nothing may be written")

    monkeypatch.setattr(os, "write", never)
    with pytest.raises(UsageError, match="do not fit"):
        disk.DiskRead(str(tmp_path), 1 << 60)


@pytest.mark.parametrize("direct", [True, False])
def test_every_block_is_overwritten_with_another(tmp_path, monkeypatch, direct):
    if not direct:
        monkeypatch.setattr(disk, "_read_directly", lambda file, buffer: False)
    program = disk.DiskWrite(str(tmp_path), 2 * disk.BLOCK_BYTES)
    file = os.dup(program._file)
    page = mmap.mmap(-1, 4096)  # aligned, as O_DIRECT asks

    def begin(offset):
        assert os.preadv(file, [page], offset) == 4096
        return page[:]

    before = begin(0), begin(disk.BLOCK_BYTES)
    for _ in range(3):
        program.call()
    after = begin(0), begin(disk.BLOCK_BYTES)
    assert len({*before, *after}) == 4
    assert after[0][:8] == (3).to_bytes(8, "little")
    assert os.fstat(file).st_size == 2 * disk.BLOCK_BYTES
    assert program.direct or "RWF_DSYNC" in program.what
    program.close()
    os.close(file)
    assert list(tmp_path.iterdir()) == []


def made(tmp_path, operation, folders=1):
    names = [str(tmp_path / f"disk{n}") for n in range(folders)]
    for name in names:
        os.mkdir(name)
    first, *others = names
    work = Ceiling(
        operation=operation, folder=first, other_folders=tuple(others), size=disk.BLOCK_BYTES
    )
    return disk.build(work)


def test_mixed_reads_and_writes_as_many_blocks(tmp_path, monkeypatch):
    count = {"call": 0}
    lock = threading.Lock()

    def counted(call):
        def run(self):
            call(self)
            with lock:
                count[type(self).__name__] = count.get(type(self).__name__, 0) + 1

        return run

    for kind in (disk.DiskRead, disk.DiskWrite):
        monkeypatch.setattr(kind, "call", counted(kind.call))
    program = made(tmp_path, "disk_mixed")
    assert program.work_per_call == 2 * disk.BLOCK_BYTES
    for _ in range(5):
        program.call()
    program.synchronize()
    assert (count["DiskRead"], count["DiskWrite"]) == (5, 5)
    assert "one stream reads and one writes" in program.what
    program.close()


def test_several_disks_share_the_blocks_and_a_stopped_one_stops_no_other(tmp_path, monkeypatch):
    program = made(tmp_path, "disk_read", folders=2)
    slow, fast = program._groups[0]
    release, read = threading.Event(), []
    monkeypatch.setattr(slow, "call", release.wait)
    monkeypatch.setattr(fast, "call", lambda: read.append(1))
    for _ in range(20):
        program.call()
    release.set()
    program.synchronize()
    assert len(read) >= 15, "the slow disk holds one block and the queue at most four"
    assert program.work_per_call == disk.BLOCK_BYTES
    assert "2 folders on one file system at once" in program.what
    program.close()
    assert not any(thread.is_alive() for thread in program._threads)


def test_an_error_of_a_disk_is_raised_when_it_is_waited_for(tmp_path, monkeypatch):
    program = made(tmp_path, "disk_write", folders=2)

    def fail():
        raise OSError(5, "Input/output error")

    for stream in program._groups[0]:
        monkeypatch.setattr(stream, "call", fail)
    program.call()
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            program.synchronize()
    with pytest.raises(OSError, match="Input/output"):
        program.call()
    program.close()


def test_files_of_one_file_system_share_its_free_space(tmp_path, monkeypatch):
    class Usage:
        free = 64 * disk.BLOCK_BYTES

    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Usage)
    assert disk._blocks(str(tmp_path), None, 1) == 16
    assert disk._blocks(str(tmp_path), None, 4) == 4
    assert disk._blocks(str(tmp_path), 16 * disk.BLOCK_BYTES, 4) == 16
    with pytest.raises(UsageError, match="4 files"):
        disk._blocks(str(tmp_path), 17 * disk.BLOCK_BYTES, 4)
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    folders = [str(one), str(other)]
    assert disk._files_of_file_systems(folders, 2) == dict.fromkeys(folders, 4)
