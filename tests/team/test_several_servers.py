"""Several servers over one store in PostgreSQL, and agents of several hosts: what one queues,
another shows live, and each host gets what fits it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cubemesh.jobs.lease import Lease
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.states import State
from cubemesh.store import Store
from cubemesh.team.audit_log import entries
from cubemesh.team.roles import Role
from cubemesh.team.users import Users
from cubemesh.web.app import Workbench
from cubemesh.web.security.gate import Rules
from cubemesh.web.team_access import TeamAccess
from patience import PATIENCE_S
from web_pages import OWN, Client


@pytest.fixture
def servers(location: str, tokens: dict[Role, str]) -> Iterator[list[Workbench]]:
    """Two servers, each with connections of its own."""
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(location)) for _ in range(2)]
        yield [
            Workbench(store, TeamAccess(Users(store.database), "own"), Rules(), secure=False)
            for store in stores
        ]


def test_a_job_of_one_server_is_watched_and_steered_on_another(
    servers: list[Workbench], tokens: dict[Role, str], store: Store
) -> None:
    first, second = (
        Client(bench, authorization=f"Bearer {tokens[Role.MEMBER]}", origin=OWN)
        for bench in servers
    )
    fields = {"framework": "null", "networks": "little-cnn", "batch_sizes": "1"}
    made = first.ask("POST", "/api/v1/ask/minibatch", json=fields).json()["job"]
    job_id = made["job_id"]
    queue = JobQueue(store.database)
    claimed = queue.claim("agent", FreeDevices(hostname="node1"))
    assert claimed is not None
    lease = Lease(queue=queue, job_id=job_id, fence=claimed.fence)
    lease.run_started()

    async def watch() -> list[str]:
        found: list[str] = []
        response: Any = servers[1].hub.response(job_id, 0)
        async for chunk in response.body_iterator:
            text = chunk.decode()
            found.append(text)
            if len(found) == 2:
                await asyncio.to_thread(lease.renew, {"note": "x"}, [("log", {"text": "seen"})])
            if "seen" in text:
                break
        await response.body_iterator.aclose()
        return found

    blocks = "".join(asyncio.run(asyncio.wait_for(watch(), PATIENCE_S)))
    assert '"running"' in blocks
    found = second.ask("POST", f"/api/v1/jobs/{job_id}", json={"action": "stop"})
    assert found.status_code == 200, found.text
    assert lease.control() == "stop"
    lease.end(State.STOPPED)
    assert first.get(f"/api/v1/jobs/{job_id}").json()["job"]["state"] == "stopped"
    assert {(entry.who, entry.job_id) for entry in entries(store.database) if entry.job_id} == {
        ("member", job_id)
    }


def test_each_host_gets_what_fits_it_and_every_job_one_host(
    servers: list[Workbench], tokens: dict[Role, str], location: str
) -> None:
    """Three hosts: one without GPUs, one with one, one with four."""
    member = Client(servers[0], authorization=f"Bearer {tokens[Role.ADMIN]}", origin=OWN)
    ids: dict[str, list[int]] = {"cpu": [], "1": [], "4": []}
    for devices, found in ids.items():
        for seed in range(3):
            fields = {"networks": "little-cnn", "on_devices": devices, "seed": str(seed)}
            fields |= {"device": "cpu"} if devices == "cpu" else {"device": "cuda"}
            fields |= {"devices": devices} if devices == "4" else {}
            answer = member.ask("POST", "/api/v1/ask/train", json=fields)
            assert answer.status_code == 200, answer.text
            found.append(answer.json()["job"]["job_id"])
    hosts = {
        "none": FreeDevices(hostname="none"),
        "one": FreeDevices(hostname="one", gpus=1, has_gpus=True, cpu=False),
        "four": FreeDevices(hostname="four", gpus=4, has_gpus=True, cpu=False),
    }
    taken: dict[str, set[int]] = {name: set() for name in hosts}
    with ExitStack() as stack:
        queues = {
            name: JobQueue(stack.enter_context(Store.open(location)).database) for name in hosts
        }
        left = list(hosts)
        while left:
            for name in list(left):
                job = queues[name].claim(name, hosts[name])
                if job is None:
                    left.remove(name)
                else:
                    assert job.job_id not in set().union(*taken.values())
                    taken[name].add(job.job_id)
    assert taken["none"] == set(ids["cpu"])
    assert taken["one"] <= set(ids["1"])
    assert taken["four"] >= set(ids["4"])
    assert set().union(*taken.values()) == {job for found in ids.values() for job in found}
