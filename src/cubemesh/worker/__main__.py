"""`python -m cubemesh.worker`: the process that measures.

    run JOB.json                       run one job here and now, in a fresh process
    host                           the part of a job on this host, for a worker on another
    serve --framework NAME --parent PID  fork a worker for each job asked for on stdin (server.py)

`run` is what one calls by hand, and what a launcher such as torchrun, mpirun or srun calls; the
runner uses `serve`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cubemesh.errors import CubemeshError
from cubemesh.worker.launch.host_agent import HostAgent
from cubemesh.worker.launch.launcher_env import export_torch_env
from cubemesh.worker.server import serve, work


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 when the run's outcome was told, else that of the error."""
    parser = argparse.ArgumentParser(prog="python -m cubemesh.worker", description="Run jobs.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run one job in this process")
    run.add_argument("job", type=Path, help="the job.json that a runner wrote")
    server = verbs.add_parser("serve", help="fork a worker for each job named on stdin")
    server.add_argument("--framework", required=True)
    server.add_argument("--parent", type=int, required=True, help="process id of the runner")
    verbs.add_parser("host", help="run this host's ranks of a job that comes on stdin")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "run":
            export_torch_env(os.environ)
            return work(given.job)
        if given.verb == "host":
            return HostAgent().serve()
        serve(given.framework, given.parent)
    except CubemeshError as error:
        print(f"cubemesh.worker: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
