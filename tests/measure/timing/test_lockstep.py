"""Lockstep and free-running ranks, as threads with scripted clocks."""

import threading

import pytest

from cubemesh.measure.timing.timer import FreeRunning, Lockstep, measure
from cubemesh.schema import Budget
from in_memory_log import InMemoryLog
from patience import PATIENCE_S

SLOWER = 5


class Group:
    """Communication of two ranks."""

    def __init__(self):
        self.decisions, self.flags = [], set()
        self.changed = threading.Condition()

    def agree(self, rank):
        calls = iter(range(10**6))

        def agreed(value):
            number = next(calls)
            with self.changed:
                if rank == 0:
                    self.decisions.append(value)
                    self.changed.notify_all()
                self.changed.wait_for(lambda: len(self.decisions) > number, timeout=PATIENCE_S)
                return self.decisions[number]

        return agreed

    def poll_flag(self, rank):
        def poll(name, value):
            if rank == 0 and value:
                self.flags.add(name)
            return name in self.flags

        return poll


class Rank:
    """Steps of `step_s` on a clock of the rank, at most a second ahead of the others."""

    def __init__(self, world, rank, step_s):
        self.world, self.rank, self.step_s = world, rank, step_s

    def step(self):
        self.world.pass_time(self.rank, self.step_s)

    def clock(self):
        return self.world.now(self.rank)


class World:
    def __init__(self, ranks):
        self.times, self.living = [0.0] * ranks, set(range(ranks))
        self.changed = threading.Condition()

    def now(self, rank):
        return self.times[rank]

    def pass_time(self, rank, seconds):
        with self.changed:
            self.times[rank] += seconds
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: all(self.times[rank] <= self.times[other] + 1 for other in self.living),
                timeout=PATIENCE_S,
            )

    def leave(self, rank):
        with self.changed:
            self.living.discard(rank)
            self.changed.notify_all()


def run(paces, steps_s, **budget):
    """The logs of two ranks measured at their paces."""
    world, logs = World(2), [InMemoryLog(), InMemoryLog()]

    def one(number):
        rank = Rank(world, number, steps_s[number])
        try:
            measure(
                rank.step,
                lambda: None,
                rank.clock,
                samples_per_step=4,
                budget=Budget(**budget),
                log=logs[number],
                pace=paces[number],
            )
        finally:
            world.leave(number)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return [[w for w in log.windows if w.phase == "measure"] for log in logs]


def test_in_lockstep_all_ranks_make_the_windows_of_rank_0():
    group = Group()
    first, second = run(
        [Lockstep(group.agree(n)) for n in range(2)], [0.1, 0.1 * SLOWER], steps=40, windows=4
    )
    assert [w.steps for w in first] == [w.steps for w in second] == [10] * 4


@pytest.mark.parametrize("slow", [0, 1])
def test_free_running_ranks_step_at_their_own_rate_until_rank_0_has_enough(slow):
    group = Group()
    steps_s = [0.1, 0.1]
    steps_s[slow] *= SLOWER
    found = run(
        [FreeRunning(n, group.poll_flag(n)) for n in range(2)], steps_s, steps=40, windows=4
    )
    assert sum(w.steps for w in found[0]) >= 40
    rates = [sum(w.steps for w in own) / sum(w.elapsed_s for w in own) for own in found]
    assert rates[1 - slow] / rates[slow] == pytest.approx(SLOWER, rel=0.05)
    ends = [own[-1].start_s + own[-1].elapsed_s for own in found]
    longest_s = max(w.elapsed_s for own in found for w in own)
    assert abs(ends[0] - ends[1]) <= longest_s + 2
