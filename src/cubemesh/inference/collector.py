"""Collector of requests: those of many threads are answered together, within a latency limit.

    from cubemesh import Collector, Plan

    with Plan.load("resnet-50.plan") as plan, Collector(plan, latency_limit_s=0.05) as collector:
        future = collector.submit(image)         # from any thread
        scores = future.result()

A batch takes less time for each sample than samples one by one, and waiting for it delays the first
of them. So requests wait until they fill the plan's largest batch, or until the first of them must
begin to be answered within the limit, by the times that the plan's trials measured.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.inference.runtime import Plan, Samples


@dataclass(frozen=True, kw_only=True)
class _Request:
    inputs: Mapping[str, Array]
    samples: int
    submitted_s: float
    answer: Future[Array]


class Collector:
    """Answers requests with a plan, in a thread of its own; the plan must not be used elsewhere
    meanwhile. UsageError for a limit that is not positive."""

    def __init__(
        self,
        plan: Plan,
        *,
        latency_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (latency_limit_s > 0 and math.isfinite(latency_limit_s)):
            raise UsageError(f"latency_limit_s={latency_limit_s} must be a time above 0.")
        self.latency_limit_s = latency_limit_s
        self.batches = 0
        """Batches that were run."""
        self._plan, self._clock = plan, clock
        self._waiting: deque[_Request] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="collector", daemon=True)
        self._thread.start()

    def submit(self, samples: Samples) -> Future[Array]:
        """The first output for `samples`, as `Plan.run` has it, once it is computed. UsageError
        where they do not fit or the collector is closed; what an engine raises is the future's."""
        inputs = {name: array.copy() for name, array in self._plan.inputs_of(samples).items()}
        request = _Request(
            inputs=inputs,
            samples=len(next(iter(inputs.values()))),
            submitted_s=self._clock(),
            answer=Future(),
        )
        with self._changed:
            if self._closed:
                raise UsageError("The collector is closed, and takes no more requests.")
            self._waiting.append(request)
            self._changed.notify()
        return request.answer

    def close(self) -> None:
        """Answer the requests that wait, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (seconds := self._wait_s()) != 0:
                    self._changed.wait(seconds)
                if not self._waiting:
                    return
                requests = self._take()
            self._answer([one for one in requests if one.answer.set_running_or_notify_cancel()])

    def _wait_s(self) -> float | None:
        """Seconds until the first request must begin; 0 at once, None until another one comes."""
        if not self._waiting:
            return 0 if self._closed else None
        samples = sum(request.samples for request in self._waiting)
        largest = self._plan.batches[-1]
        if self._closed or samples >= largest:
            return 0
        latest = self._waiting[0].submitted_s + self.latency_limit_s
        return max(0, latest - self._plan.expected_s(samples) - self._clock())

    def _take(self) -> list[_Request]:
        """The oldest requests, as many as fit into the largest batch, at least one."""
        taken = [self._waiting.popleft()]
        samples = taken[0].samples
        while self._waiting and samples + self._waiting[0].samples <= self._plan.batches[-1]:
            taken.append(self._waiting.popleft())
            samples += taken[-1].samples
        return taken

    def _answer(self, requests: list[_Request]) -> None:
        if not requests:
            return
        try:
            inputs = {
                name: np.concatenate([request.inputs[name] for request in requests])
                for name in requests[0].inputs
            }
            scores = self._plan.run(inputs)
        except BaseException as error:
            for request in requests:
                request.answer.set_exception(error)
            return
        finally:
            self.batches += 1
        done = 0
        for request in requests:
            request.answer.set_result(scores[done : done + request.samples])
            done += request.samples
