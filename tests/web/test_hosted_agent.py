"""The agent of a server: it runs jobs, ends with the server in any case, and is left out when one
runs on the host already."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import State
from cubemesh.store import Store
from patience import PATIENCE_S, wait_until
from served import Serving, ask


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The path of a store that does not exist yet."""
    return tmp_path / "results.sqlite"


def submit(ready: dict[str, Any], **fields: str) -> int:
    token = Path(ready["token_file"]).read_text().strip()
    found = httpx.post(
        f"{ready['address']}/api/v1/ask/train",
        headers={"authorization": f"Bearer {token}"},
        json={"framework": "null", **fields},
        timeout=PATIENCE_S,
    )
    assert found.status_code == 200, found.text
    return int(found.json()["job"]["job_id"])


def job(ready: dict[str, Any], job_id: int) -> dict[str, Any]:
    found: dict[str, Any] = ask(ready, f"/api/v1/jobs/{job_id}").json()["job"]
    return found


def agents(place: Path) -> list[Any]:
    with Store.open(str(place), read_only=True) as store:
        return JobQueue(store.database).agents()


def test_a_question_of_a_page_is_answered(serving: Serving, place: Path) -> None:
    with serving("--port", "0", store=place, agent=True) as (process, ready):
        job_id = submit(ready, epochs="2")
        wait_until(lambda: State(job(ready, job_id)["state"]).ended, "the job ends")
        done = job(ready, job_id)
        assert done["state"] == "done", done["why"]
        assert ask(ready, f"/runs/{done['run_ids'][0]}").status_code == 200
        again = submit(ready, epochs="2", learning_rate="0.5")
        wait_until(lambda: State(job(ready, again)["state"]).ended, "the second job ends")
        events = ask(ready, f"/api/v1/jobs/{again}/events").json()["events"]
        (begun,) = [event["value"] for event in events if event["kind"] == "run"]
        assert begun["expected"]["run_ids"] == done["run_ids"]
        (agent,) = agents(place)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert [one.state for one in agents(place)] == ["ended"]
    assert not psutil.pid_exists(agent.process)


def test_a_killed_server_leaves_no_agent(serving: Serving, place: Path) -> None:
    with serving("--port", "0", store=place, agent=True) as (process, _):
        wait_until(lambda: bool(agents(place)), "the agent begins")
        (agent,) = agents(place)
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: agents(place)[0].state == "ended", "the agent ends")
        wait_until(lambda: not psutil.pid_exists(agent.process), "its process is gone")


def test_a_second_server_starts_no_second_agent(serving: Serving, place: Path) -> None:
    with serving("--port", "0", store=place, agent=True) as (_, _):
        wait_until(lambda: bool(agents(place)), "the agent begins")
        with serving("--port", "0", store=place, agent=True) as (second, ready):
            assert ask(ready, "/jobs").status_code == 200
            assert psutil.Process(second.pid).children() == []
            assert len(agents(place)) == 1


def test_without_an_agent_jobs_wait(serving: Serving, place: Path) -> None:
    with serving("--port", "0", store=place) as (process, ready):
        job_id = submit(ready)
        assert psutil.Process(process.pid).children() == []
        assert job(ready, job_id)["state"] == "queued"
        assert "No agent runs" in ask(ready, "/jobs").text
