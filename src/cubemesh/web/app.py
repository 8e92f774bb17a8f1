"""Application: the table of pages as routes, login, static files, and the gate around them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from cubemesh.errors import BusyError, CubemeshError, UsageError
from cubemesh.jobs.queue import JobQueue
from cubemesh.store import Store
from cubemesh.team.roles import Person, Role
from cubemesh.untrusted import clean
from cubemesh.web.access import SESSION_S, Access
from cubemesh.web.forms import read_form
from cubemesh.web.live import KIND, Hub
from cubemesh.web.openapi import openapi
from cubemesh.web.page import (
    API,
    Acted,
    ForbiddenError,
    NotFoundError,
    Page,
    RefusedFormError,
)
from cubemesh.web.pages import PAGES
from cubemesh.web.rendering import page_response
from cubemesh.web.security.gate import PERSON, Gate, Rules
from cubemesh.web.security.limits import (
    MOST_FIELDS,
    TOO_LARGE,
    TOO_SLOW,
    TooLargeError,
    TooSlowError,
)
from cubemesh.web.static_files import static_response

_LEAST_COMPRESSED_BYTES = 1000


class Workbench:
    """The pages over one store, as an ASGI application (`app`)."""

    def __init__(
        self,
        store: Store,
        access: Access,
        rules: Rules,
        *,
        secure: bool,
        token_file: str = "",
        demo: bool = False,
    ) -> None:
        self._store = store
        self._access = access
        self._secure = secure
        self._token_file = token_file
        self._demo = demo
        routes: list[Route] = []
        self.roles: dict[tuple[str, str], Role | None] = {}
        """(path, method) → the least role that it needs; None for one that needs no login."""

        def route(path: str, handler: Any, role: Role | None, *methods: str) -> None:
            routes.append(Route(path, handler, methods=methods))
            self.roles |= {(path, method): role for method in methods}

        route("/healthz", _healthz, None, "GET")
        route("/static/{name}", static_response, None, "GET")
        route("/login", self._login, None, "GET", "POST")
        route("/logout", self._logout, Role.VIEWER, "POST")
        route(f"{API}/openapi.json", _openapi, Role.VIEWER, "GET")
        for page in PAGES:
            route(page.path, self._page(page), page.role, "GET")
            route(page.api_path, self._twin(page), page.role, "GET")
            if page.acts:
                route(page.path, self._act(page), page.acts, "POST")
                route(page.api_path, self._act(page), page.acts, "POST")
        inner = Starlette(
            routes=routes,
            middleware=[Middleware(GZipMiddleware, minimum_size=_LEAST_COMPRESSED_BYTES)],
            exception_handlers={
                HTTPException: self._http_error,
                CubemeshError: self._error,
                TooLargeError: self._too_large,
                TooSlowError: self._too_slow,
                Exception: self._bug,
            },
        )
        self.hub = Hub(JobQueue(store.database))
        """The streams of live events."""
        self.routes = tuple(routes)
        """Every route; a test reads them."""
        self.app = Gate(inner, access=access, rules=rules, refusal=self._refuse)

    def _page(self, page: Page) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            person = person_with(request, page.role)
            given = request.query_params.multi_items()
            asked = page.asked(
                self._store, request.path_params, given, person=person, demo=self._demo
            )
            shown = page.load().view(asked)
            if isinstance(ready := shown.get("response"), Response):
                return ready
            query = f"?{request.url.query}" if request.url.query else ""
            path = "/home" if request.url.path == "/" else request.url.path
            around = self._around(page, person) | {"twin": f"{API}{path}{query}"}
            return page_response(page.module, around | shown, styled=page.styled)

        return respond

    def _twin(self, page: Page) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            person = person_with(request, page.role)
            given = request.query_params.multi_items()
            if page.streams and KIND in request.headers.get("accept", ""):
                seen = request.headers.get("last-event-id", "")
                given += [("after", seen)] if seen else []
                asked = page.asked(self._store, request.path_params, given, person=person)
                allowed = partial(self.app.lets_in, request.scope) if self._access.team else None
                return self.hub.response(*page.load_streaming().watched(asked), allowed)
            asked = page.asked(self._store, request.path_params, given, person=person)
            return json_response(page.load().document(asked))

        return respond

    def _act(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        least = page.acts or Role.ADMIN

        async def respond(request: Request) -> Response:
            person_with(request, least)
            form = read_form(request.headers.get("content-type", ""), await request.body())
            return await run_in_threadpool(acted, request, form)

        def acted(request: Request, form: dict[str, tuple[str, ...]]) -> Response:
            person = person_with(request, least)
            asked = page.asked(self._store, request.path_params, (), person=person)
            is_json = request.url.path.startswith(f"{API}/")
            try:
                found: Acted = page.load_acting().act(asked, form)
            except RefusedFormError as error:
                if is_json:
                    fields = {name: clean(text) for name, text in error.fields.items()}
                    return json_response({"error": clean(str(error)), "fields": fields}, 400)
                if error.view is None:
                    raise
                return page_response(
                    page.module, {**self._around(page, person), **error.view}, status=400
                )
            if is_json:
                return json_response(found.document)
            return RedirectResponse(found.address, 303)

        return respond

    def _around(self, page: Page | None = None, person: Person | None = None) -> dict[str, Any]:
        """What the frame of every page shows."""
        role = Role.VIEWER if person is None else person.role
        return {
            "menu": [one for one in PAGES if one.menu and role >= one.role],
            "person": person if self._access.team else None,
            "may_audit": role >= Role.ADMIN,
            "here": page,
            "title": "" if page is None else page.title,
            "store_name": clean(self._store.name),
            "twin": "",
            "search": "",
        }

    async def _login(self, request: Request) -> Response:
        """GET with a code, or POST with the token, sets the cookie."""
        address = request.client.host if request.client else ""
        if self._access.must_wait(address):
            response = self._ask(429, "Too many failed logins from this address. Wait a second.")
            response.headers["retry-after"] = "1"
            return response
        if request.method == "POST":
            body = (await request.body()).decode("utf-8", errors="replace")
            try:
                given = parse_qs(body, max_num_fields=MOST_FIELDS).get("token", [""])[-1]
            except ValueError:
                given = ""
            session = await run_in_threadpool(self._access.session_of_token, given.strip())
            wrong = "This is not a token." if self._access.team else "This is not the token."
        else:
            code = request.query_params.get("code", "")
            if not code:
                return self._ask(200, "")
            good = request.method == "GET" and self._access.accepts_code(code)
            session = self._access.new_session() if good else None
            wrong = "This link was used already, or is of an earlier start."
        if session is None:
            self._access.fail(address)
            return self._ask(401, wrong)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            self._access.cookie,
            session,
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=self._secure,
        )
        return response

    def _logout(self, request: Request) -> Response:
        response = RedirectResponse("/login", 303)
        response.delete_cookie(
            self._access.cookie, secure=self._secure, httponly=True, samesite="strict"
        )
        return response

    def _ask(self, status: int, problem: str) -> Response:
        shown = self._around() | {
            "title": "Log in",
            "menu": [],
            "problem": problem,
            "token_file": "" if self._access.team else self._token_file,
            "team": self._access.team,
            "store_name": "",
        }
        return page_response("login", shown, status=status)

    def _refuse(self, scope: Scope, status: int, text: str) -> Response:
        if scope["path"].startswith(f"{API}/"):
            return json_response({"error": text}, status)
        if status == 401:
            return self._ask(status, "")
        return PlainTextResponse(f"{text}\n", status)

    def _shown_error(self, request: Request, status: int, text: str) -> Response:
        if request.url.path.startswith(f"{API}/"):
            return json_response({"error": text}, status)
        return page_response(
            "error",
            self._around(None, request.scope.get(PERSON))
            | {"title": "Error", "status": status, "text": text},
            status=status,
        )

    def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = {404: "There is no such page.", 405: "This method is not allowed here."}
        response = self._shown_error(
            request, error.status_code, text.get(error.status_code, error.detail)
        )
        response.headers.update(error.headers or {})
        return response

    def _error(self, request: Request, error: Exception) -> Response:
        """A deliberate error: its sentence, and the status of its class."""
        status = 500
        kinds = ((NotFoundError, 404), (ForbiddenError, 403), (UsageError, 400), (BusyError, 503))
        for kind, code in kinds:
            if isinstance(error, kind):
                status = code
                break
        return self._shown_error(request, status, clean(str(error)))

    def _too_large(self, request: Request, error: Exception) -> Response:
        return self._shown_error(request, 413, TOO_LARGE)

    def _too_slow(self, request: Request, error: Exception) -> Response:
        return self._shown_error(request, 408, TOO_SLOW)

    def _bug(self, request: Request, error: Exception) -> Response:
        return self._shown_error(
            request, 500, "The server failed at this page. Its terminal has the traceback."
        )


def person_with(request: Request, least: Role) -> Person:
    """Who asks; ForbiddenError for one with a lower role than `least`."""
    person: Person = request.scope[PERSON]
    if person.role < least:
        raise ForbiddenError(
            f"{clean(person.name, 80)} is a {person.role.label}, and this needs the role "
            f"{least.label}. Ask an administrator of this server."
        )
    return person


def json_response(document: dict[str, Any], status: int = 200) -> Response:
    """A document as JSON; text that UTF-8 cannot encode is escaped."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status, media_type="application/json")


async def _healthz(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _openapi(request: Request) -> Response:
    return JSONResponse(await run_in_threadpool(openapi, PAGES))
