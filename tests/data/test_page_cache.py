"""Files in memory are told from files on the disk, by whatever call the kernel has."""

import os

import pytest

from cubemesh.data import page_cache
from cubemesh.data.page_cache import Cached, cached

SIZE = 4 << 20


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data"
    with path.open("wb") as opened:
        opened.write(os.urandom(SIZE))
        opened.flush()
        os.fsync(opened.fileno())
    return path


def drop(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.mark.parametrize("without", [None, "_by_cachestat"])
def test_what_was_written_is_cached_until_it_is_dropped(file, without, monkeypatch):
    if without:
        monkeypatch.setattr(page_cache, without, lambda descriptor, size: None)
    before = cached([file])
    if before is None:
        pytest.skip("this kernel does not tell")
    assert before == Cached(cached_bytes=SIZE, total_bytes=SIZE)
    assert before.share == 1.0
    drop(file)
    after = cached([file])
    if after.cached_bytes == SIZE:
        pytest.skip("this file system is memory, or keeps what it is asked to drop")
    assert after.share < 0.1


def test_several_files_are_added_up(file, tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    found = cached([file, empty, file])
    assert found is None or found.total_bytes == 2 * SIZE
    assert cached([empty]) == Cached(cached_bytes=0, total_bytes=0)
    assert cached([]).share == 1.0


def test_what_the_kernel_does_not_tell_is_not_known(file, monkeypatch):
    monkeypatch.setattr(page_cache, "_by_cachestat", lambda descriptor, size: None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cached([file]) is None


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        cached([tmp_path / "gone"])
