"""User code: what names an object, what is found without importing, and what a digest covers."""

import sys
from pathlib import Path

import pytest

from cubemesh.errors import UsageError
from cubemesh.user_code import UserCodeError, UserObject, digest, load, locate


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file that imports another and a package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("train_here", "helper_here", "package_here"):
        for module in [m for m in sys.modules if m.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
    (tmp_path / "helper_here.py").write_text("SIZE = 3\n")
    (tmp_path / "train_here.py").write_text("import helper_here\ndef make():\n    return 7\n")
    package = tmp_path / "package_here"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("SIZE = 4\n")
    (package / "steps.py").write_text("from . import sizes\nclass Made:\n    size = sizes.SIZE\n")
    return tmp_path


def test_a_file_is_named_relative_to_the_working_folder(folder: Path) -> None:
    named = locate("train_here.py:make", "step")
    assert named == UserObject(name=f"{folder}/train_here.py:make", folder=str(folder))
    assert named.short == "train_here.py:make"
    assert "train_here" not in sys.modules, "nothing is imported"
    assert load(named)() == 7


def test_a_module_is_found_without_importing_its_package(folder: Path) -> None:
    named = locate("package_here.steps:Made.size", "step")
    assert (named.folder, named.path) == (str(folder), folder / "package_here/steps.py")
    assert "package_here" not in sys.modules
    assert load(named) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train_here", "FILE.py:NAME"),
        ("train_here.py:not a name", "FILE.py:NAME"),
        ("missing.py:make", "there is no file"),
        ("missing.module:make", "there is no module missing.module"),
        ("model.onnx.3:make", "neither a file"),
    ],
)
def test_what_names_nothing_is_refused(folder: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^step={text}.*{words}"):
        locate(text, "step")


@pytest.mark.parametrize("name", ["train_here.py:make", "package_here.steps:Made"])
def test_a_digest_covers_the_files_near_it_that_are_imported(folder: Path, name: str) -> None:
    named = locate(name, "step")
    before = digest(named)
    assert len(before) == 16
    (folder / "unrelated.py").write_text("SIZE = 5\n")
    assert digest(named) == before
    for file in ("helper_here.py", "package_here/sizes.py"):
        (folder / file).write_text("SIZE = 5\n")
    assert digest(named) != before


def test_a_file_that_is_gone_has_no_digest(folder: Path) -> None:
    named = locate("train_here.py:make", "step")
    (folder / "train_here.py").unlink()
    assert digest(named) == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nowhere_to_be_found", "raised ModuleNotFoundError: No module named 'nowhere_to"),
        ("1 / 0", "raised ZeroDivisionError: division by zero while its module was imported"),
        ("def f(:\n", "raised SyntaxError"),
        ("import sys; sys.exit(3)", "called sys.exit(3) while its module was imported"),
        ("other = 1", "does not exist"),
    ],
)
def test_what_an_import_does_wrong_is_one_sentence(folder: Path, text: str, sentence: str) -> None:
    (folder / "broken_here.py").write_text(f"\n{text}\n")
    with pytest.raises(UserCodeError) as raised:
        load(locate("broken_here.py:make", "step"))
    message = str(raised.value)
    assert message.startswith("broken_here.py:make ")
    assert sentence in message
    assert ("(broken_here.py, line 2)" in message) == ("other" not in text)
    assert message.count("\n") == 0
