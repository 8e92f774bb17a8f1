"""Ranks: one job on several devices, a process for each.

    server ──fork──▶ worker (agent) ──fork──▶ rank 0   device cuda:0, or the first cores
                                    ──fork──▶ rank 1   device cuda:1, or the next cores
                                    ──fork──▶ …

The agent (frameworks/fork_launcher.py) ends all ranks when one of them fails. Every rank runs
the same job and writes its own event file. On a CPU a *device* is a group of cores that belongs to
one rank.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.frameworks.contract.program import Framework, Unsupported
from cubemesh.frameworks.contract.rendezvous import SupportsDistributed
from cubemesh.measure.telemetry.gpu_set import pci_addresses
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import Warning, warn
from cubemesh.schema.work import LINK_OPERATIONS, Ceiling, FirstSteps
from cubemesh.untrusted import parse_json
from cubemesh.worker.launch.pinning import near_gpu, whole_cores
from cubemesh.worker.run.job_file import NCCL_DUMPS, Job

EXITS_FILE = "exits.json"
"""In the run's folder: rank → exit code, of the ranks that failed."""
FAILED = 3
"""Exit code of a rank whose outcome is not ok: the agent then ends the others, which would
otherwise wait forever."""
LOST_S = 1.0
"""Delay before a crashed rank reports its outcome. Where it crashed because another died in the
middle of an operation, the agent notices that one first and ends this one meanwhile, so that the
run's outcome is that of the rank that died."""
JOIN_S = 120.0
"""Time limit of the rendezvous and of every operation."""
_ONE_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_RAS_ENABLE": "0"}
"""Environment variables that keep gloo and NCCL on the loopback interface (with = NCCL takes an
exact name). NCCL's RAS service would listen at a fixed port."""


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """Rank of this process."""

    rank: int = 0
    local_rank: int = 0
    ranks: int = 1
    local_ranks: int = 1
    """Ranks on this host."""


def rank_from_env() -> RankInfo:
    """Rank from the launcher's environment variables; a single rank without a launcher."""
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


def keep_to_loopback(job: Job, own: RankInfo) -> None:
    """Have the libraries of a run on one host listen on the loopback interface only."""
    known = own.ranks == 1 or "LOCAL_WORLD_SIZE" in os.environ  # else perhaps on several hosts
    if known and own.local_ranks == own.ranks and not job.spec.placement.hosts:
        os.environ.update(_ONE_HOST)


def dump_nccl_graphs(job: Job, own: RankInfo) -> None:
    """Have NCCL write its topology and its graphs into the run's folder, as the ranks join; where
    the user has set a file, NCCL writes there. The first rank writes, but all ranks have the
    variables: one that has them gathers the topology of the others once more, and would wait for
    them forever."""
    if own.ranks > 1:
        for variable, file in NCCL_DUMPS.items():
            os.environ.setdefault(variable, str(Path(job.folder, file)))


def write_exit_codes(job: Job, failed: Mapping[int, int]) -> None:
    """Write the exit codes of failed ranks, for the runner."""
    Path(job.folder, EXITS_FILE).write_text(json.dumps(failed))


def parse_exit_codes(text: str) -> dict[int, int]:
    """Rank → exit code, as `write_exit_codes` wrote it. ValueError for anything else."""
    codes = parse_json(text)
    if not isinstance(codes, dict) or not all(isinstance(code, int) for code in codes.values()):
        raise ValueError("exit codes of ranks are a table of integers")
    return {int(rank): code for rank, code in codes.items()}


def as_rank(job: Job) -> Job:
    """The job for this rank."""
    own = rank_from_env()
    uuid = job.gpu_uuids[own.local_rank] if own.local_rank < len(job.gpu_uuids) else job.gpu_uuid
    return dataclasses.replace(job, rank=own.rank, gpu_uuid=uuid)


def processors_of(job: Job, *, on_cpu: bool) -> tuple[int, ...]:
    """Processors to divide among the devices of this host: for CPU devices one hardware thread of
    each core, at most as many as the process is granted time for; for GPUs any."""
    allowed = os.sched_getaffinity(0)
    return whole_cores(allowed)[: job.usable_cores] if on_cpu else tuple(sorted(allowed))


def can_launch(job: Job) -> bool:
    """Whether `job` has several devices, a process for each, and there are cores for them;
    otherwise one process reports the error."""
    placement, work = job.spec.placement, job.spec.work
    if isinstance(work, Ceiling) and work.operation in LINK_OPERATIONS:
        return False  # one process measures all pairs
    on_cpu = placement.device == "cpu" or not job.gpu_uuids
    cores = len(processors_of(job, on_cpu=on_cpu))
    return placement.devices > 1 and (placement.oversubscribe or placement.devices <= cores)


def check_devices(devices: int, cores: int, may_share: bool = False) -> None:
    """Unsupported where `devices` processes have less than a core each and may not share cores.
    Each GPU needs a core too."""
    if devices > cores and not may_share:
        raise Unsupported(
            f"devices={devices}: each needs its own core, GPUs too, and this process may use "
            f"{cores}. Set devices={cores} or less, or oversubscribe=true where times do not "
            "matter."
        )


def bound_by_launcher(own: RankInfo) -> bool:
    """Whether the launcher has bound this rank to a part of the processors that it may use itself:
    Open MPI binds each rank of two to a core, srun to the cores of a task."""
    if own.ranks == 1:
        return False
    try:
        return os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid())
    except OSError:  # the launcher has ended, or is another user's
        return False


def check_bindings(group: Group, processors: Sequence[int]) -> None:
    """Unsupported where the launcher has bound two ranks of a host to the same processors. Every
    rank calls this with the `processors` that its launcher chose; empty where it chose none."""
    found = group.all_gather_object([socket.gethostname(), list(processors)])
    seen: dict[tuple[str, int], int] = {}
    for rank, (host, own) in enumerate(found):
        for processor in own:
            other = seen.setdefault((host, processor), rank)
            if other != rank:
                raise Unsupported(
                    f"The launcher bound ranks {other} and {rank} to the same processor "
                    f"{processor} of {host}. Start them with mpirun --bind-to none or srun "
                    "--cpu-bind=none, give each cores of its own, or set oversubscribe=true where "
                    "times do not matter."
                )


def shared_cores(spec: RunSpec, cores: int) -> Warning | None:
    """The warning `oversubscribed` where devices have less than a core each; None otherwise, or
    where nothing is timed."""
    devices = spec.placement.devices // max(1, len(spec.placement.hosts))
    if devices <= cores or isinstance(spec.work, FirstSteps):
        return None
    return warn(
        "oversubscribed",
        f"{devices} devices shared {cores} cores, as oversubscribe=true allows.",
        f"Use the results, not the times; {devices} cores are needed for valid times.",
    )


def devices_here(kind: str, devices: int, gpus: int) -> tuple[str, ...]:
    """The `devices` devices of a process or of the ranks of this host, of `gpus` GPUs."""
    if kind == "cuda" and devices > gpus:
        raise Unsupported(
            f"devices={devices}: {gpus} GPUs are available. Set devices={gpus} or less."
        )
    return tuple(f"{kind}:{n}" for n in range(devices))


def cores_near_gpu(job: Job, own: RankInfo) -> tuple[int, ...]:
    """Processors next to the GPU of this rank (`pinning.near_gpu`); empty for a single rank, and
    where the spec binds its threads itself."""
    placement, uuids = job.spec.placement, job.gpu_uuids[: own.local_ranks]
    if own.ranks == 1 or placement.pinning != "none" or placement.numa_node is not None:
        return ()
    if len(uuids) < own.local_ranks:
        return ()
    return near_gpu(pci_addresses(uuids), own.local_rank, os.sched_getaffinity(0))


def own_cores(spec: RunSpec, own: RankInfo, cores: tuple[int, ...]) -> tuple[int, ...]:
    """Cores of this rank, of all `cores` (`processors_of`): `threads` of them, or an equal part, as
    processor numbers. With too few cores and `oversubscribe`, they are assigned cyclically."""
    ranks = own.local_ranks
    each = spec.placement.threads or max(1, len(cores) // ranks)
    if each * ranks > len(cores) and spec.placement.oversubscribe:
        first = own.local_rank * each
        return tuple(sorted({cores[n % len(cores)] for n in range(first, first + each)}))
    if each * ranks > len(cores):
        raise Unsupported(
            f"devices={ranks} with threads={each} need {each * ranks} cores, and this process may "
            f"use {len(cores)}. Set threads="
            f"{len(cores) // ranks} or fewer devices."
        )
    return cores[own.local_rank * each : (own.local_rank + 1) * each]


def join(framework: Framework, device: str, own: RankInfo, link: str = "auto") -> Group:
    """Join the process group of all ranks; a single-process group on one device."""
    if own.ranks == 1:
        if link != "auto":
            raise Unsupported(
                f"link={link}: needs several processes, and this run has one. Leave link out, or "
                "set devices=2 or more with framework=pytorch."
            )
        return SingleProcessGroup()
    assert isinstance(framework, SupportsDistributed)
    return framework.join(device, JOIN_S, link)
