"""Login of a team: each user of the store by a token of their own, with a role.

A session names its user and is signed with a key made from the server's token and the user's. So a
new token ends the sessions of its user, and a user that is revoked is refused at the next request.
Who started the server logs in by its link or token, as an administrator.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from cubemesh.team.roles import Person
from cubemesh.team.users import User, Users
from cubemesh.web.access import SESSION_S, Access, is_same

_MOST_DIGITS = 15


class TeamAccess(Access):
    """Who may use a server: the users of its store, and who started it."""

    team = True

    def __init__(self, users: Users, token: str, *, cookie: str = "cubemesh") -> None:
        super().__init__(token, cookie=cookie)
        self._users = users

    def person_of_token(self, token: str) -> Person | None:
        """See `Access`."""
        if self.accepts_token(token):
            return self.owner
        user = self._users.of_token(token) if token else None
        return None if user is None else user.person

    def session_of_token(self, token: str) -> str | None:
        """See `Access`; the login is in the audit log."""
        if self.accepts_token(token):
            return self.new_session()
        user = self._users.of_token(token) if token else None
        if user is None:
            return None
        self._users.log_in(user.person)
        text = f"{int(self._clock()) + SESSION_S}.{secrets.token_urlsafe(16)}.{user.user_id}"
        return f"{text}.{self._user_signature(user, text)}"

    def person_of_session(self, value: str) -> Person | None:
        """See `Access`."""
        parts = value.split(".")
        if len(parts) != 4:
            return super().person_of_session(value)
        end, _, number, signature = parts
        if not (end.isdecimal() and number.isdecimal() and len(number) <= _MOST_DIGITS):
            return None
        user = self._users.of_id(int(number))
        if user is None:
            return None
        signed = is_same(self._user_signature(user, value.rpartition(".")[0]), signature)
        return user.person if signed and int(end) > self._clock() else None

    def _user_signature(self, user: User, text: str) -> str:
        key = hashlib.sha256(self._key + user.token_hash.encode()).digest()
        return hmac.new(key, text.encode(errors="replace"), hashlib.sha256).hexdigest()
