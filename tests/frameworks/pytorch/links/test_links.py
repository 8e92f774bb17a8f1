"""Copies, peer access and page migration: refused without a GPU, measured with one and with two."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from cubemesh.experiments.ceilings.experiment import EXPERIMENT, Settings
from cubemesh.frameworks.contract.program import SupportsLinks, Unsupported
from cubemesh.frameworks.pytorch import links
from cubemesh.frameworks.pytorch.links.driver import near
from cubemesh.machines import probe
from cubemesh.runs import Executor
from cubemesh.schema import (
    Budget,
    Ceiling,
    Collective,
    LinkRate,
    Placement,
    ProgramSettings,
    RunSpec,
    Warning,
)
from cubemesh.schema.collective import HOST
from cubemesh.schema.work import LINK_OPERATIONS
from cubemesh.store import Store

SIZE = 32 << 20


@pytest.mark.parametrize("operation", LINK_OPERATIONS)
def test_a_cpu_has_no_links(operation):
    with pytest.raises(Unsupported, match="needs a GPU"):
        list(links.measure_links(Ceiling(operation=operation), ["cpu:0"], [()]))


def test_pytorch_supports_links():
    from cubemesh.frameworks import pytorch

    assert isinstance(pytorch, SupportsLinks)


def test_a_thread_runs_near_a_gpu_only_while_it_allocates():
    import os

    before = os.sched_getaffinity(0)
    with near({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    with near({100_000}):
        assert os.sched_getaffinity(0) == before
    with near(()):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def on_gpus(number):
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    reason = f"it needs {number} GPUs, and here are {here}"

    def mark(test):
        return pytest.mark.gpu(pytest.mark.skipif(here < number, reason=reason)(test))

    return mark


def measured(operation, gpus, size=SIZE):
    """(name, source, target) → value; nothing may be wrong."""
    devices = [f"cuda:{n}" for n in range(gpus)]
    work = Ceiling(operation=operation, size=size)
    found = list(links.measure_links(work, devices, [()] * gpus))
    assert [w for w in found if isinstance(w, Warning)] == []
    rates = [r for r in found if isinstance(r, LinkRate)]
    others = [u for u in found if not isinstance(u, LinkRate)]
    print(*rates, *others, sep="\n")
    assert all(r.value > 0 for r in rates)
    return {(r.name, r.source, r.target): r.value for r in rates}, others


@on_gpus(1)
def test_copies_with_the_host():
    rates, unknown = measured("links", 1)
    assert unknown == []
    assert set(rates) == {
        ("host_to_device", HOST, "cuda:0"),
        ("host_to_device_latency", HOST, "cuda:0"),
        ("device_to_host", "cuda:0", HOST),
        ("device_to_host_latency", "cuda:0", HOST),
        ("host_both", HOST, "cuda:0"),
    }
    assert 1e8 < rates["host_to_device", HOST, "cuda:0"] < 2e12
    assert 1e-7 < rates["host_to_device_latency", HOST, "cuda:0"] < 1


@on_gpus(1)
def test_loads_stores_and_atomics_of_one_gpu():
    rates, unknown = measured("peer_access", 1)
    assert unknown == []
    assert set(rates) == {
        *((name, HOST, "cuda:0") for name in ("load", "load_latency")),
        ("store", "cuda:0", HOST),
        *((name, "cuda:0", "cuda:0") for name in ("load", "store", "atomic_add", "load_latency")),
    }
    assert rates["load", "cuda:0", "cuda:0"] > rates["load", HOST, "cuda:0"]
    assert rates["load_latency", "cuda:0", "cuda:0"] > 1e-8
    assert rates["load_latency", "cuda:0", "cuda:0"] < rates["load_latency", HOST, "cuda:0"]


@on_gpus(2)
def test_copies_between_two_gpus():
    rates, _ = measured("links", 2)
    for name in ("read", "write", "copy_latency"):
        assert {key for key in rates if key[0] == name} == {
            (name, "cuda:0", "cuda:1"),
            (name, "cuda:1", "cuda:0"),
        }
    assert ("both", "cuda:0", "cuda:1") in rates


@on_gpus(2)
def test_loads_stores_and_atomics_between_two_gpus():
    rates, unknown = measured("peer_access", 2)
    if not torch.cuda.can_device_access_peer(0, 1):
        assert unknown
        pytest.skip("these GPUs have no peer access")
    for name in ("load", "store", "load_latency"):
        assert (name, "cuda:0", "cuda:1") in rates
        assert (name, "cuda:1", "cuda:0") in rates
    assert unknown or ("atomic_add", "cuda:0", "cuda:1") in rates


def run(folder, specs):
    with (
        Store.open(str(folder / "results.db")) as store,
        Executor(store, machine=probe(), runs_folder=folder / "runs") as executor,
    ):
        records = executor.run(specs)
        assert [store.record(r.run_id) for r in records] == records
    return records


def spec(operation, gpus=1):
    return RunSpec(work=Ceiling(operation=operation, size=SIZE), placement=Placement(devices=gpus))


def show(answer):
    for table in answer.tables:
        print(table.title, [column.name for column in table.columns], sep=": ")
        for row in table.rows:
            print("   ", [cell.text or cell.value for cell in row])
    for finding in answer.findings:
        print(finding.code, finding.text, finding.remedy)
    print(*answer.notes, sep="\n")


@on_gpus(1)
def test_links_are_recorded_and_answered(tmp_path):
    gpus = torch.cuda.device_count()
    convolution = RunSpec(
        work=Ceiling(operation="convolution"),
        program=ProgramSettings(precision="bf16"),
        budget=Budget(seconds=0.5),
    )
    specs = [spec("links", gpus), spec("peer_access", gpus), convolution]
    records = run(tmp_path, specs)
    for record in records:
        assert record.ok, record.outcome
        assert len(record.ranks) == 1, "one process uses all GPUs"
    answer = EXPERIMENT.answer(Settings(precisions=()), records)
    show(answer)
    codes = {finding.code for finding in answer.findings}
    assert {"host-links", "own-memory-access", "host-memory-access"} <= codes
    assert ("device-links" in codes) == (gpus > 1)
    assert "fastest-convolution" in codes


@on_gpus(1)
def test_pages_migrate_or_the_reason_is_known(tmp_path):
    (record,) = run(tmp_path, [spec("page_migration")])
    assert record.ok, record.outcome
    show(EXPERIMENT.answer(Settings(precisions=()), [record]))
    assert not [w for w in record.warnings if w.code == "wrong-results"]
    if record.unmeasured:
        pytest.skip(f"{record.unmeasured[0].what}: {record.unmeasured[0].why}")
    assert {rate.name for rate in record.links} == {
        *("first_touch", "fault_to_host", "fault_to_device"),
        *("prefetch_to_host", "prefetch_to_device", "gpu_fault", "cpu_fault"),
    }
    assert all(rate.value > 0 for rate in record.links)


@on_gpus(2)
def test_the_rings_of_nccl_are_recorded(tmp_path):
    sweep = RunSpec(
        work=Collective(sizes_bytes=(1 << 20,), warmup_iterations=1),
        placement=Placement(device="cuda", devices=2),
        budget=Budget(steps=2, windows=2, seconds=5.0),
    )
    pairs = dataclasses.replace(
        sweep, work=dataclasses.replace(sweep.work, collective="send-receive")
    )
    for record in run(tmp_path, [sweep, pairs]):
        assert record.ok, record.outcome
        print(record.nccl)
        assert record.nccl is not None
        rings = record.nccl.rings
        assert rings is not None, record.nccl
        assert rings.channels >= 1
        assert all(len(order.order) == 2 for order in rings.orders), "two GPUs of one host"
        assert rings.channel_bytes_per_s > 0
