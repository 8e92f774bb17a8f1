"""How do ranks tell one another plain data where their framework has no store for it?

Their launcher keeps a board that all can write on and read from, served by threads of its own
(`multiprocessing.managers`, over TCP). Whoever reads a key waits until it is there. (Not rank 0
keeps it: TensorFlow holds Python's lock while it joins others, and nobody would be served.)

    launcher   forks the ranks with MASTER_ADDR, MASTER_PORT and a key, then puts the board up
    rank       open_board ─▶ a proxy of it
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.managers import BaseManager
from typing import Any, Protocol, cast

KEY_VARIABLE = "CUBEMESH_BOARD_KEY"
"""Environment variable: what a rank must know to be let in."""
_LOOK_AGAIN_S = 0.05


class Board:
    """Values by key."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: Any) -> None:
        """Write a value, which stays."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def add(self, key: str) -> int:
        """Count one more under a key; how many there are now."""
        with self._changed:
            self._values[key] = self._values.get(key, 0) + 1
            return int(self._values[key])

    def has(self, key: str) -> bool:
        """Whether something is written there."""
        with self._changed:
            return key in self._values

    def wait(self, key: str, timeout_s: float | None) -> Any:
        """What is written there, when it is; TimeoutError where it is not within `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(f"no rank has said '{key}' within {timeout_s:g} s")
            return self._values[key]


class _Manager(BaseManager):
    pass


class _HasBoard(Protocol):
    def board(self) -> Board:
        """The one board."""


def open_board(timeout_s: float) -> Board:
    """The board of this run's ranks. TimeoutError where it is not up within `timeout_s`."""
    _Manager.register("board")
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    manager = _Manager(address, os.environ[KEY_VARIABLE].encode())
    _until(manager.connect, timeout_s)
    return cast(_HasBoard, manager).board()


def put_up(address: tuple[str, int], key: str) -> None:
    """Put up a board, which stays as long as this process lives."""
    board = Board()
    _Manager.register("board", callable=lambda: board)
    server = _Manager(address, key.encode()).get_server()
    threading.Thread(target=_serve, args=(server,), name="board", daemon=True).start()


def _serve(server: Any) -> None:
    with suppress(SystemExit):  # by which the server ends
        server.serve_forever()


def _until(connect: Callable[[], None], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return connect()
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the launcher keeps no board after {timeout_s:g} s") from error
            time.sleep(_LOOK_AGAIN_S)
