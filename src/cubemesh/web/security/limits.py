"""Limits of a request: its size, the time of its body, and what it may hold."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive

MOST_BODY_BYTES = 64 * 1024
"""Of a request's body: settings and forms, no files."""
MOST_BODY_S = 10.0
"""From the first wait for a body to its end."""
MOST_ADDRESS_BYTES = 8 * 1024
"""Of a path with its parameters: the ids of 50 runs fit."""
MOST_FORM_FIELDS = 200
"""Of a form: an experiment has about 100 settings."""
MOST_FIELDS = 64
"""Of the parameters of a page."""


TOO_LARGE = "This request is larger than this server accepts."
TOO_SLOW = f"The body of this request did not arrive within {MOST_BODY_S:g} seconds."


class TooLargeError(Exception):
    """The body of a request is larger than allowed."""


class TooSlowError(Exception):
    """The body of a request does not arrive in time."""


def limited(receive: Receive, most: int = MOST_BODY_BYTES, seconds: float = MOST_BODY_S) -> Receive:
    """`receive` that raises TooLargeError when the body is longer than `most` bytes, and
    TooSlowError when it takes longer than `seconds`."""
    seen, whole, end_s = 0, False, 0.0

    async def counted() -> Message:
        nonlocal seen, whole, end_s
        if whole:  # later messages say that the client is gone
            return await receive()
        now_s = asyncio.get_running_loop().time()
        end_s = end_s or now_s + seconds
        try:
            message = await asyncio.wait_for(receive(), max(0.0, end_s - now_s))
        except TimeoutError:
            raise TooSlowError from None
        whole = not message.get("more_body", False)
        seen += len(message.get("body", b""))
        if seen > most:
            raise TooLargeError
        return message

    return counted


def is_too_long(headers: dict[str, str], scope: Any) -> bool:
    """Whether a request announces too large a body, or has too long an address."""
    length = headers.get("content-length", "0")
    address = len(scope["path"]) + len(scope.get("query_string", b""))
    return (
        not length.isdecimal() or int(length[:12]) > MOST_BODY_BYTES or address > MOST_ADDRESS_BYTES
    )
