"""Launcher of ranks: forks a process for each device of this host.

    agent ──fork──▶ rank 0 … rank N − 1     RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE
          ◀──exit── one fails: all others are ended
          serves the key-value store (contract/kv_store.py)

No socket listens. The calling process must have no threads: they do not survive a fork.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from cubemesh.frameworks.contract.kv_store import STORE_VARIABLE, serve_store
from cubemesh.frameworks.contract.rendezvous import Rendezvous


def launch(
    run_rank: Callable[[str], None],
    job: str,
    ranks: int,
    rendezvous: Rendezvous | None = None,
    environ_of: Callable[[int], Mapping[str, str]] = lambda local_rank: {},
) -> dict[int, int]:
    """See `SupportsDistributed`; `environ_of` returns further environment variables of a rank of
    this host."""
    hosts, first = (1, 0) if rendezvous is None else (rendezvous.hosts, rendezvous.number * ranks)
    shared = {"WORLD_SIZE": str(hosts * ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    pairs = [socket.socketpair() for _ in range(ranks)]
    sys.stdout.flush()
    pids: dict[int, int] = {}
    for local_rank, (_, own) in enumerate(pairs):
        pid = os.fork()
        if pid == 0:
            # Other ends stay with their owners: the end of one is the end of its connection.
            for end in (end for pair in pairs for end in pair if end is not own):
                end.close()
            place = {"RANK": str(first + local_rank), "LOCAL_RANK": str(local_rank)}
            store = {STORE_VARIABLE: str(own.detach())}
            _be_rank(run_rank, job, {**shared, **place, **store, **environ_of(local_rank)})
        pids[pid] = first + local_rank
    for _, theirs in pairs:
        theirs.close()
    # By a thread, so after the last fork.
    serve_store([here for here, _ in pairs], None if rendezvous is None else rendezvous.store)
    return _watch(pids)


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
