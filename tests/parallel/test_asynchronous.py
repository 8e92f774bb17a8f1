"""Asynchronous SGD between threads that act as ranks: numbers for weights, queues for transfers.

The weight is one number, a gradient of g makes it w − rate · g; ranks send through queues, so the
tests decide the order in which gradients arrive.
"""

import contextlib
import queue
import threading
import time
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest

from cubemesh.frameworks.contract.gradient_sync import Bucket
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.rendezvous import wait_and_check
from cubemesh.parallel import staleness
from cubemesh.parallel.asynchronous import SERVER, Asynchronous, StalenessAware, rate_factor
from cubemesh.parallel.staleness import FIRST_UPDATES, HISTOGRAM
from cubemesh.parallel.strategies import make
from in_memory_log import InMemoryLog
from patience import PATIENCE_S


class Post:
    """Queues between all ranks."""

    def __init__(self, size):
        self.size = size
        self.headers = {(rank, None): queue.Queue() for rank in range(size)}
        self.headers |= {(SERVER, rank): queue.Queue() for rank in range(size)}
        self.arrays = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
        self.arrived, self.counting = Counter(), threading.Lock()


class QueueTransport:
    def __init__(self, post, rank):
        self.post, self.rank = post, rank

    def send_header(self, numbers, to):
        self.post.headers[to, None].put((self.rank, list(numbers)))

    def recv_header(self, source=None):
        return self.post.headers[self.rank, None].get(timeout=PATIENCE_S)

    def send(self, arrays, to):
        self.post.arrays[self.rank, to].put([a.copy() for a in arrays])

    def recv(self, arrays, source):
        for array, sent in zip(
            arrays, self.post.arrays[source, self.rank].get(timeout=PATIENCE_S), strict=True
        ):
            array[:] = sent


class Ranks(SingleProcessGroup):
    """A group whose ranks are threads of the test."""

    def __init__(self, post, rank):
        self.post, self.rank, self.size = post, rank, post.size
        self.met = 0

    def point_to_point(self):
        return QueueTransport(self.post, self.rank)

    def barrier(self, check=None):
        self.met += 1
        with self.post.counting:
            self.post.arrived[self.met] += 1
        end_s = time.monotonic() + PATIENCE_S

        def check_patience():
            assert time.monotonic() < end_s, "the other ranks did not come"
            if check is not None:
                check()

        wait_and_check(lambda: self.post.arrived[self.met] == self.size, check_patience)


class Weights:
    def __init__(self, weight):
        self.weight = weight.copy()
        self.incoming, self.outgoing = [np.zeros(1)], [np.zeros(1)]

    def server_stream(self):
        return nullcontext()

    def apply(self, gradients, rate_factor):
        if gradients[0][0] == BROKEN:
            raise ValueError("no such gradient")
        self.weight -= rate_factor * gradients[0]

    def read(self, into):
        into[0][:] = self.weight


BROKEN = 666.0


class Worker:
    """A rank with one weight, which begins at 100."""

    def __init__(self, post, rank, aware=False):
        self.received, self.weight = [np.zeros(1)], np.array([100.0])
        self.sync = (StalenessAware if aware else Asynchronous)(Ranks(post, rank))

    def load_received(self):
        self.weight[:] = self.received[0]

    def server_weights(self):
        self.master = Weights(self.weight)
        return self.master

    def push(self, gradient):
        """A step, as a program makes it; the weight it leads to."""
        array = np.array([float(gradient)])
        self.sync.ready(Bucket(index=0, parameters=("w",), size_bytes=8, gradients=array))
        self.sync.finish()
        self.sync.update(lambda: pytest.fail("no rank updates for itself"), [self.weight])
        return self.weight[0]


def together(*calls):
    """Make calls that wait for one another, each in a thread of its own."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def workers(size=2, aware=False):
    post = Post(size)
    found = [Worker(post, rank, aware) for rank in range(size)]
    together(*(lambda w=w: w.sync.attach(w) for w in found))
    return found


def test_every_gradient_is_applied_on_arrival_and_its_staleness_is_counted():
    first, second = workers()
    assert first.push(1) == 99
    assert first.push(2) == 97
    assert second.push(10) == 87, "computed from version 0, applied to version 2"
    assert second.push(20) == 67
    assert first.weight[0] == 97, "only a worker changes its own weights"
    assert first.push(3) == 64
    updates = first.sync.applied
    assert list(updates.workers) == [0, 0, 1, 1, 0]
    assert list(updates.carried) == [0, 1, 0, 3, 2]
    assert list(updates.applied) == [0, 1, 2, 3, 4]
    assert updates.staleness == [0, 0, 2, 0, 2]
    assert list(updates.times) == sorted(updates.times)
    assert not second.sync.applied.times, "only the server counts"


def test_staleness_of_alternating_ranks_is_the_number_of_other_ranks():
    ranks = workers(4)
    for _ in range(5):
        for rank in ranks:
            rank.push(1)
    assert ranks[0].sync.applied.staleness[4:] == [3] * 16


def test_the_learning_rate_is_divided_by_the_staleness():
    first, second = workers(aware=True)
    for _ in range(4):
        first.push(0)
    assert second.push(8) == 100 - 8 / 4
    assert second.push(8) == 98 - 8, "no other update came between"
    assert [rate_factor(n) for n in range(4)] == [1, 1, 1 / 2, 1 / 3]


def test_after_synchronization_all_have_the_latest_weights():
    first, second = workers()
    first.push(1)
    second.push(2)
    together(first.sync.synchronize_replicas, second.sync.synchronize_replicas)
    assert first.weight == second.weight == 97
    assert first.push(1) == 96
    assert first.sync.applied.staleness == [0, 1, 0]


def test_the_server_waits_until_the_last_worker_has_left():
    first, second = workers()
    closing = threading.Thread(target=first.sync.close)
    closing.start()
    assert second.push(5) == 95, "it still serves"
    assert closing.is_alive()
    second.sync.close()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    first.sync.close()  # a second time, which does nothing


def test_loading_again_starts_at_version_0():
    first, second = workers()
    first.push(1)
    first.weight[:] = second.weight[:] = 50
    together(*(lambda w=w: w.sync.attach(w) for w in (second, first)))
    assert second.push(1) == 49
    assert first.sync.applied.staleness == [0]


def test_an_error_in_the_server_is_raised_in_its_rank():
    first, second = workers()

    def push():
        with contextlib.suppress(queue.Empty):  # the server has failed
            second.push(BROKEN)

    threading.Thread(target=push, daemon=True).start()
    first.sync._server._thread.join(PATIENCE_S)
    with pytest.raises(RuntimeError, match="failed") as raised:
        first.push(1)
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_error_in_the_server_ends_a_barrier_of_its_rank():
    first, second = workers()
    raised = []

    def synchronize():
        with pytest.raises(RuntimeError, match="failed") as error:
            first.sync.synchronize_replicas()
        raised.append(error.value.__cause__)

    def push():
        with contextlib.suppress(queue.Empty):  # the server has failed
            second.push(BROKEN)

    waiting = threading.Thread(target=synchronize)
    waiting.start()
    threading.Thread(target=push, daemon=True).start()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert isinstance(raised[0], ValueError)


def test_staleness_is_logged():
    first, second = workers()
    for rank in (first, second, first, second, first, first, second):
        rank.push(1)
    log = InMemoryLog()
    staleness.log_staleness(first.sync, log)
    stale = [0, 1, 1, 1, 1, 0, 2]
    assert log.figures["staleness"].value == pytest.approx(sum(stale) / 7)
    assert (log.figures["staleness"].n, log.figures["staleness_most"].value) == (7, 2)
    assert log.figures["staleness_rank_0"].value == pytest.approx((0 + 1 + 1 + 0) / 4)
    assert log.figures["staleness_rank_1"].value == pytest.approx((1 + 1 + 2) / 3)
    assert log.figures["updates_taking_turns"].value == pytest.approx(5 / 6)
    assert log.curves[HISTOGRAM].x == (0, 1, 2)
    assert log.curves[HISTOGRAM].y == (2, 4, 1)
    assert log.curves[FIRST_UPDATES].y == (0, 1, 0, 1, 0, 0, 1)
    order, counted = log.chunks
    assert (order.name, order.values) == ("update_rank", (0, 1, 0, 1, 0, 0, 1))
    assert (counted.name, counted.values) == ("update_staleness", tuple(stale))


def test_nothing_is_logged_without_updates():
    for sync in (make("all-reduce"), make("asynchronous"), workers()[1].sync):
        log = InMemoryLog()
        staleness.log_staleness(sync, log)
        assert log == InMemoryLog()
