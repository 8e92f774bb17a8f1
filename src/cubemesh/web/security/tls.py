"""TLS handshakes: one that does not complete ends in time, and of too many the oldest ends.

    accept ─▶ handshake, at most `MOST_WAIT_S` and `MOST_HANDSHAKES` at the same time ─▶ HTTP

asyncio's own TLS server waits 60 s for each handshake and limits none: each takes a file, and a
client that opens connections and sends nothing would take all of them. A client that does complete
its handshake takes a fraction of a second, so it is not the oldest of many.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

from cubemesh.web.security.connections import MOST_WAIT_S

MOST_HANDSHAKES = 100
"""Handshakes at the same time; a further one ends the oldest."""


class TlsHandshakes:
    """Makes protocols of connections (uvicorn's `http`) that begin with a handshake; then the
    connection is `protocol`'s."""

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: Callable[..., asyncio.Protocol],
        *,
        most: int = MOST_HANDSHAKES,
        most_wait_s: float = MOST_WAIT_S,
    ) -> None:
        self.context, self.most_wait_s = context, most_wait_s
        self.pending: dict[_Handshake, None] = {}
        """Handshakes that are not complete, the oldest first."""
        self._protocol, self._most = protocol, most

    def __call__(self, **given: Any) -> asyncio.Protocol:
        """The protocol of a connection that is accepted."""
        return _Handshake(self, partial(self._protocol, **given))

    def begin(self, handshake: _Handshake) -> None:
        """A handshake begins; where there are too many, the oldest ends."""
        while len(self.pending) >= self._most:
            next(iter(self.pending)).abort()
        self.pending[handshake] = None

    def close(self) -> None:
        """End those that are not complete: the server ends."""
        for handshake in list(self.pending):
            handshake.abort()


class _Handshake(asyncio.Protocol):
    """A connection until its handshake is complete."""

    def __init__(self, owner: TlsHandshakes, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._owner, self._protocol = owner, protocol
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._received = b""
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._owner.begin(self)
        self._task = asyncio.get_running_loop().create_task(self._complete(transport))

    def data_received(self, data: bytes) -> None:
        """The client sent its request together with the end of the handshake."""
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        """It closed the connection together with the end of the handshake."""
        self._lost = True

    def abort(self) -> None:
        """End the connection."""
        self._owner.pending.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    async def _complete(self, transport: asyncio.Transport) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._owner.context,
                server_side=True,
                ssl_handshake_timeout=self._owner.most_wait_s,
                ssl_shutdown_timeout=self._owner.most_wait_s,
            )
        except OSError:  # no TLS, not in time, or closed; asyncio has closed the connection
            return
        finally:
            self._owner.pending.pop(self, None)
        if secured is None or self._lost:  # it was aborted
            return
        protocol = self._protocol()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._received:
            protocol.data_received(self._received)


def limit_handshakes(
    config: uvicorn.Config, *, most: int = MOST_HANDSHAKES, most_wait_s: float = MOST_WAIT_S
) -> TlsHandshakes | None:
    """Let the connections of a loaded configuration begin with limited handshakes; None without
    TLS."""
    if config.ssl is None:
        return None
    found = TlsHandshakes(
        config.ssl, config.http_protocol_class, most=most, most_wait_s=most_wait_s
    )
    config.http_protocol_class = found  # type: ignore[assignment]
    config.ssl = None  # asyncio would begin a handshake of its own
    return found
