"""What imported records have in common: their mark, and the machine that a file describes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cubemesh.schema import Cpu, Gpu, Machine, Memory, Software, Unknown
from cubemesh.store.imports.nccl_tests_log import LoggedRank

IMPORTED = "imported"
"""Code version and software of what was not measured here."""


def imported_machine(ranks: Sequence[LoggedRank], path: Path) -> Machine:
    """The machine described in the file."""
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    return Machine(
        hostname=", ".join(hosts),
        cpu=Cpu(),
        memory=Memory(),
        gpus=tuple(
            Gpu(index=i, name=rank.device_name, uuid=f"{IMPORTED}-{rank.host}-{rank.device}")
            for i, rank in enumerate(ranks)
            if rank.device.startswith("cuda")
        ),
        software=Software(python="", system=""),
        unknown=(
            Unknown(what="all else", why=f"imported from {path.name}, without further information"),
        ),
    )
