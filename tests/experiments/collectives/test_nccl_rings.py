"""NCCL's channels and adapters in the answer, compared with the model's rings."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.experiments.collectives.nccl_rings import (
    nccl_findings,
    nccl_notes,
    nccl_tables,
)
from cubemesh.schema import Collective, NcclTopology, Placement, RunSpec
from cubemesh.schema.collective import NcclAdapter, NcclGraph, RingOrder
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.views.collectives import lines

FORWARD, BACK = ("gpu0", "gpu1", "gpu2"), ("gpu0", "gpu2", "gpu1")


def reported(orders=((FORWARD, 2),), model=((FORWARD, 1), (BACK, 1)), adapters=()):
    ring = NcclGraph(
        pattern="ring",
        orders=tuple(RingOrder(order=o, count=n) for o, n in orders),
        channel_bytes_per_s=20e9,
        inside="NVL",
    )
    tree = dataclasses.replace(ring, pattern="balanced tree")
    return NcclTopology(
        graphs=(ring, tree),
        adapters=adapters,
        model_rings=tuple(RingOrder(order=o, count=n) for o, n in model),
        model_bytes_per_s=50e9,
    )


@pytest.fixture
def record(record_of):
    def make(nccl, devices=3):
        spec = RunSpec(work=Collective(), placement=Placement(devices=devices))
        return dataclasses.replace(record_of(spec), nccl=nccl, library="nccl 2.28")

    return make


def test_rings_and_differences_are_a_finding(record):
    found = {f.code: f for f in nccl_findings([record(reported())] * 2)}
    assert in_order(
        found["nccl-rings"].text,
        *("2 rings", "20 GB/s", "NVL", "40 GB/s", "2 of 25 GB/s", "50 GB/s", "0.8 ×"),
        "gpu0 → gpu2 → gpu1",
    )
    assert found["nccl-rings"].value == 40e9
    alike = record(reported(orders=((FORWARD, 1), (BACK, 1))))
    (agreeing,) = nccl_findings([alike])
    assert "the orders agree" in agreeing.text


def test_channels_and_rings_are_a_table(record):
    (table,) = nccl_tables([record(reported())])
    rows = [[cell.text or cell.value for cell in row] for row in table.rows]
    assert rows == [
        ["NCCL, ring", "gpu0 → gpu1 → gpu2", 2.0, 20e9, 40e9, "NVL", "yes"],
        ["NCCL, balanced tree", "gpu0 → gpu1 → gpu2", 2.0, 20e9, 40e9, "NVL", "–"],
        ["model, ring", "gpu0 → gpu1 → gpu2", 1.0, 25e9, 25e9, "–", "yes"],
        ["model, ring", "gpu0 → gpu2 → gpu1", 1.0, 25e9, 25e9, "–", "no"],
    ]


def test_gpudirect_is_shown_for_each_adapter(record):
    adapters = (
        NcclAdapter(name="mlx5_0", bytes_per_s=50e9, gdr=True),
        NcclAdapter(name="eth0", gdr=False),
        NcclAdapter(name="net2"),
    )
    with_nets = record(reported(adapters=adapters))
    (found,) = (f for f in nccl_findings([with_nets]) if f.code == "gpudirect-rdma")
    assert in_order(found.text, "yes on mlx5_0", "no on eth0", "not known of net2")
    assert not found.remedy
    table = list(nccl_tables([with_nets]))[1]
    assert [row[2].text for row in table.rows] == ["yes", "no", "not known"]
    sockets = record(reported(adapters=adapters[1:2]))
    (without,) = (f for f in nccl_findings([sockets]) if f.code == "gpudirect-rdma")
    assert "peermem" in without.remedy


def test_what_is_missing_is_a_note_and_gloo_has_nothing(record):
    notes = list(nccl_notes([record(reported()), record(NcclTopology(notes=("no file.",)))]))
    assert any("no network adapter" in note for note in notes)
    assert "no file." in notes
    assert [list(f([record(None)])) for f in (nccl_findings, nccl_notes, nccl_tables)] == [[]] * 3


def test_the_report_survives_the_store_and_is_a_comment_of_the_sweep(record):
    nccl = reported(adapters=(NcclAdapter(name="x"),))
    assert from_plain(NcclTopology, to_plain(nccl)) == nccl
    assert any(line.startswith("# NCCL on 3 devices") for line in lines(record(nccl)))
