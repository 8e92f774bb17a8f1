"""Connections that send no whole request, read no answer, or complete no handshake, end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubemesh.web.security.connections import TimedProtocol
from cubemesh.web.security.tls import TlsHandshakes, limit_handshakes
from patience import PATIENCE_S, wait_until
from served import certificate, in_thread

REQUEST = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


BRIEF_S = 0.05


class Timed(TimedProtocol):
    most_wait_s = PATIENCE_S


class Site:
    """Shortens the wait for requests when it gets one; answers `/slow` when `answer` is set, and
    `/large` with more than a connection buffers."""

    def __init__(self) -> None:
        self.answer, self.asked = threading.Event(), threading.Event()
        self.port = 0
        self.server: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        Timed.most_wait_s = BRIEF_S
        self.asked.set()
        while scope["path"] == "/slow" and not self.answer.is_set():
            await asyncio.sleep(0.01)
        body = b"x" * ((64 << 20) if scope["path"] == "/large" else 2)
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body})

    @contextmanager
    def connected(self, sent: bytes) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as connection:
            connection.sendall(sent)
            yield connection


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(Timed, "most_wait_s", PATIENCE_S)
    site = Site()
    with in_thread(site, http=Timed, ws="none") as (site.server, site.port):
        try:
            yield site
        finally:
            site.answer.set()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTT",
        REQUEST[:-2] % b"",
        REQUEST % b"" + b"GET / HTT",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx",
    ],
)
def test_a_client_that_sends_no_whole_request_is_disconnected(site: Site, sent: bytes) -> None:
    if b"\r\n\r\n" not in sent:
        Timed.most_wait_s = BRIEF_S
    with site.connected(sent) as connection:
        found = b""
        while part := connection.recv(4096):
            found += part
        assert found.count(b"HTTP/1.1 200") == (b"\r\n\r\n" in sent)
    wait_until(lambda: not site.server.server_state.connections, "the connection ends")


def test_an_answer_that_takes_long_is_waited_for(site: Site) -> None:
    with site.connected(REQUEST % b"slow") as patient:
        assert site.asked.wait(PATIENCE_S)
        with site.connected(b"") as idle:
            assert idle.recv(1) == b""  # so that long
        site.answer.set()
        assert patient.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_client_that_reads_nothing_is_disconnected(site: Site) -> None:
    with site.connected(REQUEST % b"large"):
        assert site.asked.wait(PATIENCE_S)
        wait_until(lambda: not site.server.server_state.connections, "the connection ends")


MOST = 3
"""Handshakes at the same time."""


class Secured(Site):
    """The same with TLS."""

    handshakes: TlsHandshakes
    context: ssl.SSLContext


@pytest.fixture
def secured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Secured]:
    monkeypatch.setattr(Timed, "most_wait_s", PATIENCE_S)
    cert, key = certificate(tmp_path)
    site = Secured()
    site.context = ssl.create_default_context(cafile=str(cert))

    def prepare(config: Any) -> None:
        found = limit_handshakes(config, most=MOST, most_wait_s=PATIENCE_S)
        assert found is not None
        site.handshakes = found

    options: dict[str, Any] = {
        "ssl_certfile": cert,
        "ssl_keyfile": key,
        "http": Timed,
        "ws": "none",
    }
    with in_thread(site, prepare=prepare, **options) as (site.server, site.port):
        yield site


def client_hello(site: Secured) -> bytes:
    out = ssl.MemoryBIO()
    client = site.context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def ended(connection: socket.socket) -> bool:
    """Whether the server ends a connection; waits for that."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            pass
    return True


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["nothing", "half", "the first message"])
def test_a_client_that_completes_no_handshake_is_disconnected(
    secured: Secured, part: float
) -> None:
    secured.handshakes.most_wait_s = BRIEF_S
    hello = client_hello(secured)
    with secured.connected(hello[: round(part * len(hello))]) as connection:
        assert ended(connection)
    wait_until(lambda: not secured.handshakes.pending, "the handshake ends")
    with secured.connected(REQUEST % b"") as plain:
        assert ended(plain)  # no TLS at all
    assert not secured.asked.is_set()


def test_of_too_many_handshakes_the_oldest_end_and_others_are_served(secured: Secured) -> None:
    with ExitStack() as stack:
        silent = []
        for _ in range(MOST):
            silent.append(stack.enter_context(secured.connected(b"")))
            wait_until(lambda: len(secured.handshakes.pending) == len(silent), "it is accepted")
        for oldest in silent:  # each newcomer takes the place of the oldest
            address = f"https://127.0.0.1:{secured.port}/"
            found = httpx.get(address, verify=secured.context, timeout=PATIENCE_S)
            assert found.status_code == 200
            assert ended(oldest)
            stack.enter_context(secured.connected(b""))
            wait_until(lambda: len(secured.handshakes.pending) == MOST, "it is accepted")


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(secured: Secured) -> None:
    received, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = secured.context.wrap_bio(received, out, server_hostname="127.0.0.1")

    def until_done(step: Any, connection: socket.socket) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                connection.sendall(out.read())
                received.write(connection.recv(65536))

    with secured.connected(b"") as connection:
        until_done(client.do_handshake, connection)
        client.write(REQUEST % b"")
        connection.sendall(out.read())  # in one piece
        assert until_done(partial(client.read, 4096), connection).startswith(b"HTTP/1.1 200")
    wait_until(lambda: not secured.server.server_state.connections, "the connection ends")
