"""Login: a token of the user, one-time links, and signed cookies.

The token is in a file that only its owner reads. The link on the terminal has a code that works
once; it is exchanged for a cookie, which is signed with a key made from the token. So a cookie
outlives the server, and a new token ends every session.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path

from cubemesh.errors import CubemeshError
from cubemesh.jobs.submission import submitter
from cubemesh.team.roles import Person, Role
from cubemesh.untrusted import shown_path

SESSION_S = 30 * 24 * 3600
"""A cookie is valid for so long."""
FREE_FAILURES = 10
"""Failed logins of an address before it has to wait a second after each."""
_MOST_ADDRESSES = 1000
_TOKEN_BYTES = 32


def token_of(path: Path) -> str:
    """The token in `path`, made where there is none. One that others could read is replaced.

    CubemeshError where the file cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_private(path) and (token := path.read_text("ascii").strip()):
            return token
        path.unlink(missing_ok=True)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CubemeshError(
            f"The file of the login token {shown_path(path)} cannot be used: {error}. Make it "
            "readable and writable for its owner, or set XDG_STATE_HOME to another folder."
        ) from None
    return token


def _is_private(path: Path) -> bool:
    """Whether this is a plain file of this user that no other user can read."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


class Access:
    """Who may use a server: the owners of its token, of a one-time code, or of a cookie. They act
    as who started it, an administrator."""

    team = False
    """Whether others log in too, which needs the store (team_access.py)."""

    def __init__(
        self, token: str, *, cookie: str = "cubemesh", clock: Callable[[], float] = time.time
    ) -> None:
        self.cookie = cookie
        """Name of the cookie."""
        self.owner = Person(name=submitter(), role=Role.ADMIN)
        self._token = token
        self._key = hashlib.sha256(b"cubemesh session " + token.encode()).digest()
        self._codes: set[str] = set()
        self._failures: dict[str, tuple[int, float]] = {}
        self._clock = clock

    def new_code(self) -> str:
        """A code for one login."""
        code = secrets.token_urlsafe(_TOKEN_BYTES)
        self._codes.add(code)
        return code

    def accepts_code(self, code: str) -> bool:
        """Whether the code is one that was not used yet; it is used now."""
        found = [one for one in self._codes if is_same(one, code)]
        self._codes.difference_update(found)
        return bool(found)

    def accepts_token(self, token: str) -> bool:
        """Whether this is the token."""
        return is_same(self._token, token)

    def person_of_token(self, token: str) -> Person | None:
        """Who has this token; None for a wrong one."""
        return self.owner if self.accepts_token(token) else None

    def session_of_token(self, token: str) -> str | None:
        """The value of a cookie for who has this token; None for a wrong one."""
        return self.new_session() if self.accepts_token(token) else None

    def person_of_session(self, value: str) -> Person | None:
        """Who has a cookie with this value; None for one that is not valid."""
        return self.owner if self.accepts_session(value) else None

    def new_session(self) -> str:
        """The value of a cookie that is valid from now on."""
        text = f"{int(self._clock()) + SESSION_S}.{secrets.token_urlsafe(16)}"
        return f"{text}.{self._signature(text)}"

    def accepts_session(self, value: str) -> bool:
        """Whether a cookie with this value is signed by this server's token, and still valid."""
        text, _, signature = value.rpartition(".")
        end = text.partition(".")[0]
        signed = is_same(self._signature(text), signature)
        return signed and end.isdecimal() and int(end) > self._clock()

    def fail(self, address: str) -> None:
        """Count a failed login."""
        if address not in self._failures and len(self._failures) >= _MOST_ADDRESSES:
            self._failures.pop(next(iter(self._failures)))
        count, _ = self._failures.pop(address, (0, 0.0))
        self._failures[address] = count + 1, self._clock()

    def must_wait(self, address: str) -> bool:
        """Whether this address failed too often to try again within this second."""
        count, last = self._failures.get(address, (0, 0.0))
        return count >= FREE_FAILURES and self._clock() < last + 1

    def _signature(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def is_same(known: str, given: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return hmac.compare_digest(known.encode(), given.encode(errors="replace"))
