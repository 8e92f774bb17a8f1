"""Streams of events: nothing missing and nothing twice, heart-beats, limits, and how they end."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubemesh.jobs.feed import events_after
from cubemesh.jobs.lease import Lease
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import State
from cubemesh.store import Store
from cubemesh.web import live
from cubemesh.web.live import KIND, Hub
from held_jobs import running
from patience import PATIENCE_S
from served import Serving
from web_pages import Client


def report(lease: Lease, first: int, last: int) -> None:
    lease.renew(events=[("message", {"text": f"{i}\n{i}"}) for i in range(first, last)])


def stream(hub: Hub, job_id: int, cursor: int = 0) -> AsyncIterator[str]:
    """The blocks of a stream, as a browser separates them."""

    async def blocks() -> AsyncIterator[str]:
        body: Any = hub.response(job_id, cursor)
        try:
            async for chunk in body.body_iterator:
                for block in chunk.decode().split("\n\n"):
                    if block:
                        yield block
        finally:
            await body.body_iterator.aclose()

    return blocks()


def event_of(block: str) -> dict[str, Any]:
    number, data = block.split("\n")
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    assert number == f"id: {found['sequence']}"
    return found


async def take(blocks: AsyncIterator[str], last: int) -> list[int]:
    """The numbers of the events up to the last."""
    seen: list[int] = []
    async for block in blocks:
        if block.startswith("id:"):
            seen.append(event_of(block)["sequence"])
        if seen and seen[-1] >= last:
            break
    return seen


def test_watchers_get_every_event_once_from_their_cursors(queue: JobQueue) -> None:
    lease = running(queue)
    report(lease, 0, 50)

    async def watch() -> list[list[int]]:
        hub = Hub(queue)
        late = stream(hub, lease.job_id, 40)
        early = [stream(hub, lease.job_id, cursor) for cursor in (0, 10, 45)]
        first = asyncio.gather(take(late, 100), *(take(one, 100) for one in early))
        await asyncio.to_thread(report, lease, 50, 150)
        return list(await asyncio.wait_for(first, PATIENCE_S))

    found = asyncio.run(watch())
    for seen, cursor in zip(found, (40, 0, 10, 45), strict=True):
        assert seen == list(range(cursor + 1, seen[-1] + 1))
        assert seen[-1] >= 100


def test_a_watcher_behind_what_is_in_memory_reads_the_store(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_RECENT", 20)
    monkeypatch.setattr(live, "_BATCH", 7)
    lease = running(queue)
    report(lease, 0, 200)

    async def watch() -> list[int]:
        hub = Hub(queue)
        ahead = stream(hub, lease.job_id, 0)
        await take(ahead, 200)
        behind = await take(stream(hub, lease.job_id, 0), 200)
        await ahead.aclose()  # type: ignore[attr-defined]
        return behind

    seen = asyncio.run(watch())
    assert seen == list(range(1, seen[-1] + 1))


def test_a_watcher_that_does_not_read_delays_no_other_and_misses_nothing(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_RECENT", 20)
    monkeypatch.setattr(live, "_BATCH", 7)
    lease = running(queue)

    async def watch() -> tuple[list[int], list[int]]:
        hub = Hub(queue)
        slow = stream(hub, lease.job_id)
        seen = await take(slow, 1)
        await asyncio.to_thread(report, lease, 0, 200)
        fast = stream(hub, lease.job_id)
        others = await asyncio.wait_for(take(fast, 200), PATIENCE_S)
        await fast.aclose()  # type: ignore[attr-defined]
        return [*seen, *await asyncio.wait_for(take(slow, 200), PATIENCE_S)], others

    for seen in asyncio.run(watch()):
        assert seen == list(range(1, seen[-1] + 1))
        assert seen[-1] >= 200


def test_a_stream_ends_with_its_job(queue: JobQueue) -> None:
    lease = running(queue)

    async def watch() -> list[str]:
        hub = Hub(queue)
        blocks = [block async for block in stream(hub, lease.job_id)]
        assert hub.watchers == 0
        return blocks

    async def both() -> list[str]:
        watching = asyncio.create_task(watch())
        await asyncio.to_thread(lease.end, State.DONE)
        return await asyncio.wait_for(watching, PATIENCE_S)

    blocks = asyncio.run(both())
    assert blocks[0].startswith("retry:")
    assert blocks[-1].startswith("event: end")
    assert event_of(blocks[-2])["value"]["state"] == "done"


def test_a_quiet_stream_has_heart_beats(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.01)
    lease = running(queue)

    async def watch() -> int:
        hub = Hub(queue)
        blocks = stream(hub, lease.job_id, 10**6)
        beats = 0
        async for block in blocks:
            beats += block.startswith(":")
            if beats == 3:
                break
        await blocks.aclose()  # type: ignore[attr-defined]
        return hub.watchers

    assert asyncio.run(asyncio.wait_for(watch(), PATIENCE_S)) == 0


def test_the_number_of_streams_is_limited(queue: JobQueue) -> None:
    lease = running(queue)

    async def watch() -> None:
        hub = Hub(queue, most=2)
        first, second = stream(hub, lease.job_id), stream(hub, lease.job_id)
        await anext(first), await anext(second)
        refused = hub.response(lease.job_id, 0)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        await first.aclose()  # type: ignore[attr-defined]
        assert hub.response(lease.job_id, 0).status_code == 200
        hub.close()
        await asyncio.wait_for(take(second, 10**9), PATIENCE_S)

    asyncio.run(watch())


def test_a_browser_that_connects_again_continues(client: Client) -> None:
    path = "/api/v1/jobs/3/events"
    events = client.get(path).json()["events"]
    assert [one["sequence"] for one in events] == list(range(1, len(events) + 1))
    headers = {"accept": KIND}
    found = client.get(path, headers=headers)
    assert found.headers["content-type"].startswith(KIND)
    assert found.headers["cache-control"] == "no-store"
    blocks = [b for b in found.text.split("\n\n") if b.startswith("id:")]
    assert [event_of(block) for block in blocks] == events
    again = client.get(f"{path}?after=1", headers={**headers, "last-event-id": "2"}).text
    assert [b for b in again.split("\n\n") if b.startswith("id:")] == blocks[2:]
    for wrong in ("x", "-1", "9" * 30):
        assert client.get(path, headers={**headers, "last-event-id": wrong}).status_code == 400
    assert client.get("/api/v1/jobs/99/events", headers=headers).status_code == 404


def test_a_server_ends_in_order_while_it_is_watched(serving: Serving, filled: Path) -> None:
    with serving("--port", "0", store=filled) as (process, ready):
        token = Path(ready["token_file"]).read_text().strip()
        headers = {"authorization": f"Bearer {token}", "accept": KIND}
        address = f"{ready['address']}/api/v1/jobs/1/events"
        with httpx.stream("GET", address, headers=headers, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("retry:")
            assert any(line.startswith("id: 1") for line in lines)
            process.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()


def test_events_are_a_table_without_scripts(client: Client, filled: Path) -> None:
    page = client.get("/jobs/1/events?limit=2").text
    assert 'rel="next"' in page
    with Store.open(str(filled), read_only=True) as store:
        events, _ = events_after(JobQueue(store.database), 1)
    assert [one.sequence for one in events] == list(range(1, len(events) + 1))


def test_a_stream_ends_when_its_reader_may_not_read_any_more(queue: JobQueue) -> None:
    lease = running(queue)
    report(lease, 0, 3)
    found: list[str] = []

    async def read() -> None:
        hub = Hub(queue, poll_s=0.01, recheck_s=0.0)
        body: Any = hub.response(lease.job_id, 0, lambda: not any("id: 1\n" in x for x in found))
        async for chunk in body.body_iterator:
            found.append(chunk.decode())
            report(lease, 3, 4)  # wakes it again

    asyncio.run(read())
    assert "id: 1\n" in "".join(found)
    assert "event: end" not in "".join(found)
