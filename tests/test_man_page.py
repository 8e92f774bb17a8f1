"""The manual page: written from the command line, up to date, accepted by man and mandoc."""

import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer

import command_tree
from cubemesh.cli import app

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "cubemesh.1"


@pytest.fixture(scope="module")
def made() -> dict:
    return runpy.run_path(str(ROOT / "docs" / "site" / "man_page.py"))


def test_the_page_is_up_to_date(made):
    command_tree.forget()  # click stores the names of --help as the first caller had them
    assert PAGE.read_text() == made["man_page"](), "run `make man`"


def test_every_verb_and_option_is_in_the_page():
    text = PAGE.read_text().replace("\\-", "-")
    for verb in typer.main.get_command(app).commands.values():
        assert f'.SS "cubemesh {verb.name}"' in text
        assert [o for p in verb.params for o in p.opts if o[:2] == "--" and o not in text] == []


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (".set", "\\&.set"),
        ("a-b\\c", "a\\-b\\ec"),
        ("1 × 2", "1 \\[u00D7] 2"),
        ("two\n lines", "two lines"),
        (None, ""),
    ],
)
def test_special_characters_are_escaped(made, text, escaped):
    assert made["escape"](text) == escaped


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_it_without_a_warning():
    done = subprocess.run(
        ["man", "--warnings", "-l", "-P", "cat", str(PAGE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "command not found" in done.stderr or "No such file" in done.stderr:
        pytest.skip(f"man cannot format a page here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "--fail-below" in done.stdout


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_finds_no_fault():
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", str(PAGE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_wheel_installs_it():
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    shared = hatch["targets"]["wheel"]["shared-data"]
    assert shared == {"docs/cubemesh.1": "share/man/man1/cubemesh.1"}
