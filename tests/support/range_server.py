"""HTTP servers on loopback: of a folder, with ranges and with faults that a test asks for; of given
bytes, whatever is requested."""

from __future__ import annotations

import contextlib
import re
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote


class RangeServer:
    """Serves the files of `root`; used in a `with`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[tuple[str, str | None]] = []
        """(path, range) of each request."""
        self.statuses: list[int] = []
        """Codes that the next requests for tar files get."""
        self.cuts: list[int] = []
        """Bytes after which the next bodies of tar files end."""
        self.ignores_ranges = False
        self.redirects = False
        self.dies_after: int | None = None
        """Requests for tar files after which every connection ends without an answer."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a body need not wait for the receipt of its header

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def tars(self) -> int:
        """Requests for tar files."""
        return sum(path.endswith(".tar") for path, _ in self.requests)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        path, wanted = unquote(handler.path), handler.headers.get("Range")
        if self.redirects and not path.startswith("/moved"):
            handler.send_response(302)
            handler.send_header("Location", f"/moved{handler.path}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        path = path.removeprefix("/moved")
        self.requests.append((path, wanted))
        is_tar = path.endswith(".tar")
        if self.dies_after is not None and self.tars > self.dies_after:
            handler.close_connection = True
            return
        file = self.root / path.lstrip("/")
        if not file.is_file():
            handler.send_error(404)
            return
        if is_tar and self.statuses:
            handler.send_error(self.statuses.pop(0))
            return
        content = file.read_bytes()
        body, code = content, 200
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted or "")
        if found and not self.ignores_ranges:
            first, last = int(found[1]), min(int(found[2]), len(content) - 1)
            body, code = content[first : last + 1], 206
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(body)))
        if code == 206:
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        handler.end_headers()
        if is_tar and self.cuts:
            body = body[: self.cuts.pop(0)]
            handler.close_connection = True
        handler.wfile.write(body)

    def __enter__(self) -> RangeServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the server; open connections end, and new ones are refused."""
        self.dies_after = -1
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stop()


class RawServer:
    """Answers every request with the same bytes, then with `endless` until the connection ends;
    used in a `with`."""

    def __init__(self, answer: bytes, endless: bytes = b"") -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    while self.rfile.readline().strip():
                        pass
                    self.wfile.write(answer)
                    while endless:
                        self.wfile.write(endless)

            def finish(self) -> None:
                with contextlib.suppress(OSError):
                    super().finish()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> RawServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
