"""Wake-up by PostgreSQL's notifications. Every wait here has no end but a notification: a test of
one that does not come never ends."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest

from cubemesh.jobs.agent import AgentOptions, JobAgent
from cubemesh.jobs.forkserver import JobServer
from cubemesh.jobs.lease import Lease
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Question, Wants
from cubemesh.jobs.wakeup import EVENTS, QUEUE, Wakeup
from cubemesh.store import Store
from patience import PATIENCE_S, wait_until

on_postgresql = pytest.mark.parametrize("location", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("location", ["sqlite"], indirect=True)
FREE = FreeDevices(hostname="here")
NEVER_S = PATIENCE_S


def put(queue: JobQueue) -> int:
    question = Question(
        names=("minibatch",),
        settings=("framework=null", "networks=little-cnn", "batch_sizes=1", "threads=1"),
        scale="quick",
    )
    return queue.submit([question], [Wants(device="none")]).job_id


def notified(wakeup: Wakeup, *jobs: int) -> None:
    """Wait until all of these jobs were notified."""
    for job_id in jobs:
        wakeup.wait(job_id, NEVER_S, NEVER_S)


@on_postgresql
def test_events_and_queued_jobs_are_notified(live: JobQueue) -> None:
    events, queued = Wakeup(live.database, EVENTS), Wakeup(live.database, QUEUE)
    with closing(events), closing(queued):
        assert events.listen()
        assert queued.listen()
        job_id = put(live)
        notified(events, job_id)
        notified(queued, job_id)
        job = live.claim("a", FREE)
        assert job is not None
        notified(events, job_id)  # its state
        held = Lease(queue=live, job_id=job_id, fence=job.fence)
        held.renew({"fraction": 0.5})  # no event
        held.renew(events=[("message", {"text": "x"})])
        notified(events, job_id)
        assert queued.pending() == set()
        held.release("")
        notified(queued, job_id)


@on_postgresql
def test_an_event_that_is_rolled_back_notifies_nothing(live: JobQueue) -> None:
    with closing(Wakeup(live.database, EVENTS)) as wakeup:
        assert wakeup.listen()
        job_id = put(live)
        notified(wakeup, job_id)
        job = live.claim("a", FREE)
        assert job is not None
        notified(wakeup, job_id)
        held = Lease(queue=live, job_id=job_id, fence=job.fence)
        with pytest.raises(ValueError, match="JSON"):
            held.renew(events=[("message", {"text": "x"}), ("message", float("nan"))])
        other = put(live)
        found: set[int] = set()
        wait_until(lambda: found.update(wakeup.pending()) or found, "a notification")
        assert found == {other}


@on_sqlite
def test_without_notifications_there_is_no_connection(live: JobQueue) -> None:
    with closing(Wakeup(live.database, EVENTS)) as wakeup:
        assert not wakeup.possible
        assert not wakeup.listen()
        assert wakeup.pending() == set()
        wakeup.wait(1, 0.0)


@on_postgresql
def test_a_lost_connection_is_noticed_and_ends_no_wait(live: JobQueue, location: str) -> None:
    import psycopg

    with closing(Wakeup(live.database, EVENTS)) as wakeup:
        assert wakeup.listen()
        waiting = threading.Thread(target=wakeup.wait, args=(1, NEVER_S, NEVER_S))
        waiting.start()
        with psycopg.connect(location.replace("+psycopg", ""), autocommit=True) as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where query like 'LISTEN%'"
            )
        waiting.join()
        assert not wakeup.listening
        assert not wakeup.listen()  # not at once again
        put(live)  # the database itself still answers


@on_postgresql
def test_an_agent_that_waits_takes_a_job_at_once(
    live: JobQueue, store: Store, location: str, tmp_path: Path
) -> None:
    """It looks for jobs once an hour, or when one is queued."""
    options = AgentOptions(
        once=True, poll_s=NEVER_S, listening_s=NEVER_S, checkpoints=str(tmp_path)
    )
    with closing(JobServer.spawn()) as server:
        agent = JobAgent(store=store, location=location, server=server, options=options)
        submitting = threading.Thread(
            target=lambda: (
                wait_until(lambda: agent.wakeup.listening and live.agents(), "the agent waits"),
                put(live),
            )
        )
        submitting.start()
        assert agent.run() == 1
        submitting.join()
    (job,) = live.list()
    assert job.state is State.DONE


@on_postgresql
def test_a_stream_that_waits_shows_an_event_at_once(live: JobQueue) -> None:
    """It reads the events of a job once an hour, or when there are new ones."""
    from cubemesh.web.live import Hub

    job_id = put(live)

    async def watch() -> list[str]:
        hub = Hub(live, poll_s=NEVER_S, listening_s=NEVER_S)
        body = hub.response(job_id, 0).body_iterator  # type: ignore[attr-defined]
        found = []
        async for chunk in body:
            found += [block for block in chunk.decode().split("\n\n") if block.startswith("id: ")]
            if len(found) == 1:
                while not hub.listening:
                    await asyncio.sleep(0.005)
                await asyncio.to_thread(live.set_priority, job_id, 7)
            if len(found) == 2:
                break
        await body.aclose()
        return found

    found = asyncio.run(watch())
    assert [block.partition("\n")[0] for block in found] == ["id: 1", "id: 2"]
