"""Demonstrations: a click each queues a training, and those that are done can be compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cubemesh.jobs.lease import Lease
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.states import State
from cubemesh.store import Store
from cubemesh.web.app import Workbench
from cubemesh.web.demo import DEMONSTRATIONS
from cubemesh.web.security.gate import Rules
from web_pages import OWN, Client

FORM = re.compile(r'<form action="/ask/train" method="post">(.*?)</form>', re.S)
FIELD = re.compile(r'name="(\w+)" value="([^"]*)"')


def test_three_clicks_queue_three_trainings(tmp_path: Path, access: Any) -> None:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        bench = Workbench(store, access, Rules(), secure=False, demo=True)
        member = Client(bench, cookie=f"{access.cookie}={access.new_session()}", origin=OWN)
        queue = JobQueue(store.database)
        for left in (3, 2, 1):
            forms = FORM.findall(member.get("/").text)
            assert len(forms) == left
            found = member.ask("POST", "/ask/train", data=dict(FIELD.findall(forms[0])))
            assert found.status_code == 303, found.text
        page = member.get("/").text
        assert not FORM.findall(page)
        assert len(re.findall(r"</a> queued", page)) == len(DEMONSTRATIONS)
        for run_id in ("aaaa", "bbbb"):
            job = queue.claim("a", FreeDevices(hostname="here"))
            assert job is not None
            lease = Lease(queue=queue, job_id=job.job_id, fence=job.fence)
            lease.run_started()
            lease.add_run(run_id)
            lease.end(State.DONE)
        assert 'href="/compare?id=' in member.get("/").text


def test_other_stores_offer_no_demonstration(client: Client) -> None:
    assert not FORM.findall(client.get("/").text)
