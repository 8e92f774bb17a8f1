"""The page "your own data": its data set, its commands and its Python run as they are written."""

import functools
import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cubemesh
from cubemesh.cli import app
from cubemesh.data import open_for
from cubemesh.networks.zoo.littlecnn import little_cnn
from cubemesh.schema.own_network import OwnData

pytestmark = pytest.mark.usefixtures("forked_servers")

PAGE = (Path(__file__).parent.parent / "docs" / "own_data.md").read_text()
DATA, SCRIPT, LOADER = re.findall(r"```python\n(.*?)```", PAGE, re.S)
COMMANDS = re.findall(r"^    cubemesh (.+)$", PAGE, re.M)
SIMULATED = {"framework": "null", "batch_sizes": 8, "seconds": 0, "warmup_seconds": 0}
"""What is tested is the page, not this machine."""
PARTS = {"parts": "item-one,item,collate,own"}


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """The working folder, with the page's data set."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # no other runner's lock is in the way
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "data.py").write_text(DATA)
    return tmp_path


def test_the_page_has_commands():
    assert [shlex.split(c)[:2] for c in COMMANDS] == [
        ["run", "input-pipeline"],
        ["run", "minibatch"],
        ["train", "little-cnn"],
    ]


def test_each_command_and_the_script_run(page_folder, monkeypatch, capsys):
    for command in COMMANDS:
        more = dict(SIMULATED)
        if "train" in command:
            more = {"framework": "null"}
        elif "input-pipeline" in command:
            more |= PARTS
        settings = [w for key, value in more.items() for w in ("--set", f"{key}={value}")]
        done = CliRunner().invoke(app, [*shlex.split(command), *settings, "--store", "s.sqlite"])
        assert done.exit_code == 0, done.output
        if "minibatch" not in command:
            assert ("your data" if "input" in command else "on data.py:make") in done.output
    monkeypatch.setattr(
        cubemesh, "run", functools.partial(cubemesh.run, store="s.sqlite", **SIMULATED)
    )
    exec(compile(SCRIPT, "page", "exec"), {})
    assert "little-cnn" in capsys.readouterr().out


def test_the_loader_is_a_source(page_folder):
    pytest.importorskip("torch")
    (page_folder / "loaders.py").write_text(LOADER)
    own = OwnData(source=f"{page_folder}/loaders.py:loader", folder=str(page_folder))
    try:
        source = open_for(little_cnn(32, 10), own.name, None, "train", seed=0, own_data=own)
    finally:
        for name in ("data", "loaders"):
            sys.modules.pop(name, None)
    assert (source.samples, source.workers) == (500, 2)
