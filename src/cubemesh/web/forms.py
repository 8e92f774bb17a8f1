"""Forms: the fields of a request that changes something, from a page or as JSON."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

from cubemesh.api.arguments import value_text
from cubemesh.errors import UsageError, unknown_name
from cubemesh.untrusted import clean
from cubemesh.web.security.limits import MOST_FORM_FIELDS

Form = dict[str, tuple[str, ...]]
"""Field → its values, without empty ones."""


def read_form(content_type: str, body: bytes) -> Form:
    """The fields of a body: of a form, or of a JSON object of texts, numbers, switches, or lists of
    them. UsageError for anything else, or for more than `MOST_FORM_FIELDS`."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            pairs = _json_pairs(json.loads(body))
        else:
            text = body.decode("utf-8")
            pairs = parse_qsl(text, max_num_fields=MOST_FORM_FIELDS, keep_blank_values=True)
    except (ValueError, RecursionError):
        raise UsageError(
            f"This form cannot be read. Send at most {MOST_FORM_FIELDS} fields, as a form or as a "
            "JSON object."
        ) from None
    found: Form = {}
    for name, value in pairs:
        if value.strip():
            found[name] = (*found.get(name, ()), value.strip())
    return found


def _json_pairs(document: Any) -> list[tuple[str, str]]:
    if not isinstance(document, dict) or len(document) > MOST_FORM_FIELDS:
        raise ValueError
    if any(isinstance(value, dict) for value in document.values()):
        raise ValueError
    return [(name, value_text(value)) for name, value in document.items()]


def check_fields(form: Form, known: tuple[str, ...]) -> None:
    """UsageError for a field that a form does not have."""
    for name in form:
        if name not in known:
            raise unknown_name("field", clean(name, 40), known, plural="fields")


def one(form: Form, name: str, default: str = "") -> str:
    """The value of a field; of several the last."""
    return form.get(name, (default,))[-1]
