"""Processes that share work: forked, so that what was opened before needs no copying.

The parent hands out one piece at a time and yields the results as they come. Processes end with the
parent, however it ends; one that dies (out of memory, say) ends the work with a DataError.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from cubemesh.errors import CubemeshError, DataError

PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""
S = TypeVar("S")
T = TypeVar("T")


def shared(work: Callable[[S], T], pieces: Sequence[S], processes: int) -> Iterator[T]:
    """`work` of each piece, in the order in which they are done; by this process itself where one
    is enough. DataError with the reason where a piece fails or a process dies."""
    if processes <= 1 or len(pieces) <= 1:
        for piece in pieces:
            yield _done(work, piece)
        return
    context = multiprocessing.get_context("fork")
    parent = os.getpid()
    started: list[tuple[Any, Connection]] = []
    waiting = list(reversed(pieces))
    try:
        for _ in range(min(processes, len(pieces))):
            ours, theirs = context.Pipe()
            others = [connection for _, connection in started] + [ours]
            process = context.Process(target=_serve, args=(work, theirs, others, parent))
            process.start()
            theirs.close()
            started.append((process, ours))
            ours.send(waiting.pop())
        busy = {connection: process for process, connection in started}
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                failed, result = _received(connection, busy[connection])
                if failed:
                    raise DataError(failed)
                if waiting:
                    connection.send(waiting.pop())
                else:
                    del busy[connection]
                yield result
    finally:
        for process, connection in started:
            connection.close()
            process.kill()
            process.join()
            process.close()


def _received(connection: Connection, process: Any) -> tuple[str, Any]:
    """(reason of a failure, result) from a process."""
    try:
        failed, result = connection.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        number = -(process.exitcode or 0)
        how = signal.Signals(number).name if number in {*signal.Signals} else "an error"
        return (
            f"A process ended by {how}. Finished shards stay; run the same command again, with "
            "fewer --processes if memory is short."
        ), None
    return str(failed), result


def _serve(
    work: Callable[[S], T], connection: Connection, others: Sequence[Connection], parent: int
) -> None:
    """Work on what comes until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
    for other in others:
        other.close()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            piece = connection.recv()
            try:
                connection.send(("", _done(work, piece)))
            except CubemeshError as error:
                connection.send((str(error), None))


def _done(work: Callable[[S], T], piece: S) -> T:
    try:
        return work(piece)
    except MemoryError as error:
        raise DataError("There is not enough memory. Try fewer --processes.") from error
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        raise DataError(
            f"{where}{error.strerror or error}. Finished shards stay; run the same command again "
            "when that is mended."
        ) from error
