"""Requests that change something must come from our own pages, or carry the token.

Browsers say where a request comes from: `Sec-Fetch-Site`, and `Origin` for every POST. A form or
script of another page cannot change either.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""
KNOWN_METHODS = SAFE_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
_OWN_SITE = ("same-origin", "none")


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request with these headers (lower-case names) comes from a page of its own host.
    One without `Origin` is refused: every browser sends it with what changes something."""
    origin = headers.get("origin", "")
    try:
        asked = urlsplit(origin)
        own = asked.scheme in ("http", "https") and _place(asked.netloc) == _place(
            headers.get("host", "")
        )
    except ValueError:
        return False
    return own and headers.get("sec-fetch-site", "same-origin") in _OWN_SITE


def _place(netloc: str) -> str:
    """Host and port; without the port where it is that of the scheme."""
    place = netloc.lower()
    for usual in (":80", ":443"):
        place = place.removesuffix(usual)
    return place
