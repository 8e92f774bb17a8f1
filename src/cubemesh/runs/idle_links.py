"""Were GPUs of one host joined by something faster than what they exchanged over?

NVLink between GPUs is there and NCCL went through the host's memory (SHM) or a network all the
same: somebody has switched peer-to-peer off, or a container or hypervisor does not let it through.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from cubemesh.schema import Gpu, Machine, Rank, RunRecord, Warning, warn


def with_idle_links(record: RunRecord, machine: Machine, gpus: Sequence[Gpu]) -> RunRecord:
    """`record`, with the warning where there is one; `gpus` are those that `cuda:0`, `cuda:1` …
    mean."""
    if record.spec.placement.link != "auto":
        return record  # it was asked for
    idle = idle_nvlink(record.ranks, machine, gpus)
    return record if idle is None else replace(record, warnings=(*record.warnings, idle))


def idle_nvlink(ranks: Sequence[Rank], machine: Machine, gpus: Sequence[Gpu]) -> Warning | None:
    """The warning `faster-link-unused` if two ranks' GPUs are joined by NVLink and no rank reports
    peer access; None otherwise, or if no rank reports its transport."""
    told = {rank.transport for rank in ranks if rank.transport.startswith("NCCL ")}
    if not told or any("P2P" in transport for transport in told):
        return None
    own = {gpus[n].index for rank in ranks if (n := _number(rank.device)) < len(gpus)}
    joined = [
        link
        for link in machine.gpu_links
        if link.kind == "nvlink" and {link.first, link.second} <= own
    ]
    pairs = len(list(itertools.combinations(own, 2)))
    if not joined:
        return None
    return warn(
        "faster-link-unused",
        f"{len(joined)} of {pairs} pairs of these GPUs are joined by NVLink, and NCCL went over "
        f"{', '.join(sorted(t.removeprefix('NCCL ') for t in told))}.",
        "Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; in a container give it all GPUs and "
        "--ipc=host. NCCL_DEBUG=INFO says why peer-to-peer was refused.",
    )


def _number(device: str) -> int:
    """2 of `cuda:2`; a number no GPU has, of anything else."""
    kind, _, number = device.partition(":")
    return int(number) if kind == "cuda" and number.isdecimal() else 1 << 30
