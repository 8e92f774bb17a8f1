"""Every page as a document: well-formed, named for screen readers, with what its JSON has, made
without a connection to another host."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from cubemesh.store import Store
from cubemesh.web.access import Access
from cubemesh.web.app import Workbench
from cubemesh.web.page import Page
from cubemesh.web.pages import PAGES
from cubemesh.web.security.gate import Rules
from web_pages import TOKEN, Client, filled_in, known_ids, patterns

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "rect", "path", "circle", "line", "use"}
VOID |= {"polyline", "polygon", "ellipse", "stop", "source", "animate"}
BLOCKS = {"address", "article", "aside", "blockquote", "details", "dialog", "div", "dl", "fieldset"}
BLOCKS |= {"figure", "footer", "form", "h1", "h2", "h3", "header", "hr", "main", "nav", "ol", "p"}
BLOCKS |= {"pre", "section", "table", "ul"}
"""Elements that end a paragraph: inside one they are an error."""
DOCUMENTS = [page for page in PAGES if page.media == "text/html" and page.module != "report"]


class Checker(HTMLParser):
    """Collects what is wrong with a document, and its ids and references."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) != len(names):
            self.problems.append(f"{tag} has an attribute twice: {names}")
        if "p" in self._open and tag in BLOCKS:
            self.problems.append(f"{tag} in a paragraph, line {self.getpos()[0]}")
        if tag in ("form", "a", "button", "label") and tag in self._open:
            self.problems.append(f"{tag} in {tag}, line {self.getpos()[0]}")
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("for", "aria-labelledby", "aria-describedby", "form", "list"):
                self.references += (value or "").split()
            if name == "href" and tag == "a":
                self.links.append(value or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> ends {self._open[-3:]}, line {self.getpos()[0]}")
        elif self._open:
            self._open.pop()


@contextmanager
def outgoing() -> Iterator[list[Any]]:
    """The addresses to which this process connects, or that it resolves, meanwhile."""
    found: list[Any] = []
    active = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if active and event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            found.append((event, arguments[-1] if event != "socket.getaddrinfo" else arguments[0]))

    sys.addaudithook(hook)  # it stays until the process ends
    try:
        yield found
    finally:
        active.clear()


@dataclass(frozen=True, kw_only=True)
class Read:
    """Every page and its twin, read once."""

    texts: dict[str, str]
    """Path, as in the table → what is answered."""
    known: dict[str, str]
    connections: list[Any]
    """To where the server connected meanwhile."""


@pytest.fixture(scope="module")
def read(filled: Path) -> Read:
    access = Access(TOKEN)
    with Store.open(str(filled), read_only=True) as store:
        known = known_ids(store)
        bench = Workbench(store, access, Rules(), secure=False)
        client = Client(bench, cookie=f"{access.cookie}={access.new_session()}")
        with outgoing() as connections:
            texts = {
                path: client.get(filled_in(page, path, known)).text
                for page, path in patterns()
                if page in DOCUMENTS
            }
    return Read(texts=texts, known=known, connections=list(connections))


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.path)
def test_a_page_is_well_formed(read: Read, page: Page) -> None:
    found = Checker()
    found.feed(read.texts[page.path])
    found.close()
    assert found.problems == []
    assert len(found.ids) == len(set(found.ids))
    assert set(found.references) <= set(found.ids)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.path)
def test_what_a_page_links_its_json_names(read: Read, page: Page) -> None:
    """Runs, jobs, machines and answers of a page are in its twin."""
    twin = read.texts[page.api_path]
    json.loads(twin, parse_constant=pytest.fail)
    shown = Checker()
    shown.feed(read.texts[page.path].partition('id="content"')[2].partition("<footer")[0])
    named = set()
    for link in shown.links:
        match = re.fullmatch(r"/(runs|jobs|machines|answers)/([0-9a-f]+)", urlsplit(link).path)
        if match:
            named.add(match[2])
        named |= {value for name, value in parse_qsl(urlsplit(link).query) if name in ("id", "run")}
    assert {one for one in named if one not in twin} <= set(read.known.values())


def test_the_server_connects_to_no_other_host(read: Read) -> None:
    assert len(read.texts) == 2 * len(DOCUMENTS)
    assert read.connections == []
    with (
        outgoing() as found,
        socket.socket(socket.AF_UNIX) as probe,
        pytest.raises(FileNotFoundError),
    ):
        probe.connect("/nowhere")
    assert found  # the hook sees what connects


class Controls(HTMLParser):
    """Collects what of a document needs a script to be used, or takes the keyboard elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.fields: dict[str, list[str]] = {}
        """Form → the types of its fields; the forms are numbered, or have their id."""
        self.actions: dict[str, str | None] = {}
        self._form: str | None = None
        self._owners: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        where = f"{tag}, line {self.getpos()[0]}"
        if tag == "form":
            self._form = given.get("id") or str(len(self.actions))
            self.actions[self._form] = given.get("action")
        if tag in ("input", "select", "textarea", "button"):
            kind = given.get("type") or ("submit" if tag == "button" else tag)
            self._owners.append((kind, given.get("form") or self._form))
        if tag == "a" and not re.match(r"[/#]\S|/$", given.get("href") or ""):
            self.problems.append(f"{where}: leads nowhere: {given.get('href')}")
        if given.get("tabindex", "0") not in ("0", "-1") or "autofocus" in given:
            self.problems.append(f"{where}: changes the order of the keyboard")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None

    def close(self) -> None:
        super().close()
        for kind, owner in self._owners:
            if owner not in self.actions:
                self.problems.append(f"a field of type {kind} without a form")
            else:
                self.fields.setdefault(owner or "", []).append(kind)
        for form, action in self.actions.items():
            kinds = self.fields.get(form, [])
            typed = [kind for kind in kinds if kind not in ("hidden", "submit")]
            if not action or not ("submit" in kinds or typed in (["search"], ["input"])):
                self.problems.append(f"form {form} cannot be sent: {action} {kinds}")


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.path)
def test_a_page_can_be_used_without_scripts_and_by_keyboard(read: Read, page: Page) -> None:
    """Every link leads to an address, every form can be sent (one with a single field by Enter),
    and Tab follows the document."""
    found = Controls()
    found.feed(read.texts[page.path])
    found.close()
    assert found.problems == []
    assert found.actions


@pytest.mark.parametrize(
    "text",
    [
        "<button>Pause</button>",
        '<form action="/jobs"><input name="a"><input name="b"></form>',
        '<form action="/jobs"><select name="a"></select></form>',
        '<form><input name="a"></form>',
        '<a href="#">Next</a>',
        '<a href="javascript:next()">Next</a>',
        '<a href="/jobs" tabindex="3">Next</a>',
    ],
)
def test_what_needs_a_script_is_found(text: str) -> None:
    found = Controls()
    found.feed(text)
    found.close()
    assert found.problems


def test_pages_are_laid_out_in_the_order_of_the_document() -> None:
    """So Tab goes from left to right and from top to bottom, and the focus is visible."""
    source = Path(__file__).parents[2] / "src" / "cubemesh"
    sheets = [
        source / "web" / "static" / "workbench.css",
        *sorted((source / "views" / "templates").glob("*.css")),
    ]
    for sheet in sheets:
        text = sheet.read_text()
        assert not re.search(r"[{;]\s*order:|-reverse\b", text), sheet.name
        hidden = re.findall(r"([^{}]*)\{[^}]*outline:\s*(?:none|0)", text)
        assert [one.strip() for one in hidden] in ([], [".content:focus"]), sheet.name
