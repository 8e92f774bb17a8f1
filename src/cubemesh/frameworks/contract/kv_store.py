"""Key-value store of a run's ranks, over sockets that they inherit: no port, no path, no pickle.

    launcher   makes a pair of connected sockets for each rank, forks the ranks, calls serve_store
    rank       connect_store ─▶ its end of its pair

Nothing listens: an end can only be inherited. A message is a JSON object on a line, of a limited
size and with checked fields:

    {"id": 7, "op": "get", "key": "a"}  ─▶  {"id": 7, "value": 3}

`get` is answered once the key is set. On several hosts the launchers pass messages on to the one
store of the run (worker/launch/multi_host_launcher.py), through the ssh connections.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from cubemesh.untrusted import parse_json, quoted

STORE_VARIABLE = "CUBEMESH_STORE_FD"
"""Environment variable of a rank: the file descriptor of its connection to the store."""
MESSAGE_BYTES = 1 << 24
KEY_CHARACTERS = 1024
_OPERATIONS = ("put", "add", "has", "get", "delete")

Message = dict[str, Any]


class MessageReader:
    """Messages from a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = b""

    def read(self) -> list[Message]:
        """The messages that one read completes; EOFError at the end, ValueError for anything that
        is not a message."""
        text = os.read(self._fd, 1 << 16)
        if not text:
            raise EOFError
        *lines, self._unread = (self._unread + text).split(b"\n")
        if len(self._unread) > MESSAGE_BYTES:
            raise ValueError(f"a message exceeds {MESSAGE_BYTES} bytes")
        messages = [parse_json(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a message is not a JSON object")
        return messages


def send_message(to: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message; ValueError for one that is too large."""
    line = json.dumps(message).encode() + b"\n"
    if len(line) > MESSAGE_BYTES:
        raise ValueError(f"a message of {len(line)} bytes exceeds {MESSAGE_BYTES}")
    to.sendall(line)


class KVStore:
    """The values themselves; any thread may call."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._waiting: defaultdict[str, list[Callable[[Any], None]]] = defaultdict(list)
        self._lock = threading.Lock()

    def handle(self, request: Mapping[str, Any], send: Callable[[Message], None]) -> None:
        """Answer a request by `send`, now or once its key is set; ValueError for an invalid one."""
        operation, key = request.get("op"), request.get("key")
        if operation not in _OPERATIONS or not isinstance(key, str) or len(key) > KEY_CHARACTERS:
            raise ValueError(f"not a request to the store: {quoted(dict(request))}")
        route: Message = {name: request[name] for name in ("id", "rank") if name in request}

        def reply(value: Any) -> None:
            send({**route, "value": value})

        with self._lock:
            if operation == "get" and key not in self._values:
                self._waiting[key].append(reply)
                return
            answer = self._apply(operation, key, request.get("value"))
            waiting = self._waiting.pop(key, []) if key in self._values else []
            value = self._values.get(key)
        reply(answer)
        for other in waiting:
            other(value)

    def _apply(self, operation: str, key: str, value: Any) -> Any:
        if operation == "put":
            self._values[key] = value
            return None
        if operation == "add":
            before = self._values.get(key, 0)
            if type(value) is not int or type(before) is not int:
                raise ValueError(f"'{key}' is not a counter")
            self._values[key] = before + value
            return before + value
        if operation == "has":
            return key in self._values
        if operation == "delete":
            return self._values.pop(key, None) is not None
        return self._values[key]


class StoreClient:
    """A rank's connection to the store; any thread may call, and a `get` that waits delays no
    other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, Future[Any]] = {}
        self._lost = False
        threading.Thread(target=self._read, name="store", daemon=True).start()

    def put(self, key: str, value: Any) -> None:
        """Set a value."""
        self._ask(None, op="put", key=key, value=value)

    def add(self, key: str, number: int = 1) -> int:
        """Add to the counter `key`; its new value."""
        return int(self._ask(None, op="add", key=key, value=number))

    def has(self, key: str) -> bool:
        """Whether the key is set."""
        return bool(self._ask(None, op="has", key=key))

    def delete(self, key: str) -> bool:
        """Remove a key; whether it was set."""
        return bool(self._ask(None, op="delete", key=key))

    def wait(self, key: str) -> None:
        """Return once the key is set, however long that takes."""
        self._ask(None, op="get", key=key)

    def get(self, key: str, timeout_s: float) -> Any:
        """The value of a key once it is set; TimeoutError after `timeout_s`."""
        return self._ask(timeout_s, op="get", key=key)

    def _ask(self, timeout_s: float | None, **request: Any) -> Any:
        answer: Future[Any] = Future()
        with self._lock:
            if self._lost:
                raise _lost()
            number = next(self._numbers)
            self._asked[number] = answer
            try:
                send_message(self._connection, {"id": number, **request})
            except OSError as error:
                raise _lost() from error
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            self._asked.pop(number, None)
            raise TimeoutError(
                f"no rank has set '{request['key']}' within {timeout_s:g} s"
            ) from error

    def _read(self) -> None:
        reader = MessageReader(self._connection.fileno())
        with suppress(EOFError, OSError, ValueError, LookupError):
            while True:
                for message in reader.read():
                    answer = self._asked.pop(message["id"], None)
                    if answer is not None:  # else its time was over
                        answer.set_result(message["value"])
        with self._lock:
            self._lost = True
            for answer in self._asked.values():
                answer.set_exception(_lost())


def _lost() -> ConnectionError:
    return ConnectionError("the run's launcher has ended, and the store with it")


def connect_store() -> StoreClient | None:
    """The store that this rank's launcher serves; None under the launcher of others."""
    fd = os.environ.get(STORE_VARIABLE)
    return None if fd is None else StoreClient(socket.socket(fileno=int(fd)))


def serve_store(ranks: Sequence[socket.socket], upstream: socket.socket | None = None) -> None:
    """Serve a store to `ranks` by a thread, as long as this process lives; with `upstream`, pass
    their messages on there."""
    target = _Server(ranks, upstream).serve
    threading.Thread(target=target, name="store", daemon=True).start()


class _Server:
    def __init__(self, ranks: Sequence[socket.socket], upstream: socket.socket | None) -> None:
        self._ranks, self._upstream = ranks, upstream
        self._store = KVStore()

    def serve(self) -> None:
        """Answer until every rank has ended."""
        with selectors.DefaultSelector() as selector:
            for end in (*self._ranks, *filter(None, [self._upstream])):
                selector.register(end, selectors.EVENT_READ, (end, MessageReader(end.fileno())))
            while selector.get_map():
                for ready, _ in selector.select():
                    end, reader = ready.data
                    try:
                        for message in reader.read():
                            self._pass(end, message)
                    except (EOFError, OSError, ValueError, TypeError, LookupError):
                        selector.unregister(end)
                        self._hang_up(end)

    def _pass(self, end: socket.socket, message: Message) -> None:
        if end is self._upstream:
            with suppress(OSError):  # that rank has ended
                send_message(self._ranks[message.pop("rank")], message)
        elif self._upstream is not None:
            send_message(self._upstream, {**message, "rank": self._ranks.index(end)})
        else:
            self._store.handle(message, lambda reply: _send_if_alive(end, reply))

    def _hang_up(self, end: socket.socket) -> None:
        """Tell a rank whose message was invalid, or, without the run's store, all of them."""
        for other in self._ranks if end is self._upstream else (end,):
            with suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)


def _send_if_alive(end: socket.socket, message: Message) -> None:
    with suppress(OSError):
        send_message(end, message)
