"""Agent of a server: `python -m cubemesh.jobs.hosted` runs jobs until its server ends.

It reads the store from standard input, as its URL may hold a password. The kernel sends it SIGTERM
when its server is killed, so trainings stop at a checkpoint in any case. It leads a session of its
own: Ctrl-C in the server's terminal reaches the server alone, which then ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

from cubemesh.errors import BusyError, CubemeshError, StoreError
from cubemesh.jobs.agent import END_S, JobAgent
from cubemesh.jobs.forkserver import JobServer
from cubemesh.jobs.queue import JobQueue
from cubemesh.store import Store
from cubemesh.worker.report.limits import die_with_parent, name_process


class HostedAgent:
    """An agent as a child of this process. `start` it in the main thread."""

    def __init__(self, location: str, announce: Callable[[str], None]) -> None:
        self._location, self._announce = location, announce
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cubemesh.jobs.hosted"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                text=True,
            )
        except OSError as error:
            self._announce(f"no agent could be started: {error.strerror}.")
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            given = {"store": self._location, "server": os.getpid()}
            self._process.stdin.write(json.dumps(given) + "\n")
            self._process.stdin.close()

    def stop(self) -> None:
        """End it, and wait for its trainings to reach a checkpoint; an interrupt while waiting ends
        them at once, and is raised again."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
                return
            self._announce("the agent's jobs stop at a checkpoint; Ctrl-C again ends them at once.")
            process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2 * END_S)
            process.kill()
            raise


def runs_here(queue: JobQueue) -> bool:
    """Whether an agent of this store already runs on this host."""
    host = socket.gethostname()
    alive = [one for one in queue.agents() if one.state == "alive" and one.hostname == host]
    return any(_exists(one.process) for one in alive)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main() -> int:
    """Run jobs until a signal."""
    given = json.loads(sys.stdin.readline())
    die_with_parent(given["server"], signal.SIGTERM)
    name_process("cubemesh-agent")
    try:
        with closing(JobServer.fork()) as server, Store.open(given["store"]) as store:
            store.recover()
            JobAgent(store=store, location=given["store"], server=server, announce=_announce).run()
    except (StoreError, BusyError, CubemeshError) as error:
        _announce(f"the agent ended: {error}")
        return 1
    return 0


def _announce(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
