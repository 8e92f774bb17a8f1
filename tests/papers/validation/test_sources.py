"""Machines of published runs, their processors and peer access."""

import pytest

from cubemesh.forecast.styles import STYLES
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.papers.validation.rows import Row, machine, rows


def row_of(system: str, source: str = "Lambda deeplearning-benchmark v1") -> Row:
    found = [row for row in rows()[0] if row.figure.system == system]
    return next(row for row in found if row.figure.source.startswith(source))


@pytest.mark.parametrize(
    ("system", "reached", "host"),
    [
        ("8x A100 80GB SXM4", False, "epyc-7742"),
        ("2x A100 80GB PCIe", False, "epyc-7742"),
        ("2x RTX A6000", False, "epyc-7742"),
        ("2x RTX 4090", False, ""),
        ("LambdaCloud 8xV100 16GB", False, ""),
        ("2x RTX 6000 Ada", False, ""),
        ("4x RTX 6000 Ada", True, None),
        ("8x H100 80GB SXM5", True, None),
        ("2x H100 80GB PCIe Gen5", True, None),
    ],
)
def test_runs_with_peer_access_off_are_known_by_system(
    system: str, reached: bool, host: str | None
) -> None:
    row = row_of(system)
    own = load_system(row.machine).host_device
    assert (row.peer_access, row.system.host_device) == (reached, own if host is None else host)


def test_other_sources_have_peer_access() -> None:
    others = [row for row in rows()[0] if not row.figure.source.startswith("Lambda")]
    assert len(others) > 100
    assert all(row.peer_access for row in others)


def test_boards_of_2020_have_peer_access_unless_they_are_geforce() -> None:
    older = [row for row in rows()[0] if row.figure.source.endswith("v0 (2020)")]
    without = {row.figure.system for row in older if not row.peer_access}
    assert without == {"RTX 2080Ti", "RTX 3080", "RTX 3090"}
    assert {row.figure.system for row in older} > without


def test_every_style_is_described() -> None:
    styles = {row.style for row in rows()[0]}
    assert styles - {""} <= STYLES.keys()
    assert all(row.style for row in rows()[0] if row.given)


@pytest.mark.parametrize(
    ("source", "note", "style"),
    [
        ("TensorFlow benchmarks", "parameter_server/cpu", "tensorflow-parameter-server"),
        ("TensorFlow benchmarks", "replicated NCCL", "tensorflow-replicated-nccl"),
        ("TensorFlow benchmarks", "replicated w/o NCCL/gpu", "tensorflow-replicated"),
        ("TensorFlow benchmarks", "distributed_replicated", "tensorflow-servers"),
        ("Dell HPC Innovation Lab (Oct 2016) Fig 3", "", "mxnet-device"),
    ],
)
def test_the_style_of_a_table_follows_from_framework_and_note(
    source: str, note: str, style: str
) -> None:
    found = {
        row.style
        for row in rows()[0]
        if row.figure.source.startswith(source) and note in row.figure.note
    }
    assert found == {style}


def test_images_that_the_host_decodes_are_an_unknown_input() -> None:
    read = [row for row in rows()[0] if "real" in row.figure.note.casefold()]
    assert len(read) == 67
    assert not any(row.given for row in read)


def test_a_row_without_peer_access_is_forecast_without_it() -> None:
    row = row_of("2x A100 80GB PCIe")
    request = row.request()
    assert machine(row.figure) == "dual-root-pcie4"
    assert (request.peer_access, request.system.host_device) == (False, "epyc-7742")
