"""What the runner adds to a record."""

import dataclasses

import pytest

from cubemesh.runs.enrich import nvlink_warning
from cubemesh.schema import Gpu, Outcome, Rank, Status
from cubemesh.schema.machine import GpuLink

GPUS = tuple(Gpu(index=n, name="NVIDIA H200", uuid=f"GPU-{n}") for n in range(4))


def ranks(transport, devices=2):
    return [
        Rank(
            rank=n,
            host="bench",
            device=f"cuda:{n}",
            outcome=Outcome(status=Status.OK),
            transport=transport,
        )
        for n in range(devices)
    ]


@pytest.mark.parametrize(
    ("transport", "kind", "warned"),
    [
        ("NCCL SHM/direct", "nvlink", True),
        ("NCCL NET/Socket", "nvlink", True),
        ("NCCL P2P/CUMEM", "nvlink", False),
        ("NCCL SHM/direct", "host-bridge", False),
        ("gloo TCP", "nvlink", False),
        ("", "nvlink", False),
    ],
)
def test_nvlink_that_was_not_used_is_a_warning(small_machine, transport, kind, warned):
    machine = dataclasses.replace(
        small_machine, gpus=GPUS, gpu_links=(GpuLink(first=0, second=1, kind=kind, links=18),)
    )
    found = nvlink_warning(ranks(transport), machine, GPUS)
    assert (found is not None) == warned
    if found is not None:
        assert found.code == "faster-link-unused"
        assert transport.removeprefix("NCCL ") in found.cause


def test_links_of_other_gpus_do_not_count(small_machine):
    machine = dataclasses.replace(
        small_machine, gpus=GPUS, gpu_links=(GpuLink(first=0, second=1, kind="nvlink"),)
    )
    assert nvlink_warning(ranks("NCCL SHM/direct"), machine, GPUS[2:]) is None
