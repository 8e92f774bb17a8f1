"""One job on several devices: a process for each, and what each of them is told.

    server ──fork──▶ worker (agent) ──fork──▶ rank 0   device cuda:0, or the first cores
                                    ──fork──▶ rank 1   device cuda:1, or the next cores
                                    ──fork──▶ …

The agent is the framework's (torchrun's); it ends all ranks when one of them fails. Every rank runs
the same job and writes an event file of its own. On a CPU a *device* is a group of cores that
belongs to one rank alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cubemesh.frameworks.api.group import Group, SingleProcessGroup
from cubemesh.frameworks.api.program import Framework, Unsupported
from cubemesh.frameworks.api.rendezvous import SupportsDistributed
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import Warning, warn
from cubemesh.schema.work import FirstSteps
from cubemesh.worker.launch.pinning import whole_cores
from cubemesh.worker.run.job import Job

EXITS_FILE = "exits.json"
"""In the run's folder: rank → exit code, of the ranks that failed."""
FAILED = 3
"""Exit code of a rank whose outcome is not ok: the agent then ends the others, which would wait for
it for ever."""
LOST_S = 1.0
"""How long a rank that has crashed waits before it says so. Where it crashed because another died
in the middle of an operation, the agent sees that one first and ends this one meanwhile, so that
the reason of the run is the one that died."""
JOIN_S = 120.0
"""How long a rank waits for the others, at the start and in every operation."""


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """Which rank this process is."""

    rank: int = 0
    local_rank: int = 0
    ranks: int = 1
    local_ranks: int = 1
    """Those on this host."""


def rank_from_env() -> RankInfo:
    """As the launcher's environment says; one rank alone where nobody launched."""
    environ = os.environ
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return RankInfo()
    rank = int(environ["RANK"])
    return RankInfo(
        rank=rank,
        local_rank=int(environ.get("LOCAL_RANK", rank)),
        ranks=int(environ["WORLD_SIZE"]),
        local_ranks=int(environ.get("LOCAL_WORLD_SIZE", environ["WORLD_SIZE"])),
    )


def launch(framework: Framework, job: Job, run_rank: Callable[[str], None]) -> None:
    """Run `job` on all its devices and leave word of those that failed."""
    assert isinstance(framework, SupportsDistributed)
    write_exit_codes(job, framework.launch(run_rank, str(job.path), job.spec.placement.devices))


def write_exit_codes(job: Job, failed: Mapping[int, int]) -> None:
    """Write down which ranks failed, for the runner."""
    Path(job.folder, EXITS_FILE).write_text(json.dumps(failed))


def as_rank(job: Job) -> Job:
    """The job as this process, one of the ranks, has to do it."""
    own = rank_from_env()
    uuid = job.gpu_uuids[own.local_rank] if own.local_rank < len(job.gpu_uuids) else job.gpu_uuid
    return dataclasses.replace(job, rank=own.rank, gpu_uuid=uuid)


def processors_of(job: Job, *, on_cpu: bool) -> tuple[int, ...]:
    """The processors that the devices of this host share out. Devices on a CPU are cores, of which
    two hardware threads are one, and no more of them than this process is granted time for; a GPU
    is driven by any hardware thread."""
    allowed = os.sched_getaffinity(0)
    return whole_cores(allowed)[: job.usable_cores] if on_cpu else tuple(sorted(allowed))


def can_launch(job: Job) -> bool:
    """Whether `job` has several devices, and there are cores for them; where there are not, one
    process says so."""
    placement = job.spec.placement
    on_cpu = placement.device == "cpu" or not job.gpu_uuids
    cores = len(processors_of(job, on_cpu=on_cpu))
    return placement.devices > 1 and (placement.oversubscribe or placement.devices <= cores)


def check_devices(devices: int, cores: int, may_share: bool = False) -> None:
    """Unsupported where `devices` processes would have less than a core each and may not share any.
    That holds for GPUs as well: a core drives each of them."""
    if devices > cores and not may_share:
        raise Unsupported(
            f"devices={devices}: each needs a core of its own, a GPU as well to be driven by, and "
            f"this process may use {cores}. Set devices={cores} or less, or "
            "oversubscribe=true where times do not matter."
        )


def shared_cores(spec: RunSpec, cores: int) -> Warning | None:
    """The warning of a run whose devices have less than a core each; None where nothing is timed,
    or each has its own."""
    devices = spec.placement.devices // max(1, len(spec.placement.hosts))
    if devices <= cores or isinstance(spec.work, FirstSteps):
        return None
    return warn(
        "oversubscribed",
        f"{devices} devices shared {cores} cores, as oversubscribe=true allows.",
        f"Look at what was computed, not at how fast; with {devices} cores both mean something.",
    )


def own_device(kind: str, own: RankInfo, available: int) -> str:
    """The device of this rank, of `available` GPUs; every CPU rank's is `cpu`."""
    if kind != "cuda":
        return "cpu"
    if own.local_rank >= available:
        raise Unsupported(
            f"devices={own.local_ranks}: this machine has {available} GPUs that can be used. Set "
            f"devices={available} or less."
        )
    return f"cuda:{own.local_rank}"


def driven_devices(kind: str, devices: int, available: int) -> tuple[str, ...]:
    """The devices of a process that drives `devices` by itself; of `available` GPUs."""
    if kind != "cuda":
        return tuple(f"cpu:{n}" for n in range(devices))
    if devices > available:
        raise Unsupported(
            f"devices={devices}: this machine has {available} GPUs that can be used. Set "
            f"devices={available} or less."
        )
    return tuple(f"cuda:{n}" for n in range(devices))


def own_cores(spec: RunSpec, own: RankInfo, cores: tuple[int, ...]) -> tuple[int, ...]:
    """The cores of this rank, of the `cores` there are (`processors_of`): `threads` of them, or an
    even share, each by the number of the one hardware thread that is used. Where
    there are too few and they may be shared, ranks take them by turns."""
    ranks = own.local_ranks
    each = spec.placement.threads or max(1, len(cores) // ranks)
    if each * ranks > len(cores) and spec.placement.oversubscribe:
        first = own.local_rank * each
        return tuple(sorted({cores[n % len(cores)] for n in range(first, first + each)}))
    if each * ranks > len(cores):
        raise Unsupported(
            f"devices={ranks} of threads={each} each: a device on a CPU is as many cores of "
            f"its own, and this process may use {len(cores)}. Set threads="
            f"{len(cores) // ranks} or fewer devices."
        )
    return cores[own.local_rank * each : (own.local_rank + 1) * each]


def join(framework: Framework, device: str, own: RankInfo, link: str = "auto") -> Group:
    """The group of all ranks; a rank alone has nobody to meet, and no link to choose."""
    if own.ranks == 1:
        if link != "auto":
            raise Unsupported(
                f"link={link}: it is chosen between processes, and this run has one. Leave it out, "
                "or set devices=2 or more with framework=pytorch."
            )
        return SingleProcessGroup()
    assert isinstance(framework, SupportsDistributed)
    return framework.join(device, JOIN_S, link)
