"""What competes with a step for its processors, from counters."""

import pytest

from cubemesh.measure.attribution.contention import (
    Competition,
    CompetitionReader,
    Counters,
    competition,
    divided,
    total,
)
from cubemesh.measure.telemetry.host import Reading
from cubemesh.measure.telemetry.run_queue import ThreadTime

OWN, INPUT, WORKER, GLOO = 1, 2, 3, 4


def counters(time_s, *, busy=0.0, tree=0.0, stolen=0.0, **threads):
    numbers = {"own": OWN, "input": INPUT, "worker": WORKER, "gloo": GLOO}
    return Counters(
        host=Reading(
            time_s=time_s,
            tree_cpu_s=tree,
            resident_bytes=0,
            cores_busy_s=busy,
            host_busy_s=busy,
            stolen_s=stolen,
        ),
        threads={numbers[name]: ThreadTime(*times) for name, times in threads.items()},
        helpers=frozenset({INPUT}),
    )


def between(before, after, *, threads=1, cores=2, fed=True):
    return competition(before, after, own=OWN, threads=threads, cores=cores, fed=fed)


def test_each_second_of_a_processor_belongs_to_who_used_it():
    before = counters(10.0, busy=100.0, tree=40.0, own=(5.0, 1.0), input=(2.0, 0.0))
    after = counters(
        12.0,
        busy=104.0,
        tree=42.5,
        own=(6.0, 2.0),
        input=(3.2, 0.0),
        gloo=(0.3, 0.1),
    )
    found = between(before, after)
    assert found.elapsed_s == pytest.approx(2.0)
    assert found.neighbours_s == pytest.approx(1.5)
    assert found.input_s == pytest.approx(1.2)
    assert found.runtime_s == pytest.approx(0.3)
    assert (found.stolen_s, found.workers_s) == (0.0, 0.0)
    unfed = between(before, after, fed=False)
    assert (unfed.input_s, unfed.runtime_s) == pytest.approx((0.0, 1.5))


def test_stolen_time_is_the_steps_in_proportion_to_its_cpu_time():
    before = counters(0.0, own=(0.0, 0.0))
    after = counters(4.0, busy=6.0, tree=2.0, stolen=1.0, own=(2.0, 0.0))
    found = between(before, after)
    assert found.neighbours_s == pytest.approx(3.0)
    assert found.stolen_s == pytest.approx(2 / 5)


def test_a_delayed_worker_delays_the_step_where_its_own_thread_runs():
    before = counters(0.0, own=(0.0, 0.0), worker=(0.0, 0.0))
    after = counters(10.0, busy=20.0, tree=17.0, own=(8.0, 2.0), worker=(8.0, 5.0))
    assert between(before, after, threads=2).workers_s == pytest.approx(10 * (0.8 - 0.8 * 0.5))
    assert between(before, after, threads=1).workers_s == 0.0
    assert between(before, after, threads=2).runtime_s == 0.0
    assert between(before, after, threads=2, cores=1).runtime_s == pytest.approx(8.0)


def test_a_delay_is_divided_by_cpu_time():
    by = Competition(elapsed_s=1.0, neighbours_s=0.5, input_s=0.25, runtime_s=0.25)
    assert divided(0.4, by) == pytest.approx((0.2, 0.1, 0.1))
    assert divided(0.4, Competition(elapsed_s=1.0)) == (0.4, 0.0, 0.0)


def test_intervals_are_scaled_and_added():
    one = Competition(elapsed_s=2.0, neighbours_s=1.0, workers_s=0.5)
    assert one.over(1.0) == Competition(elapsed_s=1.0, neighbours_s=0.5, workers_s=0.25)
    assert total([one, one.over(1.0)]).neighbours_s == pytest.approx(1.5)
    assert Competition(elapsed_s=0.0).over(1.0).neighbours_s == 0.0


def test_each_reading_is_since_the_one_before():
    class Scripted:
        cores, host_cores, now = 1, 1, 0.0

        def read(self):
            self.now += 1.0
            return counters(self.now, busy=3 * self.now, tree=self.now).host

    reader = CompetitionReader(1, fed=True, host=Scripted(), threads_of=dict)
    assert [reader.read().neighbours_s for _ in range(3)] == pytest.approx([2.0, 2.0, 2.0])
