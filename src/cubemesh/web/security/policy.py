"""Headers of every answer: nothing is loaded from elsewhere, framed, or guessed."""

from __future__ import annotations

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
"""Content-Security-Policy of a page."""
STYLED_POLICY = f"{CONTENT_POLICY}; style-src-attr 'unsafe-inline'"
"""Of a page with parts of the report, whose bars have their lengths as style attributes."""

HEADERS = (
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)
