"""`cubemesh networks --draw` and `cubemesh published --generations`, in this process."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cubemesh import list_networks
from cubemesh.cli import app
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.views.catalogue import print_networks


def typed(*arguments: str) -> str:
    """The output of a command; what it raises is raised."""
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, CubemeshError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_network_is_drawn_into_a_file(tmp_path):
    path = tmp_path / "net.svg"
    said = typed("networks", "resnet-18", "--draw", str(path))
    assert f"Wrote{path}." in "".join(said.split())  # however a long path is wrapped
    assert "layer4.1.conv2" in path.read_text()
    found = json.loads(typed("networks", "little-cnn", "--draw", str(path), "--json"))
    assert found["drawing"] == str(path)
    assert found["layers"][0]["inputs"] == ["image"]
    with pytest.raises(UsageError, match="name one"):
        typed("networks", "--draw", str(path))
    with pytest.raises(UsageError, match=r"\.svg, \.png"):
        typed("networks", "little-cnn", "--draw", "net.jpg")


def test_published_errors_of_a_network():
    found = json.loads(typed("networks", "resnet-50", "--json"))["network"]["imagenet_errors"]
    assert found[0]["top5"] == 6.71
    assert "ten crops" in found[0]["conditions"]
    assert "Published errors on ImageNet" in typed("networks", "alexnet")
    assert "Published errors" not in typed("networks", "little-cnn")


def test_generations_of_gpus():
    found = json.loads(typed("published", "resnet-50", "--generations", "--json"))
    models = [one["model"] for one in found["generations"]]
    assert models[0] == "K80"
    assert models.index("P100") < models.index("V100") < models.index("H100")
    page = typed("published", "alexnet", "--generations", "--precision", "fp32")
    assert "one source" in page
    for options, sentence in (
        (("--generations",), "name it"),
        (("resnet-50", "--generations", "--limit", "3"), "leave out"),
        (("resnet-50", "--precision", "fp33"), "fp33"),
    ):
        with pytest.raises(UsageError, match=sentence):
            typed("published", *options)


def test_figures_of_one_precision():
    found = json.loads(typed("published", "resnet-50", "--precision", "fp32", "--json"))
    assert {one["precision"].split("/")[0] for one in found["figures"]} <= {"fp32", "FP32"}


@pytest.mark.parametrize(("width", "sources"), [(80, False), (120, True)])
def test_networks_fit_a_terminal(width, sources):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=width)
    networks = list_networks()
    print_networks(console, networks)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.split()[:1] == ["little-cnn-unpadded"] for line in lines)
    assert ("(2018)" in file.getvalue()) == sources
    assert ("A wider terminal" in file.getvalue()) != sources
    if not sources:  # a heading in three lines, a line for each network, and the note
        assert len(lines) < len(networks) + 10
