"""HTTP: ranges of files on a web server or in an object store's public bucket.

A thread has one connection, which stays open between requests. Ranges are requested as RFC 9110,
section 14, defines them; a server that ignores them (it answers 200) is refused, because every
image would cost a whole shard. Proxies are those of the environment (`https_proxy`, `no_proxy`).
"""

from __future__ import annotations

import functools
import http.client
import io
import re
import socket
import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from cubemesh import __version__
from cubemesh.data.remote.folder import HTTP, ReadDeadline, TemporaryError, resumed
from cubemesh.errors import DataError
from cubemesh.untrusted import clean

TIMEOUT_S = 60.0
"""Seconds without a byte after which a connection counts as lost."""
REDIRECTS = 5
BLOCK_BYTES = 1 << 18
_REDIRECT = (301, 302, 303, 307, 308)
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_LENGTH = re.compile(r"\d{1,19}")


class HttpFolder:
    """See `RemoteFolder`. Threads may read at the same time."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._own = threading.local()

    def read(self, name: str, offset: int, size: int) -> bytes:
        """See `RemoteFolder.read`."""
        url = self._url_of(name)
        deadline = ReadDeadline(url)

        def fetch(done: int, into: bytearray) -> bool:
            if done == size:
                return True
            first, last = offset + done, offset + size - 1
            with _Answer(self, url, f"bytes={first}-{last}", deadline) as answer:
                if answer.status == 200:
                    raise DataError(
                        f"{clean(url, 200)}: the server ignores requests for a range of a file, "
                        "so each image would cost a whole shard. Serve the set with a server that "
                        "answers ranges (nginx, Apache, Caddy, an object store), or copy it."
                    )
                given = _RANGE.fullmatch(answer.response.headers.get("Content-Range", ""))
                if answer.status != 206 or given is None or int(given[1]) != first:
                    raise DataError(f"{clean(url, 200)}: the server answered another range.")
                answer.take(into, size - done)
            if len(into) < size:
                raise TemporaryError("the connection ended early")
            return True

        return resumed(fetch, deadline)

    def read_file(self, name: str, most_bytes: int) -> bytes:
        """See `RemoteFolder.read_file`; after an interruption it is requested from its start."""
        url = self._url_of(name)
        deadline = ReadDeadline(url)

        def fetch(_: int, into: bytearray) -> bool:
            whole = bytearray()
            with _Answer(self, url, None, deadline) as answer:
                length = answer.response.headers.get("Content-Length", "")
                answer.take(whole, most_bytes + 1)
            if len(whole) > most_bytes:
                raise DataError(f"{clean(url, 200)} has more than {most_bytes} bytes.")
            if _LENGTH.fullmatch(length) and len(whole) < int(length):
                raise TemporaryError("the connection ended early")
            into += whole
            return True

        return resumed(fetch, deadline)

    def _url_of(self, name: str) -> str:
        return f"{self.url}/{quote(name)}"

    @property
    def connections(self) -> dict[tuple[str, str], tuple[HTTPConnection, bool]]:
        """This thread's open connections, by scheme and host."""
        if not hasattr(self._own, "connections"):
            self._own.connections = {}
        found: dict[tuple[str, str], tuple[HTTPConnection, bool]] = self._own.connections
        return found

    def connection(self, scheme: str, host: str) -> tuple[HTTPConnection, bool]:
        """This thread's connection to a host, and whether requests name whole URLs, as a proxy
        takes them."""
        found = self.connections
        if (scheme, host) not in found:
            found[scheme, host] = _connect(scheme, host)
        return found[scheme, host]

    def forget(self, scheme: str, host: str) -> None:
        """Close this thread's connection to a host."""
        found = self.connections.pop((scheme, host), None)
        if found is not None:
            found[0].close()


def _connect(scheme: str, host: str) -> tuple[HTTPConnection, bool]:
    kind: Callable[..., HTTPConnection] = HTTPSConnection if scheme == "https" else HTTPConnection
    proxy = urllib.request.getproxies().get(scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return kind(host, timeout=TIMEOUT_S), False
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}").netloc.rpartition("@")[2]
    connection = kind(through, timeout=TIMEOUT_S)
    if scheme == "https":
        connection.set_tunnel(host)
    return connection, scheme == "http"


class _DeadlineReader(io.RawIOBase):
    """The bytes of a connection as they come, within the deadline of a read."""

    def __init__(self, connection: socket.socket, deadline: ReadDeadline) -> None:
        self._socket, self._deadline = connection, deadline
        self._bytes = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, into: Any) -> int | None:
        """DataError after the deadline."""
        self._socket.settimeout(min(TIMEOUT_S, self._deadline.check()))
        try:
            received = self._bytes.readinto(into)
        except TimeoutError:
            self._deadline.check()
            raise
        self._deadline.count(received or 0)
        return received

    def close(self) -> None:
        """Leave the connection open."""
        self._bytes.close()
        super().close()


class _DeadlineResponse(HTTPResponse):
    """A response whose head and body are read within the deadline of a read."""

    def __init__(
        self, deadline: ReadDeadline, sock: socket.socket, *more: Any, **settings: Any
    ) -> None:
        super().__init__(sock, *more, **settings)
        reader = io.BufferedReader(_DeadlineReader(sock, deadline))
        self.fp.close()
        self.fp = reader  # type: ignore[assignment]


class _Answer:
    """The answer to one request, after redirections; TemporaryError or DataError otherwise."""

    response: HTTPResponse

    def __init__(
        self, folder: HttpFolder, url: str, wanted: str | None, deadline: ReadDeadline
    ) -> None:
        self._folder, self._deadline = folder, deadline
        self._headers = {"User-Agent": f"cubemesh/{__version__}", "Accept-Encoding": "identity"}
        if wanted is not None:
            self._headers["Range"] = wanted
        for _ in range(REDIRECTS + 1):
            self._ask(url)
            if self.status not in _REDIRECT:
                break
            target = self.response.headers.get("Location", "")
            self._end()
            url = _redirected(url, target)
        else:
            raise DataError(f"{clean(url, 200)}: more than {REDIRECTS} redirections.")
        if self.status in (200, 206):
            return
        self._end()
        reason = f"{self.status} {clean(self.response.reason, 60)}"
        if self.status in _TEMPORARY:
            raise TemporaryError(f"the server answers {reason}")
        raise DataError(f"{clean(url, 200)} cannot be read: the server answers {reason}.")

    @property
    def status(self) -> int:
        """The code of the answer."""
        return self.response.status

    def _ask(self, url: str) -> None:
        parts = urlsplit(url)
        self._place = (parts.scheme.lower(), parts.netloc.rpartition("@")[2])
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        while True:
            used = self._place in self._folder.connections
            try:
                connection, whole = self._folder.connection(*self._place)
                # The head of the answer is read by it too, and that of a proxy.
                connection.response_class = functools.partial(  # type: ignore[assignment]
                    _DeadlineResponse, self._deadline
                )
                if connection.sock is not None:
                    connection.sock.settimeout(TIMEOUT_S)  # that of the last answer may be short
                connection.request("GET", url if whole else path, headers=self._headers)
                self.response = connection.getresponse()
                return
            except (OSError, HTTPException) as error:
                self._end()
                if not used:  # the server may close one that was open
                    raise TemporaryError(_reason(error)) from error
                self._deadline.check()
            except DataError:  # too slow
                self._end()
                raise
            except ValueError as error:  # of a redirection: a host or path that cannot be sent
                self._end()
                raise DataError(
                    f"{clean(url, 200)} cannot be requested: {_reason(error)}."
                ) from error

    def take(self, into: bytearray, most: int) -> None:
        """Append at most so many bytes of the body."""
        left = most
        # A chunk may claim a negative size; `read` would then read to the end of the connection.
        read = self.response.read1 if self.response.chunked else self.response.read
        try:
            while left and (block := read(min(left, BLOCK_BYTES))):
                into += block[:left]
                left -= len(block[:left])
        except http.client.IncompleteRead as error:
            into += error.partial[:left]
            self._end()
            raise TemporaryError("the connection ended early") from error
        except DataError:  # too slow
            self._end()
            raise
        except (OSError, HTTPException, ValueError) as error:
            self._end()
            raise TemporaryError(_reason(error)) from error

    def _end(self) -> None:
        self._folder.forget(*self._place)

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *error: object) -> None:
        if not self.response.isclosed():  # a body that was not read to its end
            self._end()


def _redirected(url: str, target: str) -> str:
    """The URL to which `url` is redirected; DataError where it is none of HTTP."""
    try:
        found = urljoin(url, target)
        if target and urlsplit(found).scheme in HTTP:
            return found
    except ValueError:
        pass
    where = clean(target, 200) or "nowhere"
    raise DataError(f"{clean(url, 200)}: the server redirects to {where}, which is not HTTP.")


def _reason(error: Exception) -> str:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(words)
