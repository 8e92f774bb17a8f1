"""Templates of the pages: those of this room, over the pieces of the report."""

from __future__ import annotations

import functools
import re
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from cubemesh import __version__
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.web.security.policy import CONTENT_POLICY, STYLED_POLICY
from cubemesh.web.static_files import address_of


def run_address(run_id: str) -> str:
    """The address of the page of a run; empty for no run."""
    return f"/runs/{quote(run_id, safe='')}" if run_id else ""


def with_query(path: str, **given: Any) -> str:
    """A path with the parameters that are not empty."""
    pairs = {name: value for name, value in given.items() if value not in ("", (), None)}
    return f"{path}?{urlencode(pairs, doseq=True)}" if pairs else path


def coded(text: str) -> Markup:
    """A text with what is between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@functools.cache
def environment() -> jinja2.Environment:
    """The environment of the templates: every value is escaped, a missing one is an error."""
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("cubemesh.web", "templates"),
                jinja2.PackageLoader("cubemesh.web", "templates/jobs"),
                jinja2.PackageLoader("cubemesh.views", "templates"),
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "version": __version__,
        "static": address_of,
        "run_address": run_address,
        "with_query": with_query,
        "interactive": False,
        "quantity": formatting.quantity,
        "short_quantity": formatting.quantity,
    }
    made.filters |= {
        "clean": clean,
        "coded": coded,
        "unbroken": formatting.unbroken,
        "moment": formatting.moment,
        "number": formatting.number,
        "duration": format_seconds,
        "part": functools.partial(quote, safe=""),
    }
    return made


def page_response(
    template: str, context: dict[str, Any], *, status: int = 200, styled: bool = False
) -> HTMLResponse:
    """A page; text from outside that UTF-8 cannot encode is replaced."""
    text = environment().get_template(f"{template}.html.j2").render(context)
    policy = STYLED_POLICY if styled else CONTENT_POLICY
    return HTMLResponse(
        text.encode("utf-8", errors="backslashreplace"),
        status,
        headers={"content-security-policy": policy},
    )
