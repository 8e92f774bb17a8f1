"""Job of a worker: one spec for one rank, written by the runner as `job.json` into the run's
folder.

Everything the worker writes is in that folder too: `events-<rank>.jsonl` (events.py),
`output-<rank>.txt` (the framework's output, and the stacks of a crash), `stacks-<rank>.txt` (the
stacks that the runner requested), and what NCCL writes (`NCCL_DUMPS`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cubemesh.errors import DataError
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.schema.spec import RunSpec

JOB_FILE = "job.json"

RUNS_FOLDER_VARIABLE = "CUBEMESH_RUNS_FOLDER"
"""Environment variable of every server and worker that identifies their runner: its folder."""


NCCL_DUMPS = {
    "NCCL_TOPO_DUMP_FILE": "nccl-topology.xml",
    "NCCL_GRAPH_DUMP_FILE": "nccl-graphs.xml",
}
"""Environment variable of NCCL → the file in the run's folder that it names."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One spec for one rank."""

    spec: RunSpec
    folder: str
    """The run's folder; it exists."""
    rank: int = 0
    origin: float | None = None
    """Begin of the run, a reading of `time.perf_counter()` on this host; None is when the worker
    reads the job."""
    usable_cores: int | None = None
    """Cores that the process may use, from the runner's probe; None is what the scheduler
    allows."""
    gpu_memory_bytes: int | None = None
    """Memory of the run's GPU, from the runner's probe."""
    gpu_uuid: str | None = None
    """That GPU; None for a run on the CPU."""
    pause_file: str | None = None
    """A training pauses when this file exists; None: it cannot be paused."""
    gpu_uuids: tuple[str, ...] = ()
    """GPUs of all ranks, in order, on several devices."""

    @property
    def output_path(self) -> Path:
        """Stdout and stderr of the worker."""
        return Path(self.folder, f"output-{self.rank}.txt")

    @property
    def agent_output_path(self) -> Path:
        """Stdout and stderr of the process that starts the ranks."""
        return Path(self.folder, "output-agent.txt")

    @property
    def stacks_path(self) -> Path:
        """Stacks of every thread, written on SIGUSR1."""
        return Path(self.folder, f"stacks-{self.rank}.txt")

    @property
    def path(self) -> Path:
        """The file the job is written to."""
        return Path(self.folder, JOB_FILE)

    def write(self) -> Path:
        """Write the job into its folder; returns the file's path."""
        path = self.path
        path.write_text(json.dumps(to_plain(self)), encoding="utf-8")
        return path


def read_job(path: Path) -> Job:
    """Read a job; DataError for a missing or invalid file."""
    try:
        return from_plain(Job, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"'{path}' is not a valid job file: {error}") from error


def trace_name(rank: int) -> str:
    """Name of a rank's trace among the artifacts of a run."""
    return f"trace of rank {rank}" if rank else "trace"


def trace_file(rank: int) -> str:
    """File of a rank's trace in the run's folder."""
    return f"trace-{rank}.json" if rank else "trace.json"
