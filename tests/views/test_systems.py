"""`cubemesh probe --machine` and `--draw`, as a user meets them."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cubemesh import cli
from cubemesh.errors import CubemeshError
from cubemesh.schema import Cpu, Gpu, GpuLink, Machine, Memory, Software
from cubemesh.views import systems, terminal
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


def probed(capsys: pytest.CaptureFixture[str], monkeypatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["cubemesh", "probe", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_a_cluster_of_the_catalogue(capsys, monkeypatch):
    said = probed(capsys, monkeypatch, "--machine", "dgx1-v100-edr")
    assert "6,012 GB/s, both ways added" in said
    assert "1.28 µs over 3 switches" in said
    assert "31 first-level switches, 32 of 36 ports used" in said
    assert "6 directed rings, 6 × 25 GB/s = 150 GB/s" in said
    assert "document 002, table 1" in said


def test_as_json_with_a_drawing(capsys, monkeypatch, tmp_path: Path):
    file = tmp_path / "half.svg"
    said = json.loads(
        probed(
            *(capsys, monkeypatch, "--machine", "dgx1-v100", "--gpus", "0-3"),
            *("--draw", str(file), "--json"),
        )
    )
    assert [said["schema"], said["kind"], said["device"]] == [1, "system", "v100-sxm2-16gb"]
    assert said["topology"]["rings"]["count"] == 4
    assert said["topology"]["rings"]["rings"][0]["order"] == [0, 1, 2, 3]
    assert said["topology"]["bisection"]["bandwidth_bytes_per_s"] == 125e9
    assert said["drawing"] == str(file)
    assert file.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("machine", "gpus", "message"),
    [
        ("dgx1-v100", "0,9", "has no GPU 9"),
        ("dgx1-v100", "", "give numbers"),
        ("dgx1-v100", "3-1", "no range of GPUs"),
        ("dgx1-v100", "0-99999999", "no range of GPUs"),
        ("knl-7250", "0", "knl-7250 has no GPUs"),
        ("dgx9", None, "not a system of the catalogue"),
    ],
)
def test_what_cannot_be_meant(machine: str, gpus: str | None, message: str):
    with pytest.raises(CubemeshError, match=message):
        systems.named(machine, None, gpus)


def test_this_machine(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(systems, "probe", lambda: OWN)
    file = tmp_path / "own.svg"
    plain, show = systems.this_machine(file, None)
    assert plain["topology"]["rings"]["bandwidth_bytes_per_s"] == 450e9
    assert "node7" in file.read_text()
    console = Console(record=True, width=120, file=io.StringIO())
    show(console)
    assert str(file) in console.export_text()
    with pytest.raises(CubemeshError, match="cannot be written"):
        systems.this_machine(tmp_path / "no" / "own.svg", None)
    with pytest.raises(CubemeshError, match="give it with --draw"):
        systems.this_machine(None, "0")


def test_the_probe_tells_rings_of_several_gpus():
    plain = machine_json(OWN)
    assert plain["topology"]["rings"]["count"] == 18
    assert machine_json(replace(OWN, gpus=OWN.gpus[:1], gpu_links=()))["topology"] is None
    assert machine_json(replace(OWN, gpu_links=()))["topology"] is None
    console = Console(record=True, width=120, file=io.StringIO())
    terminal.print_machine(console, OWN)
    assert "18 × 25 GB/s = 450 GB/s" in console.export_text()
