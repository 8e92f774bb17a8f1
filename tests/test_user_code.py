"""User code: what names an object, what is found without importing, and what a digest covers."""

import sys
from pathlib import Path

import pytest

from cubemesh.errors import UsageError
from cubemesh.user_code import (
    NamedCode,
    UserCodeError,
    UserObject,
    attempt,
    digest,
    form_of,
    load,
    locate,
    locate_network,
    short_name,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file that imports another and a package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("train_here", "helper_here", "package_here", "broken_here"):
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
    package = folder / "package_here"
    assert (named.folder, named.files) == (
        str(folder),
        [package / "__init__.py", package / "steps.py"],
    )
    assert "package_here" not in sys.modules
    assert load(named) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train_here", "FILE.py:NAME"),
        ("train_here.py:not a name", "FILE.py:NAME"),
        ("train_here.py:a-b", "with the name of an object in Python"),
        ("missing.py:make", "there is no file"),
        ("missing.module:make", "there is no module missing.module"),
        ("model.onnx.3:make", "neither a file"),
    ],
)
def test_what_names_nothing_is_refused(folder: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^step={text}.*{words}"):
        locate(text, "step")


@pytest.mark.parametrize(
    ("name", "form", "short"),
    [
        ("a/model.py:Net", "python", "model.py:Net"),
        ("package.module:build", "python", "package.module:build"),
        ("model.onnx", "onnx", "model.onnx"),
        ("/a/b c/model.onnx", "onnx", "model.onnx"),
        ("a/model.onnx:Net", "python", "model.onnx:Net"),
        ("models/gpt2", "configuration", "gpt2/"),
        ("models/gpt2/", "configuration", "gpt2/"),
        ("gpt2/", "configuration", "gpt2/"),
        ("models/gpt2/config.json", "configuration", "gpt2/"),
        ("gpt2", "python", "gpt2"),
        ("a/model.py", "python", "model.py"),
    ],
)
def test_a_name_is_code_a_file_or_a_folder(name: str, form: str, short: str) -> None:
    assert (form_of(name), short_name(name), short_name(short)) == (form, short, short)


def test_a_network_without_code_is_its_file(folder: Path) -> None:
    (folder / "net.onnx").write_bytes(b"1")
    (folder / "gpt").mkdir()
    (folder / "gpt" / "config.json").write_text("{}")
    (folder / "gpt" / "other.py").write_text("")
    file, model = locate_network("net.onnx"), locate_network("./gpt")
    assert (file.name, file.short, file.folder) == (f"{folder}/net.onnx", "net.onnx", "")
    assert (model.name, model.short, model.source) == (f"{folder}/gpt/", "gpt/", f"{folder}/gpt/")
    assert locate_network("gpt/config.json") == model
    assert locate_network("train_here.py:make") == locate("train_here.py:make", "networks")
    before = digest(file), digest(model)
    (folder / "net.onnx").write_bytes(b"2")
    (folder / "gpt" / "other.py").write_text("SIZE = 1")
    assert digest(file) != before[0]
    assert digest(model) == before[1], "only the configuration"
    (folder / "gpt" / "config.json").write_text("{ }")
    assert digest(model) != before[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.onnx", "there is no file .*none.onnx"),
        ("./none", "none does not exist. A network of your own is FILE.py:NAME"),
        ("./package_here", "there is no config.json in .*package_here"),
        ("package_here/sizes.txt", "does not exist"),
        ("./helper_here.py", "Write FILE.py:NAME"),
    ],
)
def test_a_missing_file_of_a_network_is_refused(folder: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^networks={name}.*{words}"):
        locate_network(name)


def test_named_code_is_known_while_its_command_runs() -> None:
    class Thing:
        def __init__(self, source: str) -> None:
            self.source, self.name = source, short_name(source)

    known = NamedCode[Thing]("{name} is unknown here.")
    one, other = Thing("/a/x.py:N"), Thing("/b/x.py:N")
    with known.named([one]):
        assert known.find("/c/x.py:N") is one
        assert known.get("x.py:N") is one
        assert (known.is_named(one), known.is_named(other)) == (True, False)
        with pytest.raises(UsageError, match=r"have the same name, x\.py:N"), known.named([other]):
            pass
        assert known.find("x.py:N") is one
    with pytest.raises(UsageError, match=r"^x\.py:N is unknown here\.$"):
        known.get("x.py:N")


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


def test_a_digest_covers_files_elsewhere_on_the_path_but_no_installed_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, installed = folder / "libs", folder / "site-packages"
    for path in (other, installed):
        path.mkdir()
        (path / f"{path.name[:4]}_here.py").write_text("")
        monkeypatch.syspath_prepend(str(path))
    (folder / "train_here.py").write_text("import json, libs_here, site_here\n")
    named = locate("train_here.py:make", "step")
    before = digest(named)
    (installed / "site_here.py").write_text("SIZE = 1\n")
    assert digest(named) == before
    (other / "libs_here.py").write_text("SIZE = 1\n")
    assert digest(named) != before


def test_an_installed_package_is_found_by_python_and_digested_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = folder / "site-packages" / "made_here"
    package.mkdir(parents=True)
    for name in ("__init__", "net", "parts"):
        (package / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(package.parent))
    named = locate("made_here.net:Net", "networks")
    assert named.folder == ""
    before = digest(named)
    (package / "parts.py").write_text("SIZE = 1\n")
    assert digest(named) != before


def test_a_file_that_is_gone_has_no_digest(folder: Path) -> None:
    named = locate("train_here.py:make", "step")
    (folder / "train_here.py").unlink()
    assert digest(named) == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nowhere_to_be_found", "raised ModuleNotFoundError: No module named 'nowhere_to"),
        ("1 / 0", "importing it raised ZeroDivisionError: division by zero (broken_here.py, "),
        ("def f(:\n", "raised SyntaxError: invalid syntax"),
        ("import sys; sys.exit(3)", "importing it called sys.exit(3)"),
        (
            "raise OSError('a\\n\x1b[31mb.')",
            "importing it raised OSError: a \N{REPLACEMENT CHARACTER}[31mb (",
        ),
        (
            "class Odd(BaseException): pass\nraise Odd",
            "importing it raised Odd (broken_here.py, line 3)",
        ),
        (
            "import os; other = 1\ndef made(): pass",
            "there is no make in broken_here.py; it has made.",
        ),
    ],
)
def test_what_an_import_does_wrong_is_one_sentence(folder: Path, text: str, sentence: str) -> None:
    (folder / "broken_here.py").write_text(f"\n{text}\n")
    with pytest.raises(UserCodeError) as raised:
        load(locate("broken_here.py:make", "step"))
    message = str(raised.value)
    assert message.startswith("broken_here.py:make: ")
    assert sentence in message
    assert ("(broken_here.py, line " in message) == ("other" not in text)
    assert message.count("\n") == 0


@pytest.mark.parametrize("name", ["MemoryError", "KeyboardInterrupt"])
def test_refused_memory_and_an_interrupt_are_no_fault_of_the_code(folder: Path, name: str) -> None:
    file = folder / "broken_here.py"
    file.write_text(f"raise {name}\n")
    named = locate("broken_here.py:make", "step")
    with pytest.raises((MemoryError, KeyboardInterrupt)):
        load(named)
    with pytest.raises(ZeroDivisionError):  # which a framework recognizes
        attempt(named, "calling it", lambda: 1 / 0, lambda _: True)
    file.write_text("def make(): return 1\n")
    assert load(named)() == 1, "what failed to import is not in sys.modules"


def test_a_module_may_be_missing_where_another_python_imports_it(folder: Path) -> None:
    named = locate("missing.module:Net", "networks", elsewhere=True)
    assert named == UserObject(name="missing.module:Net", folder=str(folder))
