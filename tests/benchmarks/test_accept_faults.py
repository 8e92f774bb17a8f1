"""benchmarks/accept_faults.py: when a planted fault counts as found, and that it can be planted."""

import pytest

from cubemesh.frameworks.contract.collectives import CollectiveProgram
from cubemesh.worker.run import collectives, task


@pytest.fixture
def faults(script):
    return script("accept_faults")


def after(faults, verdict, *findings):
    codes = {"pass": 0, "fail": 99, "not judged": 1}
    rows = [{"code": code, "text": text} for code, text in findings]
    document = {"verdict": verdict, "answer": {"findings": rows}}
    return faults.Tested(codes[verdict], document)


SENTENCES = {
    "slow-disk": ("check-failed", "disk read: 1.2 GB/s is 50 % of the datasheet, below 60 %."),
    "slow-rank": ("slow-device", "neighbours: group 1 of cores of vm is at 71 % of the others."),
    "wrong-result": ("wrong-results", "all-reduce: results: 3 wrong elements, at 64 KiB."),
    "slow-link": ("check-failed", "all-reduce: 20 MB/s is 10 % of the mean of the fleet."),
}


def test_a_fault_that_is_named_is_found(faults):
    assert set(SENTENCES) == {fault.name for fault in faults.FAULTS}
    for fault in faults.FAULTS:
        sound, planted = after(faults, "pass"), after(faults, "fail", SENTENCES[fault.name])
        line, found = faults.line_of(fault, sound, planted)
        assert found
        assert SENTENCES[fault.name][1] in line


@pytest.mark.parametrize(
    ("sound", "planted"),
    [
        ("fail", "fail"),  # the machine had it before
        ("pass", "not judged"),
        ("pass", "pass"),
    ],
)
def test_a_fault_without_a_failure_of_its_own_is_not_found(faults, sound, planted):
    (disk, *_) = faults.FAULTS
    sentence = SENTENCES[disk.name]
    line, found = faults.line_of(
        disk, after(faults, sound, sentence), after(faults, planted, sentence)
    )
    assert not found
    assert "NOT FOUND" in line


def test_another_device_or_another_finding_is_not_it(faults):
    rank = faults.FAULTS[1]
    for finding in (
        ("slow-device", "neighbours: group 0 of cores of vm is at 71 % of the others."),
        ("check-failed", SENTENCES["slow-rank"][1]),
    ):
        assert not faults.names_it(after(faults, "fail", finding), rank)
    gpu = ("slow-device", "neighbours: cuda:1 (GPU-1) of node1 is at 71 %.")
    assert faults.names_it(after(faults, "fail", gpu), rank)


def test_a_slow_link_is_found_by_the_transport_too(faults):
    link = next(fault for fault in faults.FAULTS if fault.name == "slow-link")
    text = "all-reduce: 1 of 1 pairs of these GPUs are joined by NVLink, and NCCL used NET/Socket."
    assert faults.names_it(after(faults, "fail", ("faster-link-unused", text)), link)
    assert not faults.names_it(after(faults, "fail", ("wrong-results", text)), link)


def test_a_disk_with_uneven_reads_is_stated_at_twice_their_upper_end(faults, tmp_path, monkeypatch):
    stated = []

    def test(machine, fault, settings):
        stated.append(settings.get("disk_gb_per_s"))
        figure = {"value": 1.5e9, "low": 1e9, "high": 2e9}
        return faults.Tested(0, {"records": [{"figures": {"rate_bytes_per_s": figure}}]})

    monkeypatch.setattr(faults.Machine, "test", test)
    faults.slow_disk(faults.Machine(tmp_path, "cpu", {}), faults.FAULTS[0])
    assert stated == [None, 1.5, 4.0]


@pytest.mark.parametrize("name", ["slow-rank", "wrong-result"])
def test_the_plants_meet_the_code_that_they_change(faults, name, monkeypatch):
    monkeypatch.setenv(faults.FAULT, name)
    monkeypatch.setattr(task, "time_steps", task.time_steps)
    monkeypatch.setattr(collectives, "sweep", collectives.sweep)
    before = task.time_steps, collectives.sweep
    exec(faults.PLANTS, {})
    changed = [
        new is not old
        for new, old in zip((task.time_steps, collectives.sweep), before, strict=True)
    ]
    assert changed == [name == "slow-rank", name == "wrong-result"]
    assert hasattr(CollectiveProgram, "wrong")
