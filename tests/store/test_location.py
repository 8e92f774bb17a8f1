"""Location of the store: as the user names it, else in the data folder."""

import os
from pathlib import Path

import pytest

from cubemesh.errors import StoreError, UsageError
from cubemesh.store import Store
from cubemesh.store.location import default_path, locate


def test_the_default_lies_in_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert locate(None).path == tmp_path / "data" / "cubemesh" / "results.sqlite"
    with Store.open() as store:
        assert store.name == str(tmp_path / "data" / "cubemesh" / "results.sqlite")
    assert Path(store.name).exists()


@pytest.mark.parametrize("unusable", ["", "relative/folder"])
def test_a_data_folder_that_is_not_absolute_does_not_count(monkeypatch, tmp_path, unusable):
    monkeypatch.setenv("XDG_DATA_HOME", unusable)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local/share/cubemesh/results.sqlite"


def test_paths_and_urls_name_the_same_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / "s.sqlite"
    for given in (
        "s.sqlite",
        "~/s.sqlite",
        str(expected),
        "sqlite:///s.sqlite",
        f"sqlite:///{expected}",
    ):
        assert locate(given).path == expected


def test_names_with_odd_letters_work_for_writing_and_reading(tmp_path, saving):
    path = tmp_path / "größe 100%?#" / "a b.sqlite"
    with Store.open(str(path)) as store:
        store.save(saving.make_record())
    with Store.open(str(path), read_only=True) as store:
        assert len(store.records()) == 1
    assert path.exists()


def test_a_server_is_named_without_its_password():
    place = locate("postgresql+psycopg://me:secret@host/results")
    assert place.path is None
    assert place.name == "postgresql+psycopg://me:***@host/results"


@pytest.mark.parametrize("given", ["", "  ", "://x", "what ever://x"])
def test_what_is_no_location_is_wrong_use(given):
    with pytest.raises(UsageError, match="SQLAlchemy URL"):
        locate(given)


def test_a_home_that_does_not_exist_is_wrong_use():
    with pytest.raises(UsageError, match="home folder"):
        locate("~nobody-of-this-name/s.sqlite")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_not_a_regular_file_is_not_waited_for(tmp_path, make):
    make(tmp_path / "s.sqlite")
    with pytest.raises(StoreError, match="not a regular file"):
        locate(str(tmp_path / "s.sqlite"))
