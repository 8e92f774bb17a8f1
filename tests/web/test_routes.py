"""Every route, made from the table of pages: login, host names, headers, escaping, and that reading
changes nothing. A new page is tested by these."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import html.parser
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubemesh.store import Store
from cubemesh.web.access import Access
from cubemesh.web.app import Workbench
from cubemesh.web.page import API, Page
from cubemesh.web.pages import PAGES
from cubemesh.web.security.gate import OPEN_FOLDER, OPEN_PATHS, Rules
from cubemesh.web.security.limits import TooLargeError, TooSlowError, limited
from patience import PATIENCE_S
from web_pages import HOSTILE, OWN, TOKEN, Client, filled_in, patterns

ROUTES = patterns()
IDS = [path for _, path in ROUTES]
each_route = pytest.mark.parametrize(("page", "path"), ROUTES, ids=IDS)
each_page = pytest.mark.parametrize("page", PAGES, ids=[page.path for page in PAGES])


@pytest.fixture(scope="module")
def access() -> Access:
    return Access(TOKEN)


@pytest.fixture(scope="module")
def bench(filled: Path, access: Access) -> Iterator[Workbench]:
    """One application for all routes: no request of this file changes anything."""
    with Store.open(str(filled)) as store:
        yield Workbench(store, access, Rules(host_names=("lab.example.org",)), secure=False)


@pytest.fixture(scope="module")
def stranger(bench: Workbench) -> Client:
    return Client(bench)


@pytest.fixture(scope="module")
def client(bench: Workbench, access: Access) -> Client:
    return Client(bench, cookie=f"{access.cookie}={access.new_session()}")


@pytest.fixture(scope="module", params=["real", "hostile"])
def known(request: pytest.FixtureRequest, filled: Path) -> dict[str, str]:
    """Ids of a benchmark, or of runs whose names attack."""
    with Store.open(str(filled)) as store:
        machines = {m.machine_id: m.hostname for m in store.machines()}
        attacked = next(i for i, name in machines.items() if HOSTILE in name)
        real = next(i for i in machines if i != attacked)
        machine = attacked if request.param == "hostile" else real
        runs = [row.run_id for row in store.each_run() if row.machine_id == machine]
        own = [a for a in store.experiment_runs("minibatch") if a.machine_id == machine]
    return {
        "run": runs[0],
        "other": runs[1],
        "machine": machine,
        "answer": own[-1].experiment_run_id,
        "job": "3" if request.param == "hostile" else "1",
    }


@pytest.fixture(scope="module")
def answer(client: Client, known: dict[str, str]) -> Callable[[Page, str], httpx.Response]:
    """The answer to who is logged in and gets a route, asked for once."""
    return functools.cache(lambda page, path: client.get(filled_in(page, path, known)))


def test_every_route_of_the_application_is_in_the_table(client: Client) -> None:
    own = {path for _, path in ROUTES}
    others = {route.path for route in client.bench.routes} - own
    assert others == {*OPEN_PATHS, f"{OPEN_FOLDER}{{name}}", "/logout", f"{API}/openapi.json"}


@each_route
def test_a_route_answers_who_is_logged_in(answer: Any, page: Page, path: str) -> None:
    found = answer(page, path)
    assert found.status_code == 200, found.text
    kind = "application/json" if path.startswith(API) else page.media
    assert found.headers["content-type"].startswith(kind)
    if path.startswith(API):
        document = json.loads(found.text, parse_constant=pytest.fail)
        assert document["schema"] == 1
        assert document["kind"]


@each_route
def test_a_route_refuses_strangers(stranger: Client, page: Page, path: str) -> None:
    path = path.replace("{", "").replace("}", "")
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        found = stranger.ask(method, path, headers={"origin": OWN})
        assert found.status_code == (405 if method == "OPTIONS" else 401), method
        assert HOSTILE not in found.text
        assert "set-cookie" not in found.headers


def test_the_token_opens_the_pages_and_no_other_does(stranger: Client) -> None:
    for token, good in ((TOKEN, True), (TOKEN[:-1], False), ("", False)):
        found = stranger.get(f"{API}/runs", headers={"authorization": f"Bearer {token}"})
        assert (found.status_code == 200) is good


@each_route
def test_a_route_refuses_another_host_name(client: Client, page: Page, path: str) -> None:
    for host in ("evil.example.org", "127.0.0.1.evil.org", "10.1.2.3", ""):
        assert client.get(path, headers={"host": host}).status_code == 403, host


@each_route
def test_a_page_of_another_site_changes_nothing(client: Client, page: Page, path: str) -> None:
    for headers in (
        {},
        {"origin": "null"},
        {"origin": "http://evil.example.org"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": OWN, "sec-fetch-site": "cross-site"},
        {"origin": OWN, "sec-fetch-site": "same-site"},
    ):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert client.ask(method, path, headers=headers).status_code == 403, (method, headers)


@each_route
def test_every_answer_has_the_headers(answer: Any, page: Page, path: str) -> None:
    headers = answer(page, path).headers
    policy = dict(
        p.strip().partition(" ")[::2] for p in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    assert not re.search(r"\*|https?:", headers["content-security-policy"])
    if page.module != "report":
        assert policy["style-src"] == "'self'"
        assert ("style-src-attr" in policy) is (page.styled and not path.startswith(API))
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert not [name for name in headers if name.startswith("access-control")]


class Elements(html.parser.HTMLParser):
    """Elements and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.handlers: list[str] = []
        self.labels: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.handlers += [name for name in given if name.startswith("on")]
        if tag in ("script", "img", "iframe", "source"):
            self.loaded.append(given.get("src") or "")
        if tag == "link":
            self.loaded.append(given.get("href") or "")


@each_page
def test_names_that_attack_are_escaped_and_nothing_foreign_is_loaded(
    answer: Any, page: Page
) -> None:
    text = answer(page, page.path).text
    found = Elements()
    found.feed(text)
    assert found.handlers == []
    assert "img" not in found.tags
    assert "alert(2)</script>" not in text
    assert "49" not in re.findall(r"onerror=alert\(1\)[^{]{0,80}?(\d+)", text)
    if page.media != "text/html":
        assert found.loaded == []
    elif page.module != "report":  # it has its scripts and style in itself
        assert [one for one in found.loaded if not one.startswith("/static/")] == []
        assert text.count("<h1") == 1


def test_reading_changes_nothing(client: Client, known: dict[str, str], filled: Path) -> None:
    def state() -> str:
        with Store.open(str(filled), read_only=True) as store:
            rows = [*store.each_run(), *store.experiment_runs(), *store.machines()]
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    before = state()
    for page, path in ROUTES:
        for method in ("GET", "HEAD"):
            assert client.ask(method, filled_in(page, path, known)).status_code == 200
    assert state() == before


@each_route
def test_an_unknown_parameter_is_named(client: Client, page: Page, path: str) -> None:
    found = client.get(f"{path}?frobnicate=1")
    assert found.status_code == 400
    assert "frobnicate" in found.text


@pytest.mark.parametrize(
    "path",
    [
        "/runs/ffff",
        "/jobs/99999",
        "/jobs/x",
        "/jobs/99999/curves",
        "/runs/ffff/curves",
        "/machines/zz",
        "/answers/zz",
        "/nothing",
        "/runs/../etc",
    ],
)
def test_what_does_not_exist_is_not_found(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404
    found = client.get(f"{API}{path}")
    assert found.status_code == 404
    assert found.json()["error"]


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/runs?sort=frobnicate", "frobnicate"),
        ("/runs?outcome=fine", "fine"),
        ("/runs?limit=0", "1000"),
        ("/runs?limit=1e9", "1000"),
        ("/runs?since=yesterday", "yesterday"),
        ("/runs?after=x", "cursor"),
        ("/jobs?state=lively", "lively"),
        ("/jobs?before=x", "before"),
        ("/jobs/1/curves?run=0", "run"),
        ("/runs?column=nonsense", "nonsense"),
        ("/compare?" + "&".join(f"id={i:04x}" for i in range(51)), "50"),
        ("/machines/%7B0%7D?runs=-1", "valid"),
    ],
)
def test_a_wrong_value_gets_a_sentence(client: Client, path: str, word: str) -> None:
    known: dict[str, Any] = client.get(f"{API}/machines").json()
    path = path.replace("%7B0%7D", known["machines"][0]["machine_id"])
    found = client.get(path)
    assert found.status_code == 400
    assert word in found.text


def test_a_request_that_is_too_large_is_refused(client: Client) -> None:
    own = {"origin": OWN}
    assert client.get("/runs?text=" + "x" * 9000).status_code == 413
    assert client.ask("POST", "/login", headers=own, content=b"x" * 70_000).status_code == 413

    async def endless() -> Any:
        for _ in range(100):
            yield b"token=" * 1000

    assert client.ask("POST", "/login", headers=own, content=endless()).status_code == 413
    many = "&".join(f"network={i}" for i in range(80))
    assert client.get(f"/runs?{many}").status_code == 400


def test_a_body_that_never_ends_is_refused() -> None:
    async def silent() -> Any:
        await asyncio.Event().wait()

    async def slow() -> Any:
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def whole() -> Any:
        return {"type": "http.request", "body": b"x"}

    async def read(receive: Any, count: int) -> None:
        for _ in range(count):
            await receive()

    with pytest.raises(TooSlowError):
        asyncio.run(read(limited(silent, seconds=0.01), 1))
    with pytest.raises(TooLargeError):  # or in time, but without an end
        asyncio.run(read(limited(slow, most=10, seconds=PATIENCE_S), 11))
    asyncio.run(read(limited(whole, seconds=PATIENCE_S), 3))  # what comes after a body is no part


def test_static_files_are_as_their_checksums_say(stranger: Client) -> None:
    folder = Path(__file__).parents[2] / "src" / "cubemesh" / "web" / "static"
    listed = (folder / "uplot.sha256").read_text().split()
    for digest, name in zip(listed[::2], listed[1::2], strict=True):
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    own = [
        folder / name
        for name in ("workbench.js", "charts.js", "live.js", "live_worker.js", "workbench.css")
    ]
    assert sum(path.stat().st_size for path in own) < 60_000
    found = stranger.get("/static/workbench.css")
    assert found.status_code == 200
    assert stranger.get("/static/../app.py").status_code in (401, 404)
    assert stranger.get("/static/frobnicate.js").status_code == 404


def test_the_description_names_every_route(client: Client) -> None:
    document = client.get(f"{API}/openapi.json").json()
    assert set(document["paths"]) == {page.api_path for page in PAGES}
    runs = document["paths"][f"{API}/runs"]["get"]["parameters"]
    assert {"network", "sort", "after"} <= {one["name"] for one in runs}


def test_the_documentation_names_every_page() -> None:
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    for page in PAGES:
        first = page.path.split("{")[0]
        assert f"| {page.title} | `{first}" in text
