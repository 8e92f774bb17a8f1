"""Launch one process per device of this host, by torchrun's elastic agent.

The agent (torch.distributed.elastic) starts the ranks, sets their RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, monitors them, and terminates all when one fails. They are forked, so that nothing is
imported again; the calling process must not have initialized CUDA."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from cubemesh.frameworks.contract.rendezvous import Rendezvous
from cubemesh.frameworks.pytorch.runtime import nvml_device_check

MONITOR_S = 0.1
"""Interval at which the agent polls its ranks."""
JOIN_S = 120
"""How long an agent waits for those of other hosts."""


def launch(
    run_rank: Callable[[str], None], job: str, ranks: int, rendezvous: Rendezvous | None = None
) -> dict[int, int]:
    """Call `run_rank(job)` in `ranks` processes; the exit code of each rank that failed, negative
    for a signal. The agent then terminates the others, which are not in the result unless they
    failed too. With a `rendezvous`, an agent on each other host starts as many ranks."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    with nvml_device_check():
        config = LaunchConfig(
            min_nodes=1 if rendezvous is None else rendezvous.hosts,
            max_nodes=1 if rendezvous is None else rendezvous.hosts,
            nproc_per_node=ranks,
            run_id=uuid.uuid4().hex if rendezvous is None else rendezvous.name,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0" if rendezvous is None else rendezvous.endpoint,
            rdzv_configs={} if rendezvous is None else _configs(rendezvous),
            local_addr=None if rendezvous is None else rendezvous.address,
            max_restarts=0,
            monitor_interval=MONITOR_S,
            start_method="fork",
        )
    config.numa_options = None  # it would initialize CUDA; pinning is done elsewhere
    try:
        elastic_launch(config, run_rank)(job)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


def _configs(rendezvous: Rendezvous) -> dict[str, Any]:
    # The host of the store is explicit: a host's name may not resolve to its address.
    return {"is_host": rendezvous.is_first, "join_timeout": JOIN_S}
