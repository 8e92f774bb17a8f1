"""`cubemesh probe --machine` and `--draw`: topologies of systems."""

import io
import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cubemesh.api import probe as api
from cubemesh.cli import app
from cubemesh.errors import CubemeshError
from cubemesh.schema import Cpu, Gpu, GpuLink, Machine, Memory, Software
from cubemesh.store import Store
from cubemesh.views import terminal
from cubemesh.views.json_output import machine_json

OWN = Machine(
    hostname="node7",
    cpu=Cpu(),
    memory=Memory(),
    gpus=tuple(
        Gpu(index=i, name="NVIDIA H200", uuid=f"GPU-{i}", compute_capability="9.0")
        for i in range(2)
    ),
    gpu_links=(GpuLink(first=0, second=1, kind="nvlink", links=18),),
    software=Software(python="3.12", system="Linux"),
)


def probed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["probe", *arguments])
    if isinstance(result.exception, CubemeshError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_cluster_of_the_catalogue(golden):
    golden.check("cluster.txt", probed("--machine", "dgx1-v100-edr"))


def test_as_json_with_a_drawing(tmp_path: Path):
    file = tmp_path / "half.svg"
    options = ("--machine", "dgx1-v100", "--gpus", "0-3", "--draw", str(file), "--json")
    output = json.loads(probed(*options))
    assert [output["schema"], output["kind"], output["device"]] == [1, "system", "v100-sxm2-16gb"]
    assert output["topology"]["rings"]["count"] == 4
    assert output["topology"]["rings"]["rings"][0]["order"] == [0, 1, 2, 3]
    assert output["topology"]["bisection"]["bandwidth_bytes_per_s"] == 125e9
    assert output["drawing"] == str(file)
    assert file.read_text().startswith("<svg ")


def test_the_suffix_selects_the_format(tmp_path: Path, golden):
    def drawn(name):
        probed("--machine", "dgx1-v100", "--gpus", "0-3", "--draw", str(tmp_path / name))
        return (tmp_path / name).read_bytes()

    width, height = png_size(drawn("a.png"))
    svg = drawn("a.SVG").decode()
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert width / height == pytest.approx(float(box[1]) / float(box[2]), rel=0.01)
    assert width > float(box[1]), "at least a pixel for each unit"
    golden.check("drawing.txt", drawn("a.txt").decode())


def png_size(data: bytes) -> tuple[int, int]:
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--machine", "dgx1-v100", "--gpus", "0,9"), 2, "GPU 9"),
        (("--machine", "dgx1-v100", "--gpus", ""), 2, "0-3"),
        (("--machine", "dgx1-v100", "--gpus", "3-1"), 2, "3-1"),
        (("--machine", "dgx1-v100", "--gpus", "0-99999999"), 2, "0-99999999"),
        (("--machine", "knl-7250", "--gpus", "0"), 2, "knl-7250"),
        (("--machine", "dgx9"), 2, "dgx-2"),
        (("--gpus", "0"), 2, "--draw"),
        (("a.svg",), 2, "a.svg"),
        (("--machine", "dgx1-v100", "--draw", "a.pdf"), 2, "a.pdf.*.svg, .png, .txt"),
        (("--machine", "dgx1-v100", "--draw", "a"), 2, ".svg, .png, .txt"),
        (("--machine", "dgx1-v100", "--draw", "/nonexistent/a.svg"), 1, "/nonexistent/a.svg"),
    ],
)
def test_what_cannot_be_done_is_an_error(options: tuple[str, ...], code: int, named: str):
    with pytest.raises(CubemeshError, match=named) as refused:
        probed(*options)
    assert refused.value.exit_code == code


def test_this_machine(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(api, "probe", lambda: OWN)
    file = tmp_path / "own.svg"
    output = json.loads(probed("--draw", str(file), "--json"))
    assert output["topology"]["rings"]["bandwidth_bytes_per_s"] == 450e9
    assert "node7" in file.read_text()
    assert str(file) in probed("--draw", str(file))


def test_the_probe_has_the_rings_of_several_gpus():
    assert machine_json(OWN)["topology"]["rings"]["count"] == 18
    assert machine_json(replace(OWN, gpus=OWN.gpus[:1], gpu_links=()))["topology"] is None
    assert machine_json(replace(OWN, gpu_links=()))["topology"] is None
    console = Console(record=True, width=120, file=io.StringIO())
    terminal.print_machine(console, OWN)
    assert "18 × 25 GB/s = 450 GB/s" in console.export_text()


def test_the_stack_is_compared_with_a_file_and_with_a_store(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(api, "probe", lambda: OWN)
    newer = replace(OWN, software=Software(python="3.12", system="Linux", driver="580.1"))
    file = tmp_path / "before.json"
    file.write_text(json.dumps(machine_json(newer)))
    document = json.loads(probed("--against", str(file), "--json"))
    assert (document["kind"], document["same_hardware"]) == ("stack_comparison", True)
    assert document["differences"] == [
        {"group": "libraries", "what": "driver", "first": "580.1", "second": "none"}
    ]
    text = probed("--against", str(file))
    assert re.search(r"libraries +driver +580\.1 +none", text)
    store = str(tmp_path / "s.sqlite")
    with Store.open(store) as opened:
        opened.save_machine(replace(newer, hostname="node8"))
    assert "other hardware" in probed("--against", store)
    with Store.open(store) as opened:
        opened.save_machine(OWN)
    assert "do not differ" in probed("--against", store)
    other = replace(newer, hostname="node8").machine_id[:8]
    assert "580.1" in probed("--against", store, "--machine-id", other)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ('{"kind": "system"}', "probe --json"),
        ('{"kind": "machine", "hostname": 7}', "damaged"),
    ],
)
def test_a_file_that_is_no_probe_is_refused(content: str, words: str, tmp_path: Path):
    file = tmp_path / "p.json"
    file.write_text(content)
    with pytest.raises(CubemeshError, match=words):
        probed("--against", str(file))


def test_a_comparison_of_stacks_that_is_not_clear_is_refused(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(api, "probe", lambda: OWN)
    store = str(tmp_path / "s.sqlite")
    with Store.open(store) as opened:
        for name in ("node8", "node9"):
            opened.save_machine(replace(OWN, hostname=name))
    for options, words in (
        (("--against", store), "node9"),
        (("--against", store, "--machine-id", "zz"), "no machine 'zz'"),
        (("--against", str(tmp_path / "none.sqlite")), "none.sqlite"),
        (("--against", store, "--draw"), "--draw"),
        (("--machine-id", "a"), "--against"),
    ):
        with pytest.raises(CubemeshError, match=words):
            probed(*options)
