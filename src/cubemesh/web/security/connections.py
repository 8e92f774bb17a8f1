"""Connections that send no whole request are closed, as each takes one of a limited number."""

from __future__ import annotations

import asyncio
import sys

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_WAIT_S = 10.0
"""From the beginning of a connection, or the end of an answer, to the end of the next head."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on a connection that is closed when a request does not arrive in time. The time of a
    body has a limit of its own (limits.py), an answer has none."""

    most_wait_s = MOST_WAIT_S
    _timer: asyncio.TimerHandle | None = None
    _unread_bytes = sys.maxsize

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """A part of a request has arrived."""
        super().data_received(data)
        if self._answering:
            self._end()

    def on_response_complete(self) -> None:
        """A request was answered; one that arrived meanwhile is begun."""
        super().on_response_complete()
        if not self._answering:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._end()
        super().connection_lost(exc)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _begin(self) -> None:
        self._end()
        self._timer = self.loop.call_later(self.most_wait_s, self._close)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        """Close the connection, when the client has read what was sent before; at once if it reads
        none of it in the same time."""
        unread_bytes = self.transport.get_write_buffer_size()
        if self.transport.is_closing() and unread_bytes >= self._unread_bytes:
            self.transport.abort()
            return
        self._unread_bytes = unread_bytes
        self.transport.close()
        self._begin()
