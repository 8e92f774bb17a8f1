"""Static files: read once, compressed once, with the digest of their content in their address."""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from cubemesh.views.report.style import report_style

_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_REPORT_STYLE = "report.css"
"""The style of the report with its colours; made, as the colours are in views/theme.py."""
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, kw_only=True)
class StaticFile:
    """A file and its compressed form."""

    kind: str
    content: bytes
    compressed: bytes
    digest: str


@functools.cache
def static_files() -> dict[str, StaticFile]:
    """Name → file: those of the folder `static` with a known ending, and the report's style."""
    found = {
        path.name: path.read_bytes()
        for path in resources.files("cubemesh.web").joinpath("static").iterdir()
        if path.name.rpartition(".")[2] in _TYPES
    }
    found[_REPORT_STYLE] = report_style().encode()
    return {
        name: StaticFile(
            kind=_TYPES[name.rpartition(".")[2]],
            content=content,
            compressed=gzip.compress(content, mtime=0),
            digest=hashlib.sha256(content).hexdigest()[:16],
        )
        for name, content in found.items()
    }


def address_of(name: str) -> str:
    """The address of a static file; KeyError for a name that is not one."""
    return f"/static/{name}?v={static_files()[name].digest}"


def static_response(request: Request) -> Response:
    """A static file, compressed if the browser takes that; 404 for another name."""
    found = static_files().get(request.path_params["name"])
    if found is None:
        return Response("There is no such file.", 404, media_type="text/plain")
    known = request.query_params.get("v") == found.digest
    headers = {
        "cache-control": _FOR_EVER if known else "no-cache",
        "vary": "accept-encoding",
        "content-type": found.kind,
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.compressed, headers=headers | {"content-encoding": "gzip"})
    return Response(found.content, headers=headers)
