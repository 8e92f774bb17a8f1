"""Enrichers: functions that finish a record with what the runner knows and its worker does not.

Each takes a record and the `Host` it ran on and returns the record, with more figures or warnings
or unchanged. A new one is a line in `ENRICHERS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cubemesh.forecast.token_figures import with_token_figures
from cubemesh.forecast.utilization import with_utilization
from cubemesh.measure.telemetry.gpu_set import gpu_of
from cubemesh.schema.machine import Gpu, Machine
from cubemesh.schema.record import Rank, RunRecord
from cubemesh.schema.warning import Warning, warn


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine of a run, as far as enrichers use it."""

    machine: Machine
    gpus: Sequence[Gpu]
    """The GPUs that `cuda:0`, `cuda:1` … mean."""
    ceilings: Callable[[str], Sequence[RunRecord]]
    """Machine id → records of the ceilings measured on that machine."""


def enrich(record: RunRecord, host: Host) -> RunRecord:
    """`record` after every enricher, in their order."""
    for enricher in ENRICHERS:
        record = enricher(record, host)
    return record


def utilization(record: RunRecord, host: Host) -> RunRecord:
    """Model FLOP/s and bytes/s, as fractions of the stated peak and of the measured ceilings."""
    return with_utilization(record, host.ceilings(record.key.machine_id))


def per_token(record: RunRecord, host: Host) -> RunRecord:
    """Tokens per second of all devices and of one, energy of a token, MFU by 6 N."""
    return with_token_figures(record)


def unused_nvlink(record: RunRecord, host: Host) -> RunRecord:
    """Warning where GPUs joined by NVLink communicated over something slower, which `link` did not
    ask for."""
    if record.spec.placement.link != "auto":
        return record
    return _with(record, nvlink_warning(record.ranks, host.machine, host.gpus))


def tuning_fit(record: RunRecord, host: Host) -> RunRecord:
    """Warning where the settings were tuned at another batch size: what is fastest at one may not
    be at another."""
    tuned, batch = record.spec.tuned, record.spec.batch_per_device
    if tuned is None or batch is None or batch == tuned.batch_per_device:
        return record
    warning = warn(
        "tuned-for-other-batch-size",
        f"The settings were tuned at batch size {tuned.batch_per_device}; this run has {batch}.",
        f"Tune at this batch size: cubemesh tune NETWORK --batch-sizes {batch}.",
    )
    return _with(record, warning)


ENRICHERS: tuple[Callable[[RunRecord, Host], RunRecord], ...] = (
    utilization,
    per_token,
    unused_nvlink,
    tuning_fit,
)


def nvlink_warning(ranks: Sequence[Rank], machine: Machine, gpus: Sequence[Gpu]) -> Warning | None:
    """The warning `faster-link-unused` where NVLink joins the GPUs of two ranks and no rank reports
    peer-to-peer access; None otherwise, or where no rank reports its transport.

    Peer-to-peer is then switched off, or a container or hypervisor does not let it through.
    """
    transports = {rank.transport for rank in ranks if rank.transport.startswith("NCCL ")}
    if not transports or any("P2P" in transport for transport in transports):
        return None
    used = {gpu.index for rank in ranks if (gpu := gpu_of(rank.device, gpus)) is not None}
    joined = [
        link
        for link in machine.gpu_links
        if link.kind == "nvlink" and {link.first, link.second} <= used
    ]
    if not joined:
        return None
    pairs = len(list(itertools.combinations(used, 2)))
    return warn(
        "faster-link-unused",
        f"{len(joined)} of {pairs} pairs of these GPUs are joined by NVLink, and NCCL used "
        f"{', '.join(sorted(t.removeprefix('NCCL ') for t in transports))}.",
        "Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; in a container pass all GPUs and --ipc=host. "
        "NCCL_DEBUG=INFO logs why peer-to-peer was refused.",
    )


def _with(record: RunRecord, warning: Warning | None) -> RunRecord:
    return record if warning is None else replace(record, warnings=(*record.warnings, warning))
