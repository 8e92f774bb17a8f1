"""Page: what one line of the table of pages holds, and what a page is asked."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from cubemesh.errors import UsageError, unknown_name
from cubemesh.store import Store
from cubemesh.team.roles import Person, Role
from cubemesh.untrusted import clean
from cubemesh.web.security.limits import MOST_FIELDS

API = "/api/v1"
"""Begins the address of the JSON of every page."""
_MOST_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a page: `?name=value`."""

    name: str
    summary: str
    repeats: bool = False
    """Whether it may be given several times."""


class NotFoundError(UsageError):
    """What an address names is not in the store."""


class ForbiddenError(UsageError):
    """The role of the person does not allow this."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for a page."""

    store: Store
    path: Mapping[str, str]
    """The parts of the path in braces."""
    given: Mapping[str, tuple[str, ...]]
    """The parameters that are not empty."""
    person: Person
    """Who asks."""
    demo: bool = False
    """Whether the pages offer demonstrations."""

    def one(self, name: str, default: str = "") -> str:
        """The value of a parameter; of several the last."""
        return self.given.get(name, (default,))[-1]

    def all(self, name: str) -> tuple[str, ...]:
        """All values of a parameter."""
        return self.given.get(name, ())

    def number(self, name: str, default: int, most: int) -> int:
        """The value of a parameter as a whole number from 1 to `most`."""
        text = self.one(name, str(default))
        if not text.isdecimal() or len(text) > _MOST_DIGITS or not 1 <= int(text) <= most:
            raise UsageError(
                f"{name}={clean(text, 40)} is not valid: give a whole number from 1 to {most}."
            )
        return int(text)

    def choice(self, name: str, default: str, known: Iterable[str]) -> str:
        """The value of a parameter that has few."""
        names = tuple(known)
        value = self.one(name, default)
        if value not in names:
            raise unknown_name(f"value of {name}", clean(value, 40), names)
        return value


@dataclass(frozen=True, kw_only=True)
class Acted:
    """What a form has changed."""

    address: str
    """Of the page that shows it."""
    document: dict[str, Any]
    """As JSON."""


@dataclass(kw_only=True)
class RefusedFormError(UsageError):
    """A form that is not valid: nothing was changed."""

    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """Field → what is wrong with it."""
    view: Mapping[str, Any] | None = None
    """What the template shows: the form again, as it was filled in."""

    def __str__(self) -> str:
        return self.text


class ActingModule(Protocol):
    """A file of `pages/` whose forms change something."""

    def act(self, asked: Asked, form: Mapping[str, tuple[str, ...]]) -> Acted:
        """Do what a form asks; UsageError where that cannot be."""


class StreamingModule(Protocol):
    """A file of `pages/` whose JSON can be read as a stream of the events of a job."""

    def watched(self, asked: Asked) -> tuple[int, int]:
        """The job, and the cursor that the stream begins after."""


class PageModule(Protocol):
    """A file of `pages/`."""

    PARAMETERS: tuple[Parameter, ...]

    def document(self, asked: Asked) -> dict[str, Any]:
        """The page as JSON."""

    def view(self, asked: Asked) -> dict[str, Any]:
        """What its template shows."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One line of the table of pages."""

    path: str
    """Its address; parts in braces vary."""
    title: str
    module: str
    """Its file in `pages/`, and its template. It is imported when it is first asked for."""
    summary: str
    """What it shows."""
    role: Role
    """The least role that may read it."""
    menu: bool = False
    """Whether the header of every page has a link to it."""
    styled: bool = False
    """Whether it has parts of the report with style attributes."""
    acts: Role | None = None
    """The least role that may send its forms, which change something (`ActingModule`); None for
    one without such forms."""
    folder: str = ""
    """The folder of its file in `pages/`, if it has one."""
    media: str = "text/html"
    """Its media type; an image is given by its view as `response`."""
    streams: bool = False
    """Whether its JSON can also be read as a stream of events (`StreamingModule`)."""

    @property
    def api_path(self) -> str:
        """The address of its JSON."""
        return f"{API}{'/home' if self.path == '/' else self.path}"

    def load(self) -> PageModule:
        """Its file."""
        folder = f"{self.folder}." if self.folder else ""
        found = importlib.import_module(f"cubemesh.web.pages.{folder}{self.module}")
        return cast(PageModule, found)

    def load_acting(self) -> ActingModule:
        """Its file, if its forms change something."""
        return cast(ActingModule, self.load())

    def load_streaming(self) -> StreamingModule:
        """Its file, if it streams."""
        return cast(StreamingModule, self.load())

    def asked(
        self,
        store: Store,
        path: Mapping[str, str],
        pairs: Iterable[tuple[str, str]],
        *,
        person: Person,
        demo: bool = False,
    ) -> Asked:
        """A request with its parameters checked; UsageError for an unknown one."""
        known = {one.name: one for one in self.load().PARAMETERS}
        given: dict[str, tuple[str, ...]] = {}
        for place, (name, value) in enumerate(pairs):
            if name not in known:
                raise unknown_name(
                    f"parameter of {self.title}", clean(name, 40), known, plural="parameters"
                )
            if place >= MOST_FIELDS:
                raise UsageError(f"Give at most {MOST_FIELDS} parameters.")
            if value:
                given[name] = (*given.get(name, ()), value) if known[name].repeats else (value,)
        return Asked(store=store, path=path, given=given, person=person, demo=demo)
