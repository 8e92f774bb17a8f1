"""docs/own_step.md: its programs run, and its commands name what it has. Its files are measured in
workers by tests/experiments/test_own_step.py."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from cubemesh.api import own_step
from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.own_step import EXPERIMENT, Settings
from cubemesh.schema import Budget
from record_fixtures import MACHINE

pytestmark = pytest.mark.usefixtures("forked_servers")

torch = pytest.importorskip("torch")
PAGE = (Path(__file__).parent.parent / "docs" / "own_step.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
FILES = {b.split("\n")[0].removeprefix("# "): b for b in BLOCKS if b.startswith("# ")}
PROGRAMS = [block for block in BLOCKS if not block.startswith("# ")]
COMMANDS = re.findall(r"^ {4}cubemesh run own-step (.*)$", PAGE, re.M)
SHORT = {"steps": 6, "seconds": 0.0, "windows": 6, "warmup_seconds": 0.0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the files of the page."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def settings(command: str) -> dict[str, str]:
    return dict(w.split("=", 1) for w in shlex.split(command) if "=" in w)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_the_page_run(
    folder: Path, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they are, but with a short budget."""

    def short(**fields: Any) -> Budget:
        return Budget(**(fields | SHORT))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads of several processes would wait for one another
    monkeypatch.setattr(own_step, "Budget", short)
    try:
        exec(program, {})
    finally:
        torch.set_num_threads(threads)
    assert "samples/s" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_name_what_it_has(folder: Path, command: str) -> None:
    given = settings(command)
    wanted = Settings(step=given["step"], samples=int(given.get("samples", 1)), ceiling=False)
    (spec,) = next(EXPERIMENT.plan(wanted, Context(machine=MACHINE)))
    assert Path(spec.work.import_from) == folder  # type: ignore[union-attr]


def test_every_argument_is_in_the_table() -> None:
    import inspect

    names = set(inspect.signature(own_step.measure).parameters) - {"step"}
    assert {n for n in names if f"`{n}`" not in PAGE} == set()
