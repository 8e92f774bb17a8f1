"""One process for each device of this host, by torchrun's own agent.

The agent (torch.distributed.elastic) starts the ranks, sets RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT for them, watches them, and ends all of them when one of them fails. They are forked, so
that nothing is imported again; the process that calls this must not have touched a GPU.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from cubemesh.frameworks.api.rendezvous import Rendezvous
from cubemesh.frameworks.pytorch.runtime import asking_the_driver

MONITOR_S = 0.1
"""How often the agent looks at its ranks."""
JOIN_S = 120
"""How long an agent waits for those of the other hosts."""


def launch(
    run_rank: Callable[[str], None], job: str, ranks: int, rendezvous: Rendezvous | None = None
) -> dict[int, int]:
    """Call `run_rank(job)` in `ranks` processes; the exit code of each rank that failed, negative
    for a signal. The agent ends the others then, which are not in it unless they failed too. With
    a `rendezvous` as many ranks are started by an agent on each other host."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    with asking_the_driver():
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
    config.numa_options = None  # it would ask CUDA, and devices have cores of their own
    try:
        elastic_launch(config, run_rank)(job)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


def _configs(rendezvous: Rendezvous) -> dict[str, Any]:
    # Who keeps the store is said, for hosts may have a name that is not their address's.
    return {"is_host": rendezvous.is_first, "join_timeout": JOIN_S}
