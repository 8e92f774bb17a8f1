"""What a worker is told: one job, written by the runner as `job.json` into the run's own folder.

Everything the worker writes goes into that folder too: `events-<rank>.jsonl` (events.py),
`output-<rank>.txt` (whatever the framework prints, and the stacks at a crash) and
`stacks-<rank>.txt` (where each thread stood when the runner asked).
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
"""Environment variable that every server and worker carries, so that one can tell whose they are:
the folder of the runner that started them."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One spec for one rank."""

    spec: RunSpec
    folder: str
    """The run's folder; it exists."""
    rank: int = 0
    origin: float | None = None
    """Reading of `time.perf_counter()` when the run began, on this host; None is when the worker
    reads the job."""
    usable_cores: int | None = None
    """Cores the process may really use, as the runner's probe found them; None is what the
    scheduler allows."""
    gpu_memory_bytes: int | None = None
    """Memory of the GPU the run is placed on, as the runner's probe found it."""
    gpu_uuid: str | None = None
    """That GPU; None for a run on the CPU."""
    gpu_uuids: tuple[str, ...] = ()
    """Those of all ranks, in their order, where the run has several devices."""

    @property
    def output_path(self) -> Path:
        """Where stdout and stderr of the worker go."""
        return Path(self.folder, f"output-{self.rank}.txt")

    @property
    def agent_output_path(self) -> Path:
        """Where stdout and stderr of the process that starts the ranks go."""
        return Path(self.folder, "output-agent.txt")

    @property
    def stacks_path(self) -> Path:
        """Where SIGUSR1 makes the worker write the stack of every thread."""
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
    """The job in a file; DataError when there is none or it does not describe one."""
    try:
        return from_plain(Job, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"'{path}' is not a job a runner wrote: {error}") from error
