"""Roles: made from the routes of the application, so a new route is tested by these; whose jobs a
member may change, and what the audit log has of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.schedules import Schedules
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Question, Wants
from cubemesh.store import Store
from cubemesh.team.audit_log import entries
from cubemesh.team.roles import Role
from cubemesh.web.pages import PAGES
from web_pages import HOSTILE, OWN, Client

METHODS = ("GET", "POST", "DELETE")


def client_of(bench: Any, token: str) -> Client:
    return Client(bench, authorization=f"Bearer {token}", origin=OWN)


def put(queue: JobQueue, submitter: str) -> int:
    question = Question(names=("train",), settings=("framework=null",))
    return queue.submit([question], [Wants(device="none")], submitter=submitter).job_id


@pytest.fixture
def queue(store: Store) -> JobQueue:
    return JobQueue(store.database)


def test_every_route_declares_its_least_role(bench: Any) -> None:
    declared = {(route.path, method) for route in bench.routes for method in route.methods}
    assert {pair for pair in declared if pair[1] != "HEAD"} == set(bench.roles)
    for page in PAGES:
        assert page.role in Role
        assert page.acts is None or page.acts >= Role.MEMBER


@pytest.mark.parametrize("role", Role, ids=lambda role: role.label)
def test_a_route_refuses_lower_roles_and_no_other(
    bench: Any, tokens: dict[Role, str], queue: JobQueue, role: Role
) -> None:
    put(queue, "somebody")
    client = client_of(bench, tokens[role])
    wrong = []
    for path in {path for path, _ in bench.roles}:
        address = re.sub(r"{\w*}", "1", path.replace("{experiment}", "train"))
        for method in METHODS:
            known = (path, method)
            least = bench.roles.get(known)
            status = client.ask(method, address).status_code
            if known not in bench.roles:
                expected = status in (404, 405)
            elif least is None:  # it asks for a login itself
                expected = status not in (403, 405, 500)
            elif role < least:
                expected = status == 403
            else:
                expected = status not in (401, 403, 405, 500)
            if not expected:
                wrong.append((method, address, status))
    assert wrong == []


def test_a_member_changes_own_jobs_an_administrator_all_a_viewer_none(
    bench: Any, tokens: dict[Role, str], queue: JobQueue
) -> None:
    own, other = put(queue, "member"), put(queue, "ann")

    def do(role: Role, job_id: int, action: str) -> int:
        client = client_of(bench, tokens[role])
        return client.ask("POST", f"/api/v1/jobs/{job_id}", json={"action": action}).status_code

    for action in ("pause", "stop", "stop-at-checkpoint", "resume", "priority", "clone"):
        assert do(Role.VIEWER, own, action) == 403
    for action in ("pause", "stop", "stop-at-checkpoint", "resume", "priority"):
        assert do(Role.MEMBER, other, action) == 403
    assert queue.get(other).state is State.QUEUED
    assert do(Role.MEMBER, own, "pause") == 200
    assert do(Role.MEMBER, other, "clone") == 200
    assert do(Role.ADMIN, other, "stop") == 200
    assert [queue.get(job).state for job in (own, other)] == [State.PAUSED, State.STOPPED]
    assert queue.list()[0].submitter == "member"

    listed = client_of(bench, tokens[Role.ADMIN]).get("/api/v1/audit-log").json()["entries"]
    found = [(one["who"], one["action"], one["job_id"]) for one in listed][:5]
    assert found == [
        ("admin", "stop", other),
        ("member", "submit", own + 2),
        ("member", "pause", own),
        ("ann", "submit", other),
        ("member", "submit", own),
    ]


def test_a_member_changes_own_schedules_an_administrator_all_a_viewer_none(
    bench: Any, tokens: dict[Role, str], queue: JobQueue
) -> None:
    schedules = Schedules(queue)

    def ask(role: Role, method: str, path: str, **form: Any) -> Any:
        return client_of(bench, tokens[role]).ask(method, path, **({"json": form} if form else {}))

    def do(role: Role, number: int, action: str) -> int:
        form = {"action": action, "schedule": number}
        return int(ask(role, "POST", "/api/v1/schedules", **form).status_code)

    nightly = {"framework": "null", "when": "nightly"}
    assert ask(Role.VIEWER, "POST", "/api/v1/ask/train", **nightly).status_code == 403
    own, other = (
        ask(role, "POST", "/api/v1/ask/train", **nightly).json()["schedule"]["schedule_id"]
        for role in (Role.MEMBER, Role.ADMIN)
    )
    assert [one.submitter for one in schedules.list()] == ["member", "admin"]
    buttons = {
        role: set(
            re.findall(r'aria-label="(\w+ schedule \d)"', ask(role, "GET", "/schedules").text)
        )
        for role in Role
    }
    of_own = {f"Pause schedule {own}", f"Delete schedule {own}"}
    of_other = {f"Pause schedule {other}", f"Delete schedule {other}"}
    copies = {f"Copy schedule {number}" for number in (own, other)}
    assert buttons == {
        Role.VIEWER: set(),
        Role.MEMBER: of_own | copies,
        Role.ADMIN: of_own | of_other | copies,
    }
    for action in ("pause", "resume", "delete"):
        assert do(Role.VIEWER, own, action) == 403
        assert do(Role.MEMBER, other, action) == 403
    for action in ("pause", "resume", "delete"):
        assert do(Role.MEMBER, own, action) == 200
    assert do(Role.ADMIN, other, "delete") == 200
    assert schedules.list() == []
    listed = client_of(bench, tokens[Role.ADMIN]).get("/api/v1/audit-log").json()["entries"]
    found = [(one["who"], one["action"]) for one in listed][:6]
    assert found == [
        ("admin", "unschedule"),
        *(("member", f"{action}schedule") for action in ("un", "resume ", "pause ")),
        ("admin", "schedule"),
        ("member", "schedule"),
    ]


def test_pages_offer_what_the_role_allows(
    bench: Any, tokens: dict[Role, str], queue: JobQueue
) -> None:
    other = put(queue, "ann")
    pages = {
        role: client_of(bench, token).get(f"/jobs/{other}").text for role, token in tokens.items()
    }
    buttons = {role: set(re.findall(r'value="([\w-]+)"><button', pages[role])) for role in Role}
    assert buttons == {
        Role.VIEWER: set(),
        Role.MEMBER: {"clone"},
        Role.ADMIN: {"pause", "stop", "clone"},
    }
    assert ["/audit-log" in pages[role] for role in Role] == [False, False, True]


def test_the_audit_log_is_in_pages_filtered_and_escaped(
    bench: Any, tokens: dict[Role, str], queue: JobQueue, store: Store
) -> None:
    jobs = [put(queue, f"ann{HOSTILE}") for _ in range(3)]
    queue.set_priority(jobs[0], 5, who="ann")
    queue.set_priority(jobs[1], 5)  # no person
    admin = client_of(bench, tokens[Role.ADMIN])
    first = admin.get("/api/v1/audit-log?limit=2").json()
    assert [one["action"] for one in first["entries"]] == ["priority 5", "submit"]
    second = admin.get(f"/api/v1/audit-log?limit=2&before={first['next']}").json()
    assert [one["job_id"] for one in second["entries"]] == [jobs[1], jobs[0]]
    assert len(admin.get("/api/v1/audit-log?who=ann").json()["entries"]) == 1
    of_job = admin.get(f"/api/v1/audit-log?job={jobs[0]}").json()["entries"]
    assert [one["who"] for one in of_job] == ["ann", f"ann{HOSTILE}"]
    page = admin.get("/audit-log?limit=2").text
    assert "<script>alert" not in page
    assert "Next page" in page
    assert "ann" in admin.get("/audit-log?who=ann").text
    assert len(entries(store.database, limit=100)) == 7


def test_an_action_that_is_refused_leaves_no_entry(queue: JobQueue, store: Store) -> None:
    job_id = put(queue, "ann")
    queue.stop(job_id, who="ann")
    with pytest.raises(Exception, match="stopped"):
        queue.stop(job_id, who="ann")
    assert [one.action for one in entries(store.database)] == ["stop", "submit"]
