"""Users of a store on a server: their names, roles, and digests of their tokens.

A token has 256 random bits, so its SHA-256 is enough: no dictionary has it. It is shown once, when
it is made.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from cubemesh.errors import UsageError
from cubemesh.store.database import Database, database_time, utc
from cubemesh.store.migrations.team_tables import users
from cubemesh.team.audit_log import append_entry
from cubemesh.team.roles import Person, Role

_TOKEN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,79}")


@dataclass(frozen=True, kw_only=True)
class User:
    """A user of a store."""

    user_id: int
    name: str
    role: Role
    made_utc: str
    revoked_utc: str | None
    """When it was revoked; None for one that may log in."""
    token_hash: str = field(repr=False)

    @property
    def person(self) -> Person:
        """Who it is."""
        return Person(name=self.name, role=self.role)


class Users:
    """The users of an open store in PostgreSQL. Threads may share it. UsageError for SQLite."""

    def __init__(self, database: Database) -> None:
        if database.engine.dialect.name != "postgresql":
            raise UsageError(
                "A team needs a store in PostgreSQL: --store postgresql+psycopg://user@host/"
                f"database. {database.location.name} is a file, whose owner is its one user."
            )
        self._database = database

    def all(self) -> list[User]:
        """All users by name, also those that were revoked."""
        with self._database.read() as connection:
            rows = connection.execute(select(users).order_by(users.c.name)).all()
        return [_user_of(row) for row in rows]

    def of_token(self, token: str) -> User | None:
        """The user with this token; None for an unknown or revoked one."""
        return self._one(users.c.token_hash == digest(token))

    def of_id(self, user_id: int) -> User | None:
        """A user that may log in, by its number."""
        return self._one(users.c.user_id == user_id)

    def _one(self, condition: Any) -> User | None:
        asked = select(users).where(condition, users.c.revoked_utc.is_(None))
        with self._database.read() as connection:
            row = connection.execute(asked).one_or_none()
        return None if row is None else _user_of(row)

    def add(self, name: str, role: Role, *, who: str) -> str:
        """Add a user, or one again that was revoked; the token."""
        if _NAME.fullmatch(name) is None:
            raise UsageError(
                f"'{name}' is not a name of a user: give up to 80 letters, digits and . _ @ -, "
                "such as ann or ann@lab."
            )
        token = secrets.token_urlsafe(_TOKEN_BYTES)

        def put(connection: Connection) -> None:
            now = database_time(connection)
            row = connection.execute(select(users).where(users.c.name == name)).one_or_none()
            values = {"role": role.label, "token_hash": digest(token), "revoked_utc": None}
            if row is None:
                connection.execute(insert(users).values(name=name, made_utc=utc(now), **values))
            elif row.revoked_utc is None:
                raise UsageError(
                    f"There is a user {name} already. `cubemesh users token {name}` makes a new "
                    f"token, `cubemesh users role {name} --role {role.label}` changes the role."
                )
            else:
                this = users.c.user_id == row.user_id
                connection.execute(update(users).where(this).values(values))
            append_entry(connection, now, who, "add user", detail=f"{name}, {role.label}")

        self._database.commit(put)
        return token

    def new_token(self, name: str, *, who: str) -> str:
        """Replace the token of a user, which ends all sessions; the new one."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._change(name, who, "new token", lambda now: {"token_hash": digest(token)})
        return token

    def set_role(self, name: str, role: Role, *, who: str) -> None:
        """Change the role of a user, from the next request on."""
        self._change(name, who, "change role", lambda now: {"role": role.label}, role.label)

    def revoke(self, name: str, *, who: str) -> None:
        """End the access of a user; jobs and the audit log have the name still."""
        self._change(name, who, "revoke user", lambda now: {"revoked_utc": utc(now)})

    def log_in(self, person: Person) -> None:
        """Write into the audit log that a user logged in."""

        def append(connection: Connection) -> None:
            append_entry(connection, database_time(connection), person.name, "log in")

        self._database.commit(append)

    def _change(
        self,
        name: str,
        who: str,
        action: str,
        values: Callable[[float], dict[str, Any]],
        detail: str = "",
    ) -> None:
        def change(connection: Connection) -> None:
            now = database_time(connection)
            this = (users.c.name == name) & users.c.revoked_utc.is_(None)
            if connection.execute(update(users).where(this).values(values(now))).rowcount == 0:
                raise UsageError(
                    f"There is no user {name}. `cubemesh users` lists them, `cubemesh users add "
                    "NAME` adds one."
                )
            append_entry(
                connection, now, who, action, detail=", ".join(filter(None, (name, detail)))
            )

        self._database.commit(change)


def digest(token: str) -> str:
    """The digest of a token, which is all that is stored of it."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _user_of(row: Row[Any]) -> User:
    return User(
        user_id=row.user_id,
        name=row.name,
        role=Role[row.role.upper()],
        made_utc=row.made_utc,
        revoked_utc=row.revoked_utc,
        token_hash=row.token_hash,
    )
