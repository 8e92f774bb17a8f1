"""Tables GPU × GPU, findings, and the links that are named as slow."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.experiments.ceilings.links import link_findings, link_tables, slow_links
from cubemesh.schema import Ceiling, LinkRate, RunSpec
from cubemesh.schema.collective import HOST

GPUS = ("cuda:0", "cuda:1", "cuda:2")


def rate(name, source, target, value, unit="B/s"):
    return LinkRate(name=name, source=source, target=target, value=value, unit=unit)


@pytest.fixture
def record(record_of):
    def make(*rates, operation="links"):
        bare = record_of(RunSpec(work=Ceiling(operation=operation)))
        return dataclasses.replace(bare, links=rates, figures={})

    return make


def pairs(name, value, unit="B/s"):
    return [rate(name, a, b, value, unit) for a in GPUS for b in GPUS if a != b]


def table(record, title):
    (found,) = (t for t in link_tables([record]) if title in t.title)
    return found


def test_a_read_is_in_the_row_of_the_reader_and_a_write_in_that_of_the_writer(record):
    measured = record(
        rate("read", "cuda:1", "cuda:0", 10e9),
        rate("read", "cuda:0", "cuda:1", 20e9),
        rate("write", "cuda:0", "cuda:1", 30e9),
        rate("write", "cuda:1", "cuda:0", 40e9),
        rate("both", "cuda:0", "cuda:1", 50e9),
    )
    for title, first, second in (
        ("reading GPU", [None, 10e9], [20e9, None]),
        ("writing GPU", [None, 30e9], [40e9, None]),
        ("both directions", [None, 50e9], [50e9, None]),
    ):
        found = table(measured, title)
        assert [c.name for c in found.columns] == ["GPU", "GPU 0", "GPU 1"]
        assert [row[0].text for row in found.rows] == ["GPU 0", "GPU 1"]
        assert [[c.value for c in row[1:]] for row in found.rows] == [first, second]


def test_a_kernel_reaches_its_own_memory_the_hosts_and_another_gpus(record):
    measured = record(
        rate("load", "cuda:0", "cuda:0", 1.5e12),
        rate("load", HOST, "cuda:0", 50e9),
        rate("load", "cuda:10", "cuda:0", 150e9),
        rate("load_latency", "cuda:0", "cuda:0", 0.7e-6, "s"),
        rate("load_latency", HOST, "cuda:0", 1.6e-6, "s"),
        rate("load_latency", "cuda:10", "cuda:0", 1.9e-6, "s"),
        rate("atomic_add", "cuda:0", "cuda:10", 2e10, "1/s"),
        operation="peer_access",
    )
    found = table(measured, "Loads")
    assert [c.name for c in found.columns] == ["GPU", "host", "GPU 0", "GPU 10"]
    assert [c.value for c in found.rows[0][1:]] == [50e9, 1.5e12, 150e9]
    texts = {f.code: f for f in link_findings([measured])}
    assert in_order(texts["peer-access"].text, "loads 150 GB/s", "atomics 20 billion", "1.9 µs")
    assert texts["own-memory-access"].value == 0.7e-6
    assert in_order(texts["host-memory-access"].text, "loads 50 GB/s")


def test_host_copies_have_a_row_a_gpu(record):
    measured = record(
        *(rate("host_to_device", HOST, gpu, 50e9) for gpu in GPUS),
        *(rate("device_to_host", gpu, HOST, 52e9) for gpu in GPUS),
        *(rate("host_both", HOST, gpu, 80e9) for gpu in GPUS),
        *(rate("host_to_device_latency", HOST, gpu, 9e-6, "s") for gpu in GPUS),
    )
    found = table(measured, "Host and device")
    assert [row[0].text for row in found.rows] == ["GPU 0", "GPU 1", "GPU 2"]
    assert [c.value for c in found.rows[2][1:]] == [50e9, 52e9, 80e9, 9e-6]
    (finding,) = link_findings([measured])
    assert finding.code == "host-links"
    assert in_order(finding.text, "50 GB/s", "52 GB/s", "80 GB/s", "9 µs")


def test_a_slow_pair_is_named_with_the_usual_rate(record):
    rates = [r for r in pairs("write", 100e9) if (r.source, r.target) != ("cuda:2", "cuda:0")]
    measured = record(*rates, rate("write", "cuda:2", "cuda:0", 25e9), *pairs("read", 100e9))
    ((slow, usual),) = slow_links(measured.links)
    assert (slow.source, slow.target, usual) == ("cuda:2", "cuda:0", 100e9)
    (finding,) = (f for f in link_findings([measured]) if f.code == "slow-link")
    assert in_order(finding.text, "GPU 2 to GPU 0", "25 GB/s", "0.25 × the usual")
    assert "nvlink" in finding.remedy
    assert finding.value == 1


@pytest.mark.parametrize(("value", "slow"), [(90e9, 0), (79e9, 1)])
def test_of_two_directions_the_slower_is_compared_with_the_faster(value, slow):
    rates = [rate("write", "cuda:0", "cuda:1", 100e9), rate("write", "cuda:1", "cuda:0", value)]
    assert len(slow_links(rates)) == slow


def test_own_memory_the_host_and_other_gpus_are_not_compared_with_each_other():
    rates = [
        rate("load", "cuda:0", "cuda:0", 2e12),
        rate("load", HOST, "cuda:0", 50e9),
        rate("load", "cuda:1", "cuda:0", 150e9),
        rate("load_latency", "cuda:1", "cuda:0", 1e-6, "s"),
        rate("load_latency", "cuda:0", "cuda:1", 9e-6, "s"),
    ]
    assert slow_links(rates) == []


def test_page_migration_is_a_row_a_gpu_with_what_a_fault_costs(record):
    measured = record(
        rate("first_touch", "cuda:0", "cuda:0", 100e9),
        rate("fault_to_device", HOST, "cuda:0", 10e9),
        rate("fault_to_host", "cuda:0", HOST, 8e9),
        rate("prefetch_to_device", HOST, "cuda:0", 40e9),
        rate("gpu_fault", HOST, "cuda:0", 30e-6, "s"),
        operation="page_migration",
    )
    found = table(measured, "Managed memory")
    assert [c.value for c in found.rows[0][1:]] == [100e9, 10e9, 8e9, 40e9, 30e-6]
    (finding,) = link_findings([measured])
    assert in_order(finding.text, "10 GB/s", "40 GB/s", "4×", "30 µs")
    assert "Prefetch" in finding.remedy


def test_other_runs_have_no_table_of_links(record):
    assert list(link_tables([record()])) == []
    assert list(link_findings([record()])) == []
