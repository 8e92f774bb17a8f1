"""NCCL's dumps: the topology and the graphs that NCCL wrote into a run's folder.

The files are those of a process that runs a framework's code, so they are opened as artifacts are
(`open_plain_file`) and parsed with limits (machines/topology/nccl_xml.py).
"""

from __future__ import annotations

from pathlib import Path

from cubemesh.machines.topology.nccl_graphs import nccl_topology
from cubemesh.machines.topology.nccl_xml import MOST_BYTES
from cubemesh.schema.collective import NcclTopology
from cubemesh.untrusted import open_plain_file
from cubemesh.worker.run.job_file import NCCL_DUMPS


def read_dumps(folder: Path) -> NcclTopology | None:
    """What NCCL wrote into the folder of a run; None where there is no file of it."""
    topology, graphs = (_text(folder, NCCL_DUMPS[variable]) for variable in NCCL_DUMPS)
    return None if topology is None and graphs is None else nccl_topology(topology, graphs)


def _text(folder: Path, file: str) -> str | None:
    """The text of a file, up to a little more than a parser takes; None without a plain file."""
    try:
        with open_plain_file(folder, file) as source:
            return source.read(MOST_BYTES + 1).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None
