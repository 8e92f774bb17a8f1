"""The table of modules of other libraries, with two modules of this file."""

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn


def plain():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(144, 5))


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 5)

    def forward(self, x):
        return self.fc(x.flatten(1).sort(1).values[:, :64])


@pytest.fixture(scope="module")
def modules():
    """The script; tests/support has a module of its name."""
    file = Path(__file__).parents[2] / "benchmarks" / "own_modules.py"
    spec = importlib.util.spec_from_file_location("own_modules_script", file)
    sys.modules[spec.name] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules[spec.name]


def candidate(modules, name, library="torch"):
    source = f"{Path(__file__).resolve()}:{name}"
    return modules.Candidate(name=name, library=library, source=source, input_shape="3x8x8")


def test_the_table_has_layers_differences_and_reasons(modules):
    graph, other = (modules.described(candidate(modules, name)) for name in ("plain", "Sorted"))
    assert (graph.outcome, graph.layers, graph.parameters) == ("graph", 4, 112 + 725)
    assert graph.layer_types == {"convolution": 1, "activation": 1, "flatten": 1, "linear": 1}
    assert 0 <= graph.difference <= 1e-5
    assert (other.outcome, other.layers, other.difference) == ("as it is", None, None)
    assert "aten.sort" in other.reason
    fault = modules.described(candidate(modules, "missing"))
    assert fault.outcome == "fault"
    missing = modules.described_in_process(candidate(modules, "plain", "not_a_library"), 1.0)
    assert missing.outcome == "not installed"
    rows = [graph, other, fault, missing]
    lines = modules.table(rows).splitlines()
    assert len(lines) == 5
    assert "837" in lines[1]
    assert "aten.sort" in lines[2]
    assert lines[4].endswith("not installed")
    assert modules.summary(rows) == "1 of 3 modules become a graph"
    record = json.loads(json.dumps(modules.record(rows)))
    assert record["modules"][0] == asdict(graph)
    assert record["versions"]["torch"] == torch.__version__


def test_the_list_has_thirty_models_and_ten_transformers(modules):
    names = [c.name for c in modules.CANDIDATES]
    assert len(set(names)) == len(names) == 40
    of_images = [c for c in modules.CANDIDATES if c.library in ("torchvision", "timm")]
    assert len(of_images) == 30


def test_unknown_modules_are_named(modules, capsys):
    with pytest.raises(SystemExit):
        modules.main(["--only", "resnet19"])
    assert "unknown modules resnet19; known are " in capsys.readouterr().err
