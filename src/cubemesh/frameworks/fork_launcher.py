"""A launcher for frameworks without one: forks a process for each device of this host.

    agent ──fork──▶ rank 0 … rank N − 1     RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
          ◀──exit── one fails: all others are ended
          serves the key-value store (contract/rendezvous.py)

The calling process must have no threads: they do not survive a fork.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from cubemesh.frameworks.contract.rendezvous import KEY_VARIABLE, serve_store

HOST = "127.0.0.1"


def launch(
    run_rank: Callable[[str], None],
    job: str,
    ranks: int,
    environ_of: Callable[[int], Mapping[str, str]] = lambda rank: {},
) -> dict[int, int]:
    """See `SupportsDistributed`; `environ_of` returns further environment variables of a rank."""
    (port,) = free_ports(1)
    key = secrets.token_hex(16)
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        KEY_VARIABLE: key,
    }
    sys.stdout.flush()
    pids: dict[int, int] = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **environ_of(rank)}
            _be_rank(run_rank, job, {**shared, **own})
        pids[pid] = rank
    serve_store((HOST, port), key)  # by threads, so after the last fork
    return _watch(pids)


def free_ports(count: int) -> list[int]:
    """Free ports of this host."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


def _be_rank(run_rank: Callable[[str], None], job: str, environ: Mapping[str, str]) -> NoReturn:
    """Run a rank in the forked child."""
    code = 1
    try:
        os.environ.update(environ)
        run_rank(job)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: the agent's stack must not be unwound in this process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _watch(pids: dict[int, int]) -> dict[int, int]:
    """Wait for all; the exit code of the first that failed, after which the others are killed."""
    failed: dict[int, int] = {}
    living = dict(pids)
    while living:
        pid, status = os.wait()
        rank, code = living.pop(pid), os.waitstatus_to_exitcode(status)
        if code and not failed:
            failed[rank] = code
            for other in living:
                os.kill(other, signal.SIGKILL)
    return failed
