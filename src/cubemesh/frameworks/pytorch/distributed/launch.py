"""Launch one process per device of this host, with a file where they exchange addresses.

Ranks are forked, so that nothing is imported again; the calling process must not have initialized
CUDA. torchrun's agent is not used: its store listens on all interfaces, anybody who reaches it may
write, and its rendezvous unpickles what is there."""

from __future__ import annotations

import os
from collections.abc import Callable

from cubemesh.frameworks import fork_launcher
from cubemesh.frameworks.contract.rendezvous import Rendezvous
from cubemesh.frameworks.pytorch.distributed.stores import FILE_VARIABLE


def launch(
    run_rank: Callable[[str], None], job: str, ranks: int, rendezvous: Rendezvous | None = None
) -> dict[int, int]:
    """See `SupportsDistributed`."""
    if rendezvous is not None:
        return fork_launcher.launch(run_rank, job, ranks, rendezvous)
    file = os.memfd_create("rendezvous")  # without a path: only forked processes have it
    try:
        shared = {FILE_VARIABLE: str(file)}
        return fork_launcher.launch(run_rank, job, ranks, environ_of=lambda local_rank: shared)
    finally:
        os.close(file)
