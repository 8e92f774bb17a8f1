"""Worker process: `python -m cubemesh.worker` measures one spec on one rank.

    run JOB.json                         run one job in this process
    describe REQUEST.json RESULT.json    describe an own network (describe.py)
    host                                 run this host's ranks of a job that comes on stdin
    serve --framework NAME --parent PID  fork a worker for each job on stdin (forkserver.py)

Users and launchers (torchrun, mpirun, srun) call `run`; the runner uses `serve`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cubemesh.errors import CubemeshError
from cubemesh.untrusted import clean
from cubemesh.worker.describe import describe_to
from cubemesh.worker.forkserver import serve, work
from cubemesh.worker.launch.host_agent import HostAgent
from cubemesh.worker.launch.launcher_env import export_torch_env


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 if the run's outcome was written, else that of the error."""
    parser = argparse.ArgumentParser(prog="python -m cubemesh.worker", description="Run jobs.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run one job in this process")
    run.add_argument("job", type=Path, help="the job.json that a runner wrote")
    describe = verbs.add_parser("describe", help="describe a network of the user's own")
    describe.add_argument("request", type=Path)
    describe.add_argument("result", type=Path)
    server = verbs.add_parser("serve", help="fork a worker for each job named on stdin")
    server.add_argument("--framework", required=True)
    server.add_argument("--parent", type=int, required=True, help="process id of the runner")
    verbs.add_parser("host", help="run this host's ranks of a job that comes on stdin")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "run":
            export_torch_env(os.environ)
            return work(given.job)
        if given.verb == "describe":
            return describe_to(given.request, given.result)
        if given.verb == "host":
            return HostAgent().serve()
        serve(given.framework, given.parent)
    except CubemeshError as error:
        print(f"cubemesh.worker: {clean(str(error))}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
