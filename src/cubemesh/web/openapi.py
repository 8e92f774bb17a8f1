"""OpenAPI description of the JSON interface, made from the table of pages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from cubemesh import __version__
from cubemesh.web.page import Page

_ENVELOPE = {
    "type": "object",
    "required": ["schema", "kind"],
    "properties": {"schema": {"type": "integer"}, "kind": {"type": "string"}},
    "additionalProperties": True,
}
_ERRORS = {
    "400": "a parameter is not valid; `error` says what to give",
    "401": "no cookie and no token",
    "404": "not in the store",
}


def openapi(pages: Iterable[Page]) -> dict[str, Any]:
    """The description of all routes that answer with JSON."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "cubemesh", "version": __version__},
        "security": [{"token": []}],
        "paths": {page.api_path: _operations(page) for page in pages},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Document": _ENVELOPE},
        },
    }


def _operations(page: Page) -> dict[str, Any]:
    reading = _operation(page)
    if page.streams:
        reading["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    if not page.acts:
        return {"get": reading}
    fields = {"schema": {"type": "object", "additionalProperties": True}}
    return {
        "get": reading,
        "post": {
            "operationId": f"{page.module}-act",
            "summary": inspect.getdoc(page.load_acting().act),
            "parameters": [one for one in reading["parameters"] if one["in"] == "path"],
            "requestBody": {
                "content": {"application/json": fields, "application/x-www-form-urlencoded": fields}
            },
            "responses": reading["responses"]
            | {"403": {"description": "from a page of another server, without a token"}},
        },
    }


def _operation(page: Page) -> dict[str, Any]:
    asked = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", page.path)
    ]
    asked += [
        {
            "name": one.name,
            "in": "query",
            "description": one.summary,
            "schema": {"type": "array", "items": {"type": "string"}}
            if one.repeats
            else {"type": "string"},
        }
        for one in page.load().PARAMETERS
    ]
    found = {"application/json": {"schema": {"$ref": "#/components/schemas/Document"}}}
    return {
        "operationId": page.module,
        "summary": page.summary,
        "parameters": asked,
        "responses": {
            "200": {"description": "the page as JSON", "content": found},
            **{code: {"description": text} for code, text in _ERRORS.items()},
        },
    }
