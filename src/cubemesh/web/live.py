"""Live events of jobs as server-sent events: each job is read once for all who watch it.

    store ── when PostgreSQL notifies of one, else ten times a second, while someone
             watches ──▶ newest events, encoded once
                                                                    └──▶ watchers, by their cursors

A stream begins after a cursor (`after`, or Last-Event-ID of a browser that connects again). The
store has all events, so a watcher that is late or was away misses nothing and gets nothing twice.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import asdict

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from cubemesh.errors import BusyError, StoreError
from cubemesh.jobs.feed import DAMAGED, events_after
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import ENDED, State
from cubemesh.jobs.values import JobEvent
from cubemesh.jobs.wakeup import AGAIN_S, EVENTS, LISTENING_S, Wakeup

KIND = "text/event-stream"
MOST_STREAMS = 250
"""Streams at the same time; the other half of the connections is for pages."""
POLL_S = 0.1
HEARTBEAT_S = 15.0
"""A comment is sent after so long without events, so that proxies do not close the connection."""
_RECENT = 2000
"""Events of a job that stay encoded."""
_BATCH = 500
_AGAIN = b"retry: 2000\n\n"
_BEAT = b": heart-beat\n\n"
_END = b"event: end\ndata: {}\n\n"
Encoded = tuple[int, bytes]


class Hub:
    """The streams of a server."""

    def __init__(
        self,
        queue: JobQueue,
        most: int = MOST_STREAMS,
        *,
        poll_s: float = POLL_S,
        listening_s: float = LISTENING_S,
        recheck_s: float = HEARTBEAT_S,
    ) -> None:
        self._queue, self._most = queue, most
        self._poll_s, self._listening_s, self._recheck_s = poll_s, listening_s, recheck_s
        self._wakeup = Wakeup(queue.database, EVENTS)
        self._listener: asyncio.Task[None] | None = None
        self._channels: dict[int, _Channel] = {}
        self._closed = False
        self.watchers = 0
        """Number of open streams."""
        self.listening = False
        """Whether the database notifies of events."""

    def response(
        self, job_id: int, cursor: int, allowed: Callable[[], bool] | None = None
    ) -> Response:
        """The stream of a job after `cursor`; status 503 where there are too many. It ends when
        `allowed`, asked every `recheck_s`, is false."""
        if self.watchers >= self._most:
            text = f"More than {self._most} pages are watched live. Try again later.\n"
            return Response(text, 503, headers={"retry-after": "10"}, media_type="text/plain")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(
            self._events(job_id, cursor, allowed), headers=headers, media_type=KIND
        )

    def close(self) -> None:
        """End all streams: the server ends. Browsers connect again, with their cursors."""
        self._closed = True
        for channel in self._channels.values():
            channel.notify()

    async def _events(
        self, job_id: int, cursor: int, allowed: Callable[[], bool] | None
    ) -> AsyncIterator[bytes]:
        checked = time.monotonic()
        if job_id not in self._channels:
            self._channels[job_id] = _Channel(self._queue, job_id, cursor, self._pause_s)
        if self._listener is None and self._wakeup.possible:
            self._listener = asyncio.create_task(self._listen())
        channel = self._channels[job_id]
        channel.watchers += 1
        self.watchers += 1
        waited = False
        try:
            yield _AGAIN
            while not self._closed:
                if allowed is not None and time.monotonic() - checked >= self._recheck_s:
                    if not await run_in_threadpool(allowed):
                        return
                    checked = time.monotonic()
                changed, ended = channel.changed, channel.ended
                found = await channel.after(cursor)
                if found:
                    cursor, waited = found[-1][0], False
                    yield b"".join(data for _, data in found)
                elif ended:
                    yield _END
                    return
                else:
                    if waited:  # woken without an event
                        yield _BEAT
                    waited = await changed.wait()
        finally:
            self.watchers -= 1
            channel.watchers -= 1
            if not channel.watchers:
                channel.close()
                del self._channels[job_id]
            if not self._channels and self._listener is not None:
                self._listener.cancel()
                self._listener = None

    def _pause_s(self) -> float:
        """How long a channel waits between two looks, unless it is woken."""
        return self._listening_s if self.listening else self._poll_s

    async def _listen(self) -> None:
        """Wake the channels of jobs that the database notifies of, while someone watches."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                if not await run_in_threadpool(self._wakeup.listen):
                    await asyncio.sleep(AGAIN_S)
                    continue
                readable, file = asyncio.Event(), self._wakeup.fileno()
                loop.add_reader(file, readable.set)
                self.listening = True
                try:
                    self._wake(self._channels)  # for what came before
                    while self._wakeup.listening:
                        await readable.wait()
                        readable.clear()
                        self._wake(self._wakeup.pending())
                finally:
                    self.listening = False
                    loop.remove_reader(file)
                    self._wake(self._channels)  # they poll from now on
        finally:
            self._wakeup.close()

    def _wake(self, jobs: Iterable[int]) -> None:
        for job_id in jobs:
            if job_id in self._channels:
                self._channels[job_id].wake()


class _Channel:
    """The newest events of one job, read while it is watched."""

    def __init__(
        self, queue: JobQueue, job_id: int, cursor: int, pause_s: Callable[[], float]
    ) -> None:
        self.watchers = 0
        self.ended = False
        """Whether the job has ended and its last events were read."""
        self.changed = asyncio.Event()
        self._queue, self._job_id, self._pause_s = queue, job_id, pause_s
        self._woken = asyncio.Event()
        self._notified = time.monotonic()
        self._floor = self._cursor = cursor
        self._recent: list[Encoded] = []
        self._task = asyncio.create_task(self._follow())

    def wake(self) -> None:
        """Look for new events at once."""
        self._woken.set()

    def notify(self) -> None:
        """Wake all watchers."""
        self._notified = time.monotonic()
        self.changed.set()
        self.changed = asyncio.Event()

    def close(self) -> None:
        """End reading."""
        self._task.cancel()

    async def after(self, cursor: int) -> list[Encoded]:
        """Events after a cursor, at most a batch."""
        if cursor < self._floor:
            return await run_in_threadpool(self._read, cursor)
        start = bisect.bisect_right(self._recent, cursor, key=lambda one: one[0])
        return self._recent[start : start + _BATCH]

    async def _follow(self) -> None:
        state: State | None = None
        while True:
            self._woken.clear()  # before looking: what comes later wakes again
            try:
                if state is None:  # later ones are events
                    state = await run_in_threadpool(self._state)
                events = await run_in_threadpool(self._events, self._cursor)
            except (StoreError, BusyError):  # it may be back in a moment
                self._beat()
                await asyncio.sleep(1)
                continue
            for event in events:
                if event.kind == "state":
                    state = State(event.value["state"])
                elif event.kind == DAMAGED:  # it may have said so
                    state = None
            if events:
                self._cursor = events[-1].sequence
                self._recent += [(event.sequence, encoded(event)) for event in events]
                if len(self._recent) > _RECENT:
                    self._floor = self._recent[-_RECENT - 1][0]
                    del self._recent[:-_RECENT]
            self.ended = state in ENDED and not events
            if events or self.ended:
                self.notify()
            self._beat()
            if len(events) < _BATCH:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), self._pause_s())

    def _beat(self) -> None:
        """Wake all watchers where that was long ago: one timer for all of them."""
        if time.monotonic() - self._notified >= HEARTBEAT_S:
            self.notify()

    def _state(self) -> State:
        return self._queue.get(self._job_id).state

    def _events(self, cursor: int) -> list[JobEvent]:
        return events_after(self._queue, self._job_id, cursor, _BATCH)[0]

    def _read(self, cursor: int) -> list[Encoded]:
        return [(event.sequence, encoded(event)) for event in self._events(cursor)]


def encoded(event: JobEvent) -> bytes:
    """An event as it is sent; JSON has no line breaks."""
    text = json.dumps(asdict(event), allow_nan=False, separators=(",", ":"))
    return f"id: {event.sequence}\ndata: {text}\n\n".encode()
