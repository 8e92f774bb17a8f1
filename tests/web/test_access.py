"""Login: codes that work once, cookies, the file of the token, and failed attempts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cubemesh.errors import CubemeshError
from cubemesh.web.access import FREE_FAILURES, SESSION_S, Access, token_of
from web_pages import OWN, TOKEN, Client


def test_a_link_logs_in_once(stranger: Client, access: Access) -> None:
    code = access.new_code()
    first = stranger.get(f"/login?code={code}")
    assert first.status_code == 303
    assert first.headers["location"] == "/"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    value = cookie.split(";")[0]
    assert stranger.get("/", headers={"cookie": value}).status_code == 200
    second = stranger.get(f"/login?code={code}")
    assert second.status_code == 401
    assert "used already" in second.text


def test_looking_at_a_link_does_not_use_it(stranger: Client, access: Access) -> None:
    code = access.new_code()
    assert stranger.ask("HEAD", f"/login?code={code}").status_code == 401
    assert stranger.get(f"/login?code={code}").status_code == 303


def test_the_token_logs_in_by_the_form(stranger: Client) -> None:
    own = {"origin": OWN, "sec-fetch-site": "same-origin"}
    good = stranger.ask("POST", "/login", headers=own, data={"token": TOKEN})
    assert good.status_code == 303
    assert "set-cookie" in good.headers
    wrong = stranger.ask("POST", "/login", headers=own, data={"token": "x"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    foreign = {"origin": "http://evil.example.org"}
    other = stranger.ask("POST", "/login", headers=foreign, data={"token": TOKEN})
    assert other.status_code == 403


def test_a_stranger_sees_how_to_log_in_and_nothing_else(stranger: Client) -> None:
    found = stranger.get("/runs")
    assert found.status_code == 401
    assert "cubemesh serve" in found.text
    assert "results.sqlite" not in found.text


def test_logging_out_removes_the_cookie(client: Client, access: Access) -> None:
    found = client.ask("POST", "/logout", headers={"origin": OWN})
    assert found.status_code == 303
    assert f'{access.cookie}=""' in found.headers["set-cookie"]


def test_a_cookie_is_signed_and_ends() -> None:
    now = 1000.0
    access = Access(TOKEN, clock=lambda: now)
    value = access.new_session()
    assert access.accepts_session(value)
    end, rest = value.split(".", 1)
    for forged in (f"{int(end) + 1}.{rest}", value[:-1], "", "..", "9999999999.x.y", "é.é.é"):
        assert not access.accepts_session(forged)
    assert not Access("another").accepts_session(value)
    assert Access(TOKEN, clock=lambda: now).accepts_session(value)  # also after a restart
    now += SESSION_S
    assert not access.accepts_session(value)


def test_failed_logins_slow_an_address_down() -> None:
    now = 0.0
    access = Access(TOKEN, clock=lambda: now)
    for _ in range(FREE_FAILURES):
        assert not access.must_wait("10.0.0.1")
        access.fail("10.0.0.1")
    assert access.must_wait("10.0.0.1")
    assert not access.must_wait("10.0.0.2")
    now = 1.0
    assert not access.must_wait("10.0.0.1")
    for i in range(5000):  # the list of addresses is bounded
        access.fail(f"10.1.{i // 256}.{i % 256}")
    assert not access.must_wait("10.0.0.1")


def test_too_many_failures_have_their_status(stranger: Client, access: Access) -> None:
    for _ in range(FREE_FAILURES):
        access.fail("127.0.0.1")
    found = stranger.get("/login?code=x")
    assert found.status_code == 429
    assert found.headers["retry-after"] == "1"


def test_the_token_is_in_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "state" / "serve-token"
    token = token_of(path)
    assert len(token) > 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(path) == token


@pytest.mark.parametrize("what", ["readable", "link", "empty"])
def test_a_token_that_others_may_know_is_replaced(tmp_path: Path, what: str) -> None:
    path, known = tmp_path / "serve-token", "known-to-others"
    if what == "link":
        (tmp_path / "elsewhere").write_text(known)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text(known if what == "readable" else "")
        path.chmod(0o644 if what == "readable" else 0o600)
    token = token_of(path)
    assert token
    assert token != known
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CubemeshError, match="XDG_STATE_HOME"):
        token_of(tmp_path / "file" / "serve-token")
