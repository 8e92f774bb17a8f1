"""What the records of a superlinear scaling show."""

import dataclasses

import pytest

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.scaling.super_linear import evidence, super_linear_finding
from cubemesh.schema import (
    Breakdown,
    Figure,
    Outcome,
    Part,
    Placement,
    ProgramSettings,
    Rank,
    RunSpec,
    Status,
    TimeRow,
    TrainSteps,
)

MIB = 1 << 20


@pytest.fixture
def point(record_of):
    """A point of strong scaling at a global batch size of 64."""

    def make(
        devices,
        step_s,
        *,
        device="cuda:{}",
        allocator_s=None,
        memory=None,
        caches=None,
        compute=None,
    ):
        batch = 64 // devices
        spec = RunSpec(
            work=TrainSteps(network="little-cnn", batch_per_device=batch),
            placement=Placement(devices=devices),
            program=ProgramSettings(sync="all-reduce" if devices > 1 else "none"),
        )
        record = record_of(spec, step_s=step_s, spread=0.001)
        name = "cpu" if device == "cpu" else "NVIDIA H200"
        private, shared = caches or (None, None)
        ranks = tuple(
            Rank(
                rank=n,
                host="a",
                device=device.format(n),
                device_name=name,
                outcome=Outcome(status=Status.OK),
                private_cache_bytes=private,
                shared_cache_bytes=shared,
            )
            for n in range(devices)
        )
        figures = dict(record.figures)
        figures["throughput_per_s"] = dataclasses.replace(
            figures["throughput_per_s"], value=64 / step_s
        )
        if memory is not None:
            figures["peak_memory_bytes"] = Figure(value=memory, unit="byte")
        breakdowns = ()
        if allocator_s is not None:
            rows = (
                TimeRow(name="launch", seconds=0.5, calls=9),
                TimeRow(name="malloc", seconds=allocator_s / 4, calls=1),
                TimeRow(name="free", seconds=3 * allocator_s / 4, calls=2),
            )
            breakdowns = (Breakdown(name="runtime call", rows=rows, method=""),)
        parts = () if compute is None else (Part(name="compute", seconds=compute, method=""),)
        return Group(
            (devices, spec.program.sync),
            (
                dataclasses.replace(
                    record,
                    windows=tuple(
                        dataclasses.replace(w, rank=n)
                        for n in range(devices)
                        for w in record.windows
                    ),
                    figures=figures,
                    ranks=ranks,
                    breakdowns=breakdowns,
                    parts=parts,
                    rank_parts=(parts,) * devices if parts and devices > 1 else (),
                ),
            ),
        )

    return make


def text(one, two):
    (finding,) = super_linear_finding(two, one, "little-cnn, 64")
    assert finding.value > 100
    return finding.text


def test_linear_or_less_needs_no_explanation(point):
    assert not list(super_linear_finding(point(2, 0.05), point(1, 0.1), ""))
    assert not list(super_linear_finding(point(2, 0.07), point(1, 0.1), ""))


def test_allocator_calls_that_several_devices_are_spared(point):
    found = text(point(1, 0.1, allocator_s=0.04), point(2, 0.03, allocator_s=0.001))
    assert "allocator calls (malloc and free) take 40 ms of a step on one device and 1 ms" in found


def test_allocator_calls_that_shrink_with_the_batch_explain_nothing(point):
    shown, missing = evidence(point(2, 0.03, allocator_s=0.02), point(1, 0.1, allocator_s=0.04))
    assert not shown
    assert not any("allocator" in words for words in missing)


def test_memory_near_the_capacity_on_one_device_alone(point):
    capacity = 141e9
    found = text(point(1, 0.1, memory=0.97 * capacity), point(2, 0.03, memory=0.5 * capacity))
    assert "of its memory, each of 2" in found
    assert not evidence(point(2, 0.03, memory=40e9), point(1, 0.1, memory=80e9))[0]


def test_a_working_set_that_fits_the_caches_of_several(point):
    one = point(1, 0.1, device="cpu", caches=(2 * MIB, 0))
    two = point(2, 0.03, device="cpu", caches=(512 * MIB, 0))
    assert "fits the caches of a rank on 2 devices" in text(one, two)
    shared = point(2, 0.03, device="cpu", caches=(0, 4 * MIB))
    assert not evidence(shared, one)[0]
    assert "caches" in " ".join(evidence(point(2, 0.03, device="cpu"), one)[1])


def test_computation_that_shrinks_more_than_the_batch(point):
    found = text(point(1, 0.1, compute=0.09), point(2, 0.03, compute=0.028))
    assert "computation takes 17 ms (38 %) less" in found


def test_without_evidence_the_answer_says_what_is_missing(point):
    found = text(point(1, 0.1), point(2, 0.03))
    assert "do not show why" in found
    assert "allocator calls were not profiled" in found
