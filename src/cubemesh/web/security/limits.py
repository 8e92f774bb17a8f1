"""Limits of a request: its size and what it may hold."""

from __future__ import annotations

from typing import Any

from starlette.types import Message, Receive

MOST_BODY_BYTES = 64 * 1024
"""Of a request's body: settings and forms, no files."""
MOST_ADDRESS_BYTES = 8 * 1024
"""Of a path with its parameters: the ids of 50 runs fit."""
MOST_FORM_FIELDS = 200
"""Of a form: an experiment has about 100 settings."""
MOST_FIELDS = 64
"""Of the parameters of a page."""


TOO_LARGE = "This request is larger than this server accepts."


class TooLargeError(Exception):
    """The body of a request is larger than allowed."""


def limited(receive: Receive, most: int = MOST_BODY_BYTES) -> Receive:
    """`receive` that raises TooLargeError when the body is longer than `most` bytes."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
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
