"""The digest of a data set changes with its files, and with nothing else."""

import os
import shutil
from pathlib import Path

import pytest

from cubemesh.data import data_digest as module
from cubemesh.data.data_digest import data_digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a/1.txt", "a/2.txt", "b/3.txt"):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return tmp_path / "data"


def rewrite(folder: Path) -> None:
    (folder / "a/1.txt").write_text("b/1.txt")


CHANGES = {
    "rewritten": rewrite,
    "longer": lambda folder: (folder / "a/1.txt").write_text("more than before"),
    "added": lambda folder: (folder / "b/4.txt").write_text("4"),
    "removed": lambda folder: (folder / "b/3.txt").unlink(),
    "renamed": lambda folder: (folder / "a/1.txt").rename(folder / "b/1.txt"),
    "replaced by a dangling link": lambda folder: (
        (folder / "a/1.txt").unlink(),
        (folder / "a/1.txt").symlink_to("nowhere"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("small_bytes", [module.SMALL_BYTES, 0], ids=["contents", "times"])
def test_another_data_set_has_another_digest(folder, monkeypatch, change, small_bytes):
    monkeypatch.setattr(module, "SMALL_BYTES", small_bytes)
    for file in folder.rglob("*.txt"):
        os.utime(file, ns=(0, 0))
    before = data_digest(str(folder))
    assert data_digest(str(folder)) == before
    CHANGES[change](folder)
    assert data_digest(str(folder)) != before


def test_links_to_folders_are_followed_and_circles_end(folder, tmp_path):
    classes = tmp_path / "classes"
    classes.mkdir()
    (classes / "a").symlink_to(folder / "a")
    before = data_digest(str(classes))
    assert before
    (folder / "a/1.txt").write_text("b/1.txt")
    assert data_digest(str(classes)) != before
    (folder / "a/back").symlink_to(classes)
    assert data_digest(str(classes)) == data_digest(str(classes)) != before


def test_a_copy_of_few_bytes_is_the_same_data(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "copied", copy_function=shutil.copyfile)
    assert data_digest(str(copied)) == data_digest(str(folder))


def test_of_many_files_all_names_count(folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_STATED", 2)
    before = data_digest(str(folder))
    (folder / "b/4.txt").write_text("4")
    assert data_digest(str(folder)) != before


def test_a_file_and_nothing(tmp_path):
    file = tmp_path / "pairs.txt"
    assert data_digest(str(file)) == ""
    file.write_text("a\tb")
    before = data_digest(str(file))
    file.write_text("a\tc")
    assert len(before) == 16
    assert data_digest(str(file)) != before
