"""Connections that send no whole request, or read no answer, end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cubemesh.web.security.connections import TimedProtocol
from patience import PATIENCE_S, wait_until
from served import in_thread

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
