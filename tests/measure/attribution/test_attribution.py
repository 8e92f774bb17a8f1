"""The parts of a step, on timelines whose parts are known."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.measure.attribution.attribution import (
    PARTS,
    device_time,
    mean_step_s,
    on_device,
    on_host,
)
from cubemesh.measure.attribution.contention import Competition
from cubemesh.measure.attribution.timeline import (
    Launch,
    RecordedSteps,
    communication_kernels,
    record,
    simulate,
)
from cubemesh.measure.attribution.transfers import Transfer, last_arrivals, waited
from cubemesh.measure.timing.step_timestamps import Stamp, StampedWindow
from cubemesh.schema import Profile, ProfileEvent

MS = 1e-3


def window(*steps, start=100.0, wait=0.0, before=0.0):
    """A window of steps (feed, place, step, loop after it) in milliseconds, and a wait."""
    now, stamps = start + before * MS, []
    for feed, place, step, loop in steps:
        times = [now, now + feed * MS, now + (feed + place) * MS]
        stamps.append(Stamp(*times, times[2] + step * MS))
        now = stamps[-1].done + loop * MS
    end = stamps[-1].done + wait * MS
    return StampedWindow(start_s=start, end_s=end, stamps=tuple(stamps))


def launched(fraction, ms, stretch="step", use="compute", lane=7, wait=0.0, joins=False):
    return Launch(
        stretch=stretch,
        fraction=fraction,
        duration_s=ms * MS,
        lane=lane,
        use=use,
        wait_s=wait * MS if use == "communication" else 0.0,
        joins=joins,
    )


def recorded(*steps, latency=0.0, turnaround=0.0):
    return RecordedSteps(steps=steps, latency_s=latency * MS, turnaround_s=turnaround * MS)


def ms(found):
    parts = found[0] if isinstance(found[-1], float) else found
    return {part.name: part.seconds / MS for part in parts}


def operators(stamped, *spans, kind="operator"):
    """An operator for each (begin, length) in milliseconds after the begin of each step."""
    return tuple(
        ProfileEvent(name="aten::mm", kind=kind, start_s=s.step + a * MS, duration_s=b * MS)
        for s in stamped.stamps
        for a, b in spans
    )


def test_on_the_host_time_between_operators_is_a_gap():
    measured = window((2, 1, 10, 0.5), (2, 1, 10, 0.5), wait=0.5)
    profile = Profile(events=operators(measured, (1, 4), (6, 3)))
    found = ms(on_host([measured], [(measured, profile)]))
    assert found == pytest.approx(
        {
            "compute": 7,
            "input_stall": 2,
            "launch_gaps": 3,
            "host": 1.25,
            "unattributed": 0.25,
        }
    )


def test_the_wait_for_communication_is_split_at_the_arrival_of_the_last_rank():
    """Each step computes 7 of 10 ms and waits 3, 2 of them for a rank that comes late."""
    measured = window((0, 0, 10, 0), (0, 0, 10, 0))
    transfers = tuple(
        Transfer(issued=s.step + 5 * MS, waited=s.step + 7 * MS, ended=s.done)
        for s in measured.stamps
    )
    measured = replace(measured, transfers=transfers)
    sync = tuple(
        ProfileEvent(name="gloo:all_reduce", kind="operator", start_s=t.issued, duration_s=5 * MS)
        for t in transfers
    )
    profile = Profile(events=(*operators(measured, (0, 7)), *sync))
    last = [t.waited + 2 * MS for t in transfers]
    found = ms(on_host([measured], [(measured, profile)], waited([transfers], [last], 2)))
    assert found == pytest.approx(
        {
            "compute": 7,
            "exposed_communication": 1,
            "input_stall": 0,
            "launch_gaps": 0,
            "straggler_wait": 2,
            "host": 0,
            "unattributed": 0,
        },
        abs=1e-6,
    )
    unknown = ms(on_host([measured], [(measured, profile)], waited([transfers], [None], 2)))
    assert unknown["exposed_communication"] == pytest.approx(3)
    assert "straggler_wait" not in unknown
    assert last_arrivals([[1.0, 2.0], [1.5, 1.9]]) == [1.5, 2.0]
    assert last_arrivals([[1.0, 2.0], [1.5]]) is None


def test_profiler_overhead_is_subtracted_where_it_occurs():
    measured, slow = window((0, 0, 0.984, 0)), window((0, 0, 1.0, 0))
    nested = operators(slow, (0.2, 0.4), (0.3, 0.1), (0.4, 0.1))  # one operator with two inside
    scope = operators(slow, (0, 0.1), kind="scope")
    profile = Profile(events=(*nested, *scope))
    found = ms(on_host([measured], [(slow, profile)]))
    assert found["compute"] == pytest.approx(0.4 - 0.004 * 2.5)
    assert found["launch_gaps"] == pytest.approx(0.6 - 0.004 * 1.5)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("profiled_ms", [40, 10])
def test_another_speed_of_the_machine_scales_both_parts(profiled_ms):
    measured, other = window((0, 0, 20, 0)), window((0, 0, profiled_ms, 0))
    profile = Profile(events=operators(other, (0, 0.75 * profiled_ms)))
    found = ms(on_host([measured], [(other, profile)]))
    assert found["compute"] == pytest.approx(15, rel=0.01)
    assert found["launch_gaps"] == pytest.approx(5, rel=0.01)


def test_a_thread_that_is_blocked_in_the_measured_steps_alone_is_unattributed():
    """One of five windows takes 40 ms, on a processor for 10 of them."""
    windows = [counted(window((0, 0, step, 0)), ran=10) for step in (10, 10, 40, 10, 10)]
    profiled = [counted(window((0, 0, 11, 0)), ran=11) for _ in windows]
    pairs = [(w, Profile(events=operators(w, (0, 11)))) for w in profiled]
    found = ms(on_host(windows, pairs))
    assert found["compute"] == pytest.approx(10, rel=1e-3)
    assert found["unattributed"] == pytest.approx(6, rel=1e-3)


def counted(stamped, *, ran=None, delayed=0.0, before=0.0, **competition):
    """`stamped` with the counters of its thread in each step, in milliseconds, and CPU times of
    what competed with it."""
    stamps = tuple(
        s._replace(
            ran_s=(s.done - s.step) if ran is None else ran * MS,
            delayed_s=delayed * MS,
            delayed_before_s=before * MS,
        )
        for s in stamped.stamps
    )
    found = Competition(elapsed_s=stamped.elapsed_s, **competition) if competition else None
    return replace(stamped, stamps=stamps, competition=found)


def test_run_queue_delay_is_contention_with_what_ran_meanwhile():
    """Steps of 30 ms, 20 of them on a processor: 6 ms of neighbours and 4 of decoders."""
    measured = counted(window((0, 0, 30, 0)), ran=20, delayed=10, neighbours_s=0.012, input_s=0.008)
    profiled = counted(window((0, 0, 23, 0)), ran=20, delayed=3, neighbours_s=1.0)
    profile = Profile(events=operators(profiled, (0, 23 * 0.75)))
    found = ms(on_host([measured], [(profiled, profile)]))
    assert found == pytest.approx(
        {
            "compute": 15,
            "input_stall": 0,
            "launch_gaps": 5,
            "host": 0,
            "cpu_contention": 6,
            "input_contention": 4,
            "unattributed": 0,
        },
        abs=1e-6,
    )


def test_delay_between_steps_is_contention_and_no_input_stall():
    measured = counted(window((4, 1, 10, 0)), before=4, neighbours_s=1.0)
    profile = Profile(events=operators(measured, (0, 10)))
    found = ms(on_host([measured], [(measured, profile)]))
    assert found["cpu_contention"] == pytest.approx(4)
    assert found["input_stall"] == pytest.approx(0.8)
    assert found["host"] == pytest.approx(0.2)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


def test_stolen_time_and_delayed_workers_are_cpu_contention():
    """10 ms of 30 stolen; in 5 of the others the step waits for a worker without processor."""
    measured = counted(
        window((0, 0, 30, 0)), ran=20, neighbours_s=1.0, stolen_s=0.010, workers_s=0.005
    )
    profiled = counted(window((0, 0, 20, 0)), ran=20)
    profile = Profile(events=operators(profiled, (0, 20)))
    found = ms(on_host([measured], [(profiled, profile)]))
    assert found["cpu_contention"] == pytest.approx(15)
    assert found["compute"] == pytest.approx(15)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


def test_threads_of_the_framework_that_run_meanwhile_compute():
    measured = counted(window((0, 0, 30, 0)), ran=20, delayed=10, runtime_s=1.0)
    profile = Profile(events=operators(measured, (0, 30)))
    found = ms(on_host([measured], [(measured, profile)]))
    assert found["compute"] == pytest.approx(30)
    assert found["cpu_contention"] == pytest.approx(0)


def test_a_device_that_waits_for_a_delayed_host_waits_for_its_neighbours():
    """Of the 10 ms that the host takes to queue two kernels of 1 ms it has a processor in 4."""
    stamped = window((0, 0, 10, 0), (0, 0, 10, 0), wait=0.2)
    counters = counted(stamped, delayed=6, neighbours_s=0.03, input_s=0.01)
    found = ms(on_device([counters], recorded((launched(0.2, 1), launched(0.8, 1)))))
    assert found["compute"] == pytest.approx(2)
    assert found["launch_gaps"] == pytest.approx(8 * 0.4)
    assert found["cpu_contention"] == pytest.approx(8 * 0.6 * 3 / 4)
    assert found["input_contention"] == pytest.approx(8 * 0.6 / 4)
    bare = ms(on_device([stamped], recorded((launched(0.2, 1), launched(0.8, 1)))))
    assert found["unattributed"] == pytest.approx(bare["unattributed"])
    assert "cpu_contention" not in bare


def test_a_device_that_waits_for_launches_has_gaps():
    """Two kernels of 1 ms in a step of 10 ms on the host."""
    stamped = window((0, 0, 10, 0), (0, 0, 10, 0), wait=0.2)
    found = ms(on_device([stamped], recorded((launched(0.2, 1), launched(0.8, 1)))))
    assert found == pytest.approx(
        {"compute": 2, "input_stall": 0, "launch_gaps": 8, "host": 0, "unattributed": 0.1}
    )


def test_a_busy_device_hides_the_time_of_the_host():
    """20 ms of work a step, 3 + 1 + 5 ms of the host: only the first filling is seen."""
    steps = [(3, 1, 5, 1)] * 4
    stamped = window(*steps, wait=4 * 20 + 4 - 4 * 10 + 1)
    found = ms(on_device([stamped], recorded((launched(0.0, 20),))))
    assert found["compute"] == pytest.approx(20)
    assert found["input_stall"] == pytest.approx(3 / 4)
    assert found["host"] == pytest.approx(1 / 4)
    assert found["launch_gaps"] == pytest.approx(0)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


def test_a_slow_batch_stalls_the_device_beyond_the_step():
    """Batches every 30 ms, 12 ms of work: after the first, 18 ms of each are a stall."""
    stamped = window(*[(29, 0, 1, 0)] * 50, wait=11)
    found = ms(on_device([stamped], recorded((launched(0.0, 12),))))
    assert found["input_stall"] == pytest.approx((49 * 18 + 29) / 50)
    assert found["launch_gaps"] == pytest.approx(0)
    assert found["compute"] == pytest.approx(12)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


def test_slow_placing_is_host_time():
    stamped = window(*[(0, 5, 1, 0)] * 10, wait=0)
    found = ms(on_device([stamped], recorded((launched(0.0, 0.5),))))
    assert found["host"] == pytest.approx(5)
    assert found["launch_gaps"] == pytest.approx(0.5)


def test_a_copy_is_host_time_only_where_nothing_overlaps_it():
    copy = launched(0.0, 2, stretch="place", use="copy")
    alone = window(*[(0, 1, 3, 0)] * 10, wait=0)
    found = ms(on_device([alone], recorded((copy, launched(0.5, 1.0)))))
    assert found["compute"] == pytest.approx(1)
    assert found["host"] == pytest.approx(2)
    hidden = window(*[(0, 1, 3, 0)] * 10, wait=1)
    other_lane = launched(0.0, 3.0, lane=8)
    behind = ms(on_device([hidden], recorded((copy, other_lane))))
    assert behind["host"] < 2


def test_communication_is_exposed_where_nothing_computes():
    stamped = window((0, 0, 1, 0), wait=9)
    work = recorded(
        (launched(0.0, 10, use="communication", lane=20), launched(0.0, 6)),
    )
    found = ms(on_device([stamped], work))
    assert found["compute"] == pytest.approx(6)
    assert found["exposed_communication"] == pytest.approx(4)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


def test_one_device_has_no_parts_of_several():
    stamped = window((0, 0, 1, 0), wait=5)
    found = ms(on_device([stamped], recorded((launched(0.0, 6),))))
    assert "exposed_communication" not in found
    assert "straggler_wait" not in found


def test_delays_of_the_device_are_launch_gaps():
    stamped = window((0, 0, 1, 0), wait=3.3)
    work = recorded((launched(0.0, 2), launched(0.1, 2)), latency=0.2, turnaround=0.1)
    found = ms(on_device([stamped], work))
    assert found["launch_gaps"] == pytest.approx(0.3)
    assert found["compute"] == pytest.approx(4)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


def test_launch_latency_comes_from_kernels_on_an_idle_device():
    stamped = window((0, 0, 1, 0), wait=20)
    begin = stamped.stamps[0].step
    calls_and_work = [  # (called, began, lasted, stream), in milliseconds
        (0.0, 0.2, 10.0, 7),
        (0.1, 10.2, 1.0, 9),  # waits for the other stream: the device was at work
        (0.3, 10.3, 5.0, 7),
    ]
    events = []
    for number, (called, began, lasted, lane) in enumerate(calls_and_work, start=1):
        at = {"start_s": begin + called * MS, "duration_s": 0.01 * MS}
        events.append(ProfileEvent(name="cudaLaunchKernel", kind="runtime", launch=number, **at))
        at = {"start_s": begin + began * MS, "duration_s": lasted * MS, "lane": lane}
        events.append(ProfileEvent(name="gemm", kind="kernel", launch=number, **at))
    profile = Profile(events=tuple(sorted(events, key=lambda event: event.start_s)))
    found = record([(stamped, profile)])
    assert found.latency_s == pytest.approx(0.2 * MS)
    assert found.turnaround_s == pytest.approx(0.1 * MS)


def test_communication_follows_its_gradients_and_the_update_follows_communication():
    """Backward 4 ms, its first half communicated during the second; then the update."""
    stamped = window((0, 0, 1, 0), wait=9)
    steps = (
        launched(0.0, 2),
        launched(0.1, 3, use="communication", lane=20),
        launched(0.2, 2),
        launched(0.3, 3, use="communication", lane=20),
        launched(0.4, 1, joins=True),
    )
    simulated = simulate(stamped, recorded(steps))
    begins = [(b.start_s - stamped.start_s) / MS for b in simulated]
    assert begins == pytest.approx([0, 2, 2, 5, 8], abs=1e-6)
    found = ms(on_device([stamped], recorded(steps)))
    assert found["compute"] == pytest.approx(5)
    assert found["exposed_communication"] == pytest.approx(4)


def test_a_kernel_that_waits_for_the_last_rank_is_a_straggler_wait_where_nothing_computes():
    stamped = window((0, 0, 1, 0), wait=9)
    steps = (launched(0.0, 10, use="communication", lane=20, wait=7), launched(0.0, 6))
    found = ms(on_device([stamped], recorded(steps)))
    assert found["straggler_wait"] == pytest.approx(1)
    assert found["exposed_communication"] == pytest.approx(3)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


def test_a_kernel_waits_until_the_last_rank_has_begun_its_own():
    """The first rank of two begins its all-reduce 3 ms before the other."""
    stamped = window((0, 0, 2, 0), wait=10)
    turned = Transfer(issued=stamped.start_s, waited=stamped.start_s + 1 * MS, ended=0.0)
    stamped = replace(stamped, transfers=(turned,))
    profile = on_gpu(stamped, [(0.2, 2), (0.4, 5), (1.5, 1)])
    events = list(profile.events)
    events[3] = replace(events[3], name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", lane=20)
    profile = Profile(events=tuple(events))
    begun = [e.start_s for e in communication_kernels(profile)]
    arrivals = last_arrivals([begun, [time + 3 * MS for time in begun]])
    (step,) = record([(stamped, profile)], [arrivals]).steps
    assert [launch.wait_s / MS for launch in step] == pytest.approx([0, 3, 0])
    assert [launch.joins for launch in step] == [False, False, True]


spans = st.floats(0.0, 5.0)
steps_of_host = st.lists(st.tuples(spans, spans, spans, spans), min_size=1, max_size=5)
launches = st.builds(
    launched,
    fraction=st.floats(0, 1),
    ms=st.floats(0.01, 8),
    stretch=st.sampled_from(["feed", "place", "step", "loop"]),
    use=st.sampled_from(["compute", "communication", "copy"]),
    lane=st.sampled_from([7, 20]),
    wait=st.sampled_from([0.0, 0.005]),
    joins=st.booleans(),
)


@given(steps_of_host, st.lists(st.lists(launches, min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_parts_of_a_window_are_the_time_until_host_and_device_are_done(hosts, device):
    stamped = window(*hosts, wait=1000.0)
    work = simulate(stamped, recorded(*map(tuple, device), latency=0.01, turnaround=0.005))
    found = device_time(stamped, work).parts
    until = max(stamped.stamps[-1].done, *(b.end_s for b in work))
    in_wait = found.pop("unattributed", 0.0)
    assert all(seconds >= 0 for seconds in found.values())
    assert math.fsum(found.values()) + in_wait == pytest.approx(until - stamped.start_s, abs=1e-9)


@given(steps_of_host, st.lists(st.lists(launches, min_size=1, max_size=4), min_size=1, max_size=3))
def test_all_parts_with_other_are_the_step(hosts, device):
    stamped = window(*hosts, wait=30.0)
    parts, busy = on_device([stamped, stamped], recorded(*map(tuple, device)))
    assert busy >= 0
    assert math.fsum(p.seconds for p in parts) == pytest.approx(mean_step_s([stamped]))
    names = [p.name for p in parts]
    assert names == [n for n in PARTS if n in names]
    assert names[-1] == "unattributed"


def on_gpu(stamped, kernels, *, latency=0.0):
    """A profile of `stamped`: kernels (launched, duration) in milliseconds from the first feed,
    one after the other on one stream."""
    events, free = [], -math.inf
    for number, (at, duration) in enumerate(kernels, start=1):
        called = stamped.stamps[0].feed + at * MS
        call = ProfileEvent(
            name="cudaLaunchKernel", kind="runtime", start_s=called, duration_s=2e-6, launch=number
        )
        start = max(called + latency * MS, free)
        free = start + duration * MS
        kernel = ProfileEvent(
            name="gemm",
            kind="kernel",
            start_s=start,
            duration_s=duration * MS,
            launch=number,
            lane=7,
        )
        events += [call, kernel]
    return Profile(events=tuple(events))


def test_simulating_the_recorded_window_repeats_it():
    stamped = window((1, 1, 4, 0), (1, 1, 4, 0), wait=1)
    kernels = [(2.5, 0.5), (4.0, 1.0), (8.5, 0.5), (10.0, 1.0)]
    profile = on_gpu(stamped, kernels, latency=0.05)
    found = record([(stamped, profile)])
    assert [len(step) for step in found.steps] == [2, 2]
    assert found.latency_s == pytest.approx(0.05 * MS)
    simulated = simulate(stamped, found)
    wanted = [e for e in profile.events if e.kind == "kernel"]
    assert [b.start_s for b in simulated] == pytest.approx([e.start_s for e in wanted])
    assert [b.end_s for b in simulated] == pytest.approx([e.end_s for e in wanted])


def test_a_profile_that_slows_the_host_does_not_make_the_measured_step_wait():
    """The device is busy all the time without the profiler, and waits under it."""
    slow = window(*[(0, 0, 20, 0)] * 3, wait=5)
    kernels = [(20 * step + at, 5) for step in range(3) for at in (1, 11)]
    measured = window(*[(0, 0, 8, 0)] * 3, wait=3 * 10 - 24 + 0.4)
    found = ms(on_device([measured], record([(slow, on_gpu(slow, kernels))])))
    assert found["compute"] == pytest.approx(10)
    assert found["launch_gaps"] == pytest.approx(0.4 / 3)
    assert found["unattributed"] == pytest.approx(0, abs=1e-6)


def test_kernels_of_a_captured_graph_keep_their_distances_on_all_streams():
    """Each graph has 2 ms of kernels on one stream, a gap, and 2 ms on another that wait for the
    first 1 ms: 4 ms, of which the device computes 3.5."""
    slow = window((0, 0, 9, 0), (0, 0, 9, 0))
    graph = [(0.0, 1, 7), (1.0, 2, 9), (1.5, 0.5, 7), (3.5, 0.5, 7)]  # begin, duration, stream
    events = []
    for number, stamp in enumerate(slow.stamps, start=1):
        call = stamp.step + 1 * MS
        at = {"start_s": call, "duration_s": 0.01 * MS, "launch": number}
        events.append(ProfileEvent(name="cudaGraphLaunch", kind="runtime", **at))
        for begin, duration, lane in graph:
            at = {"start_s": call + begin * MS, "duration_s": duration * MS, "lane": lane}
            events.append(ProfileEvent(name="gemm", kind="kernel", launch=number, **at))
    found = record([(slow, Profile(events=tuple(events)))])
    assert (found.latency_s, found.turnaround_s) == (pytest.approx(0), 0)
    ahead = window((0, 0, 0.9, 0), (0, 0, 0.9, 0), wait=0.1 + 8 - 1.8)
    assert [b.start_s - ahead.start_s for b in simulate(ahead, found)] == pytest.approx(
        [(0.1 + replay + begin) * MS for replay in (0, 4) for begin, _, _ in graph]
    )
    parts = ms(on_device([ahead], found))
    assert parts["compute"] == pytest.approx(3.5)
    assert parts["launch_gaps"] == pytest.approx(0.5 + 0.05)
    assert parts["unattributed"] == pytest.approx(0, abs=1e-6)


def test_a_profile_without_a_device_cannot_be_simulated():
    stamped = window((0, 0, 1, 0))
    with pytest.raises(ValueError, match="kernel"):
        record([(stamped, Profile(events=operators(stamped, (0, 1))))])
