"""The page "your own network": its module, its commands and its Python run as they are written."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cubemesh.cli import app
from cubemesh.frameworks.contract.own_module import DescriptionRequest
from cubemesh.runs import own_networks
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.worker.describe import describe as describe_here

pytestmark = pytest.mark.usefixtures("forked_servers")

pytest.importorskip("torch")

PAGE = (Path(__file__).parent.parent / "docs" / "own_network.md").read_text()
MODEL, SCRIPT, FLAX, KERAS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
(CONFIGURATION,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
COMMANDS = re.findall(r"^    cubemesh (.+)$", PAGE, re.M)
SIMULATED = (
    *("--set", "framework=null", "--set", "script=step=0.002,per_sample=0.0001"),
    *("--set", "batch_sizes=8", "--set", "seconds=0", "--set", "warmup_seconds=0"),
)
"""Of `run`: what is tested is the page, not this machine."""


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """A folder with the page's module, described here: a process would import PyTorch each time."""

    def describe(asked: Path, found: Path, folder: Path, python: str | None) -> str:
        plain = json.loads(asked.read_text())
        weights = plain.pop("weights", None)
        own, arrays = describe_here(from_plain(DescriptionRequest, plain))
        if weights:
            np.savez(weights, **arrays)
        found.write_text(json.dumps(to_plain(own)))
        return ""

    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "flax_model.py").write_text(FLAX)
    (tmp_path / "keras_model.py").write_text(KERAS)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(CONFIGURATION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_networks, "_run", describe)
    return tmp_path


def test_the_page_has_commands():
    assert {shlex.split(c)[0] for c in COMMANDS} == {"networks", "run", "predict", "export"}


NEEDS = {"flax_model": ("jax", "flax"), "keras_model": ("keras",), "tiny/": ("transformers",)}
"""Name in a command → the packages that it needs."""


def needed(command: str) -> list[str]:
    """The packages that a command needs and that are not installed."""
    wanted = [p for name, packages in NEEDS.items() if name in command for p in packages]
    return [package for package in wanted if importlib.util.find_spec(package) is None]


def invoke(command: str):
    """Run a command of the page; a run is simulated."""
    words = shlex.split(re.sub(r" --set framework=\w+", "", command))
    more = [*SIMULATED, "--store", "s.sqlite"] if words[0] == "run" else []
    return CliRunner().invoke(app, [*words, *more])


def test_each_command_for_pytorch_and_onnx_runs(page_folder):
    pytest.importorskip("onnx")
    for command in (c for c in COMMANDS if not any(name in c for name in NEEDS)):
        done = invoke(command)
        assert done.exit_code == 0, done.output
        assert "model.py:Net" in done.output or "net.onnx" in done.output
        if "Gated" in command:
            assert "aten.softmax" in done.output  # why it has no graph


@pytest.mark.parametrize("command", [c for c in COMMANDS if any(name in c for name in NEEDS)])
def test_each_command_for_another_library_runs(page_folder, command):
    if missing := needed(command):
        pytest.skip(f"{', '.join(missing)} is not installed")
    done = invoke(command)
    assert done.exit_code == 0, done.output
    assert any(name.rstrip("/") in done.output for name in NEEDS)
    if "networks=tiny/" not in command and "run" in command:
        assert "only modules of PyTorch are traced to layers" in done.output


def test_the_script_prints_what_the_module_has(page_folder, capsys):
    exec(compile(SCRIPT, "page", "exec"), {})
    weights, flops = map(int, capsys.readouterr().out.split())
    assert weights == 3 * 9 * 16 + 16 + 2 * 16 + 16 * 10 + 10
    assert flops == 2 * (3 * 9 * 16 * 32 * 32 + 16 * 10)


@pytest.mark.parametrize(
    "command",
    [
        "train model.py:Net --data data.py:make --batch-per-device 4 --epochs 1 "
        "--set framework=null",
        "tune model.py:Net --minutes 0.05 --batch-sizes 4 --set frameworks=null "
        "--set script=step=0.002",
    ],
)
def test_train_and_tune_take_the_network(page_folder, command):
    """Training takes data of one's own with it."""
    (page_folder / "data.py").write_text(
        "import numpy as np\nmake = [(np.zeros((3, 32, 32)), 1)] * 20\n"
    )
    words = shlex.split(command)
    done = CliRunner().invoke(
        app, [*words, "--set", "input_shape=3x32x32", "--store", "s.sqlite", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert "model.py:Net" in done.output
