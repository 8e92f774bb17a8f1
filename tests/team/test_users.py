"""Users: tokens, sessions, and the verb `users`, on a real PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from cli_forkserver import Forkserver
from cubemesh.errors import UsageError
from cubemesh.store import Store
from cubemesh.team.audit_log import entries
from cubemesh.team.roles import Role
from cubemesh.team.users import Users
from cubemesh.web.team_access import TeamAccess
from patience import PATIENCE_S
from served import COMMAND, ready
from web_pages import OWN, Client

SAME = {"origin": OWN, "sec-fetch-site": "same-origin"}


def logged_in(bench: Any, token: str) -> Client:
    """A browser that has logged in with a token."""
    found = Client(bench).ask("POST", "/login", headers=SAME, data={"token": token})
    assert found.status_code == 303, found.text
    return Client(bench, cookie=found.headers["set-cookie"].partition(";")[0], origin=OWN)


def test_a_user_logs_in_until_revoked(bench: Any, users: Users, tokens: dict[Role, str]) -> None:
    browser = logged_in(bench, tokens[Role.MEMBER])
    assert browser.get("/jobs").status_code == 200
    assert "member (member)" in browser.get("/jobs").text
    with_token = Client(bench, authorization=f"Bearer {tokens[Role.MEMBER]}")
    assert with_token.get("/api/v1/jobs").status_code == 200
    users.revoke("member", who="owner")
    assert browser.get("/jobs").status_code == 401
    assert with_token.get("/api/v1/jobs").status_code == 401
    again = Client(bench).ask("POST", "/login", headers=SAME, data={"token": tokens[Role.MEMBER]})
    assert again.status_code == 401
    assert logged_in(bench, users.add("member", Role.VIEWER, who="owner")).get("/").is_success
    assert browser.get("/jobs").status_code == 401


def test_a_new_token_ends_sessions_and_a_new_role_applies_at_once(
    bench: Any, users: Users, tokens: dict[Role, str]
) -> None:
    browser = logged_in(bench, tokens[Role.ADMIN])
    assert browser.get("/audit-log").status_code == 200
    users.set_role("admin", Role.VIEWER, who="owner")
    assert browser.get("/audit-log").status_code == 403
    token = users.new_token("admin", who="owner")
    assert browser.get("/jobs").status_code == 401
    assert logged_in(bench, token).get("/jobs").status_code == 200


def test_a_session_cannot_be_made_another_users(users: Users, tokens: dict[Role, str]) -> None:
    access = TeamAccess(users, "token-of-the-server")
    value = access.session_of_token(tokens[Role.VIEWER])
    assert value is not None
    found = access.person_of_session(value)
    assert found is not None
    assert found.role is Role.VIEWER
    end, nonce, number, signature = value.split(".")
    admin = next(one.user_id for one in users.all() if one.name == "admin")
    for forged in (
        f"{end}.{nonce}.{admin}.{signature}",
        f"{int(end) + 1}.{nonce}.{number}.{signature}",
        f"{end}.{nonce}.{number}.",
        f"{end}.{nonce}.{number}x.{signature}",
        f"{end}.{nonce}.{'9' * 40}.{signature}",
        f"{end}.{nonce}.{signature}",
        "é.é.é.é",
    ):
        assert access.person_of_session(forged) is None
    assert TeamAccess(users, "another").person_of_session(value) is None
    owner = access.person_of_session(access.new_session())
    assert owner == access.owner
    for wrong in ("", "x", tokens[Role.ADMIN][:-1]):
        assert access.person_of_token(wrong) is access.session_of_token(wrong) is None


def test_tokens_are_stored_as_digests_only(store: Store, tokens: dict[Role, str]) -> None:
    with store.database.read() as connection:
        rows = connection.execute(text("select * from team_users")).all()
        rows += connection.execute(text("select * from team_audit_log")).all()
    assert len(rows) == 6
    assert not [token for token in tokens.values() if token in repr(rows)]


def test_what_is_wrong_with_users_is_a_sentence(users: Users, tmp_path: Path) -> None:
    users.add("ann@lab", Role.MEMBER, who="owner")
    with pytest.raises(UsageError, match="cubemesh users token ann@lab"):
        users.add("ann@lab", Role.ADMIN, who="owner")
    for name in ("", "a b", "<script>", "x" * 81, "-rf"):
        with pytest.raises(UsageError, match="not a name of a user"):
            users.add(name, Role.ADMIN, who="owner")
    with pytest.raises(UsageError, match="There is no user bob"):
        users.revoke("bob", who="owner")
    with (
        Store.open(str(tmp_path / "results.sqlite")) as store,
        pytest.raises(UsageError, match="PostgreSQL"),
    ):
        Users(store.database)


def test_the_verb_adds_changes_and_revokes(cubemesh: Any, location: str, tmp_path: Path) -> None:
    at = ("--store", location)
    refused = cubemesh("serve", "--team", "--no-open", "--port", "0", *at)
    assert refused.returncode == 2
    assert "cubemesh users add" in refused.stderr
    added = json.loads(cubemesh("users", "add", "ann", "--json", *at).stdout)
    assert (added["users"][0]["role"], len(added["token"]) > 40) == ("member", True)
    assert cubemesh("users", "role", "ann", "--role", "viewer", *at).stdout == "ann: viewer\n"
    assert cubemesh("users", "token", "ann", *at).stdout.count("token: ") == 1
    assert "ann: viewer, revoked 20" in cubemesh("users", "revoke", "ann", *at).stdout
    assert "ann: viewer, revoked" in cubemesh("users", *at).stdout
    with Store.open(location) as store:
        actions = [entry.action for entry in entries(store.database)]
    assert actions == ["revoke user", "new token", "change role", "add user"]
    for words, named in (
        (("users", "fire", "ann"), "revoke"),
        (("users", "add"), "Which user"),
        (("users", "role", "ann"), "--role viewer"),
        (("users", "add", "bob", "--role", "boss"), "viewer"),
        (("users", "list", "ann"), "takes no name"),
        (("users", "revoke", "ann", "--role", "viewer"), "--role belongs to"),
    ):
        wrong = cubemesh(*words, *at)
        assert wrong.returncode == 2
        assert named in wrong.stderr
    file = str(tmp_path / "results.sqlite")
    assert cubemesh("users", "add", "ann", "--store", file).returncode == 2
    assert cubemesh("serve", "--team", "--port", "0", "--store", file).returncode == 2


def test_a_server_of_a_team_logs_in_its_users_and_who_started_it(
    forkserver: Forkserver, location: str, tokens: dict[Role, str]
) -> None:
    options = ("--team", "--no-agent", "--port", "0")
    with ready(forkserver.start(*COMMAND, location, *options)) as (_, started):
        given: dict[str, Any] = {
            "base_url": started["address"],
            "headers": {"origin": started["address"]},
            "timeout": PATIENCE_S,
        }
        with httpx.Client(**given) as browser:
            assert "cubemesh users add" in browser.get("/").text
            done = browser.post("/login", data={"token": tokens[Role.MEMBER]})
            assert done.status_code == 303
            assert "member (member)" in browser.get("/jobs").text
            assert browser.get("/audit-log").status_code == 403
        with httpx.Client(**given) as browser:
            assert browser.get(started["login"]).status_code == 303
            assert "log in" in browser.get("/audit-log").text
