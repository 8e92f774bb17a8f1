"""Gate: the outermost layer of the server. It refuses what no page may see, and sets the headers
of every answer, also of errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cubemesh.errors import BusyError, StoreError
from cubemesh.team.roles import Person
from cubemesh.untrusted import clean
from cubemesh.web.access import Access
from cubemesh.web.security.hosts import is_allowed_client, is_allowed_host
from cubemesh.web.security.limits import TOO_LARGE, is_too_long, limited
from cubemesh.web.security.origin import KNOWN_METHODS, SAFE_METHODS, is_own_origin
from cubemesh.web.security.policy import CONTENT_POLICY, HEADERS

OPEN_PATHS = ("/login", "/healthz")
"""Paths that need no login, besides those of `OPEN_FOLDER`."""
OPEN_FOLDER = "/static/"
PERSON = "cubemesh.person"
"""Key of a scope: who has logged in, None at open paths."""


class Refusal(Protocol):
    """Makes the answer to a refused request."""

    def __call__(self, scope: Scope, status: int, text: str) -> Response:
        """An answer with this status and sentence, as a page or as JSON."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a server accepts."""

    host_names: tuple[str, ...] = ()
    """Names of this machine besides localhost."""
    proxies: tuple[str, ...] = ()
    """Addresses of the proxy in front; empty without one."""


class Gate:
    """Pure ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, access: Access, rules: Rules, refusal: Refusal) -> None:
        self._app = app
        self._access = access
        self._rules = rules
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = headers_of(scope)
        guarded = _with_headers(send)
        try:
            refused = self._refused(scope, headers) or await self._not_let_in(scope, headers)
        except (BusyError, StoreError) as error:  # of the users of a team
            refused = 503, clean(str(error))
        if refused is not None:
            await self._refusal(scope, *refused)(scope, receive, guarded)
            return
        await self._app(scope, limited(receive), guarded)

    def _refused(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and sentence of a request that is refused; None for one that may pass."""
        own = (scope.get("server") or ("", 0))[0]
        client = (scope.get("client") or ("", 0))[0]
        if not is_allowed_client(client, self._rules.proxies):
            return 403, "This server answers its proxy only (--behind-proxy)."
        if not is_allowed_host(headers.get("host", ""), self._rules.host_names, own):
            return 403, (
                "This server does not have the name that was asked for. If it should, start it "
                "with --host-name NAME."
            )
        if scope["method"] not in KNOWN_METHODS:
            return 405, "This method is not known."
        if is_too_long(dict(headers), scope):
            return 413, TOO_LARGE
        return None

    async def _not_let_in(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """As `_refused`, of a request of who has not logged in, or of a page of another server. The
        person is stored in the scope."""
        find = self._with_token, self._with_session
        bearer, session = [
            await run_in_threadpool(one, headers) if self._access.team else one(headers)
            for one in find
        ]
        if scope["method"] not in SAFE_METHODS and not bearer and not is_own_origin(headers):
            return 403, "This request does not come from a page of this server."
        if not (bearer or session or is_open(scope["path"])):
            return 401, "Log in first."
        scope[PERSON] = bearer or session
        return None

    def lets_in(self, scope: Scope) -> bool:
        """Whether who sent a request may still log in. While the database does not
        answer, it is not asked again."""
        headers = headers_of(scope)
        try:
            return (self._with_token(headers) or self._with_session(headers)) is not None
        except (BusyError, StoreError):
            return True

    def _with_token(self, headers: Mapping[str, str]) -> Person | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return self._access.person_of_token(token.strip()) if scheme.lower() == "bearer" else None

    def _with_session(self, headers: Mapping[str, str]) -> Person | None:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._access.cookie)
        except CookieError:
            return None
        return None if found is None else self._access.person_of_session(found.value)


def is_open(path: str) -> bool:
    """Whether a path needs no login."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers of a request by their lower-case names; of repeated ones the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("content-security-policy", CONTENT_POLICY)
            headers.setdefault("cache-control", "no-cache, private")
            for name, value in HEADERS:
                headers[name] = value
        await send(message)

    return guarded
