"""Environment of ranks started by a launcher: torchrun, mpirun or srun.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, and values that are set
remain. mpirun and srun have other names for them, which are read here:

| | rank | ranks | rank on its host | first host |
|---|---|---|---|---|
| Open MPI | OMPI_COMM_WORLD_RANK | …_SIZE | …_LOCAL_RANK | this one, if all are on it |
| MPICH, Intel MPI | PMI_RANK | PMI_SIZE | MPI_LOCALRANKID | the same |
| Slurm | SLURM_PROCID | SLURM_STEP_NUM_TASKS | SLURM_LOCALID | of SLURM_STEP_NODELIST |

Only a process of a Slurm *step* (of srun) is a rank: a job's script has the variables too. The
ranks on its host are number SLURM_NODEID of the list SLURM_STEP_TASKS_PER_NODE: `2(x2),1`.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

from cubemesh.errors import UsageError

_LAUNCHERS = (
    (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)
_OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
PORT = 29500
"""torchrun's default, where the launcher sets none."""
_FIRST_PORT, _PORTS = 20_000, 10_000
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")
_FIRST_NODE = re.compile(r"([^,\[\]]+)(?:\[(\d+)[^\]]*\])?")


def export_torch_env(environ: MutableMapping[str, str]) -> None:
    """Set the variables of torch.distributed from those of the launcher, if there is one.
    UsageError where the first host is unknown."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return
    for names in _LAUNCHERS:
        if not all(environ.get(name, "").isdecimal() for name in names[:2]):
            continue
        if int(environ[names[1]]) < 2:
            return
        for ours, name in zip(_OURS, names, strict=True):
            if name in environ:
                environ.setdefault(ours, environ[name])
        if names[0] == "SLURM_PROCID":
            _set_slurm_address(environ)
        _set_address(environ)
        return


def _set_slurm_address(environ: MutableMapping[str, str]) -> None:
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    if nodes:
        environ.setdefault("MASTER_ADDR", first_node(nodes))
    step = f"{environ.get('SLURM_JOB_ID', '0')}{environ.get('SLURM_STEP_ID', '0')}"
    if step.isdecimal():  # the same for all ranks of a step
        environ.setdefault("MASTER_PORT", str(_FIRST_PORT + int(step) % _PORTS))
    here = tasks_of_node(
        environ.get("SLURM_STEP_TASKS_PER_NODE", ""), int(environ.get("SLURM_NODEID") or 0)
    )
    if here is not None:
        environ.setdefault("LOCAL_WORLD_SIZE", str(here))


def _set_address(environ: MutableMapping[str, str]) -> None:
    if "MASTER_ADDR" not in environ:
        if environ.get("LOCAL_WORLD_SIZE") != environ["WORLD_SIZE"]:
            raise UsageError(
                f"Rank {environ['RANK']} of {environ['WORLD_SIZE']} on several hosts has no "
                "MASTER_ADDR. Set it to the first host, for all ranks."
            )
        environ["MASTER_ADDR"] = "127.0.0.1"
    environ.setdefault("MASTER_PORT", str(PORT))


def tasks_of_node(tasks: str, node: int) -> int | None:
    """Tasks of the `node`-th node by the Slurm list `tasks`: 1 on node 2 by `2(x2),1`; None for an
    invalid list, or one of fewer nodes."""
    each: list[int] = []
    for part in tasks.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            return None
        each += [int(match[1])] * int(match[2] or 1)
    return each[node] if node < len(each) else None


def first_node(nodes: str) -> str:
    """`n01` of the Slurm node list `n[01-03,7],gpu5`; UsageError for an invalid list."""
    match = _FIRST_NODE.match(nodes)
    if match is None:
        raise UsageError(f"'{nodes}' is not a Slurm node list such as n[01-03],gpu5.")
    return match[1] + (match[2] or "")
