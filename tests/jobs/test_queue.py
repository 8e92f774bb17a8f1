"""Queue: order, leases by the database's clock, fences, and what users do with jobs."""

import threading
from collections import Counter

import pytest

from cubemesh.errors import UsageError
from cubemesh.jobs.feed import events_after, follow
from cubemesh.jobs.lease import Lease, LeaseLost
from cubemesh.jobs.queue import LEASE_S, FreeDevices, JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Question, QueuedJob, Wants
from cubemesh.store.database import database_time
from scripted_clock import Clock

FREE = FreeDevices(hostname="here")


def put(queue: JobQueue, *, priority: int = 0, restarts: int = 3, **wants: object) -> int:
    """Queue one job that no test runs."""
    question = Question(names=("minibatch",), settings=("framework=null",))
    wanted = Wants(**{"device": "none", **wants})  # type: ignore[arg-type]
    return queue.submit([question], [wanted], priority=priority, restarts=restarts).job_id


def claim(queue: JobQueue, agent: str = "a", free: FreeDevices = FREE) -> QueuedJob:
    """Claim a job that must be there."""
    job = queue.claim(agent, free)
    assert job is not None
    return job


def lease(queue: JobQueue, job: QueuedJob) -> Lease:
    return Lease(queue=queue, job_id=job.job_id, fence=job.fence)


def states(queue: JobQueue, job_id: int) -> list[str]:
    events, _ = events_after(queue, job_id)
    return [event.value["state"] for event in events if event.kind == "state"]


def test_jobs_are_claimed_by_priority_then_age(queue: JobQueue) -> None:
    first, urgent, last = put(queue), put(queue, priority=5), put(queue)
    assert [claim(queue).job_id for _ in range(3)] == [urgent, first, last]
    assert queue.claim("a", FREE) is None


def test_a_changed_priority_changes_the_order(queue: JobQueue) -> None:
    first, second = put(queue), put(queue)
    queue.set_priority(second, 1)
    assert [claim(queue).job_id, claim(queue).job_id] == [second, first]


def test_a_job_goes_to_a_host_with_its_devices(queue: JobQueue) -> None:
    job = put(queue, device="gpu", devices=2)
    assert queue.claim("a", FREE) is None
    assert queue.claim("a", FreeDevices(hostname="here", gpus=1, has_gpus=True)) is None
    assert queue.waiting(FreeDevices(hostname="here", gpus=2, has_gpus=True)) == 1
    found = claim(queue, free=FreeDevices(hostname="here", gpus=2, has_gpus=True))
    assert found.job_id == job


def test_a_job_of_any_device_uses_the_cpu_only_of_a_host_without_gpus(queue: JobQueue) -> None:
    put(queue, device="any")
    assert queue.claim("a", FreeDevices(hostname="here", cpu=True, gpus=0, has_gpus=True)) is None
    assert queue.claim("a", FreeDevices(hostname="here", cpu=False)) is None
    claim(queue, free=FreeDevices(hostname="here", cpu=True))


def test_a_job_for_a_host_waits_for_its_agent(queue: JobQueue) -> None:
    put(queue, host="there")
    assert queue.claim("a", FREE) is None
    claim(queue, free=FreeDevices(hostname="there"))


def test_a_claimed_job_is_another_agents_only_after_its_lease(
    queue: JobQueue, clock: Clock
) -> None:
    job_id = put(queue)
    claim(queue)
    clock.now += LEASE_S - 1
    assert queue.expire() == 0
    assert queue.claim("b", FREE) is None
    clock.now += 2
    assert queue.expire() == 1
    again = claim(queue, "b")
    assert (again.job_id, again.attempt, again.fence, again.faults) == (job_id, 2, 2, 1)
    assert states(queue, job_id) == ["queued", "starting", "queued", "starting"]


def test_a_renewed_lease_does_not_expire(queue: JobQueue, clock: Clock) -> None:
    held = lease(queue, claim_after_put(queue))
    for _ in range(5):
        clock.now += LEASE_S - 1
        held.renew({"fraction": 0.5})
        assert queue.expire() == 0
    assert queue.get(held.job_id).progress == {"fraction": 0.5}


def claim_after_put(queue: JobQueue) -> QueuedJob:
    put(queue)
    return claim(queue)


def test_a_stale_holder_changes_nothing(queue: JobQueue, clock: Clock) -> None:
    old = lease(queue, claim_after_put(queue))
    old.run_started()
    clock.now += LEASE_S + 1
    queue.expire()
    new = lease(queue, claim(queue, "b"))
    for write in (
        old.renew,
        old.control,
        old.run_started,
        lambda: old.end(State.FAILED),
        lambda: old.add_run("f00d"),
        lambda: old.release(""),
        lambda: old.fault(""),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert queue.get(new.job_id).state is State.STARTING
    assert queue.get(new.job_id).run_ids == ()
    new.add_run("beef")
    new.add_run("beef")
    new.end(State.DONE)
    with pytest.raises(LeaseLost):
        new.renew()
    assert queue.get(new.job_id).run_ids == ("beef",)


def test_a_job_whose_holders_are_always_lost_ends(queue: JobQueue, clock: Clock) -> None:
    job_id = put(queue, restarts=2)
    for _ in range(3):
        claim(queue)
        clock.now += LEASE_S + 1
        queue.expire()
    job = queue.get(job_id)
    assert job.state is State.LOST
    assert "queued again 2 times" in job.why
    queue.resume(job_id)
    assert queue.get(job_id).faults == 0
    claim(queue)


def test_a_released_job_waits_without_a_fault(queue: JobQueue, clock: Clock) -> None:
    held = lease(queue, claim_after_put(queue))
    held.release("The CPU is in use.", delay_s=30)
    assert queue.claim("a", FREE) is None
    assert queue.waiting(FREE) == 1
    assert queue.get(held.job_id).why == "The CPU is in use."
    clock.now += 31
    assert claim(queue).faults == 0


def test_two_hundred_jobs_go_to_eight_agents_once_each(live: JobQueue) -> None:
    ids = {put(live) for _ in range(200 if live.database.engine.name == "postgresql" else 60)}
    taken: Counter[int] = Counter()

    def work(agent: str) -> None:
        while (job := live.claim(agent, FREE)) is not None:
            taken[job.job_id] += 1
            lease(live, job).end(State.DONE)

    threads = [threading.Thread(target=work, args=(f"agent-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while (job := live.claim("last", FREE)) is not None:  # one was locked when another looked
        taken[job.job_id] += 1
        lease(live, job).end(State.DONE)
    assert set(taken) == ids
    assert set(taken.values()) == {1}


def test_time_is_the_databases(live: JobQueue) -> None:
    with live.database.read() as connection:
        first = database_time(connection)
    with live.database.read() as connection:
        assert database_time(connection) >= first > 1.7e9


def test_a_queued_job_is_paused_resumed_and_stopped(queue: JobQueue) -> None:
    job_id = put(queue)
    queue.pause(job_id)
    assert queue.claim("a", FREE) is None
    queue.resume(job_id)
    queue.stop(job_id)
    assert states(queue, job_id) == ["queued", "paused", "queued", "stopped"]
    with pytest.raises(UsageError, match="is stopped and cannot become paused"):
        queue.pause(job_id)


@pytest.mark.parametrize(
    ("action", "state"),
    [("pause", State.PAUSED), ("stop-at-checkpoint", State.STOPPED), ("stop", State.STOPPED)],
)
def test_a_running_job_is_told_through_its_lease(
    queue: JobQueue, action: str, state: State
) -> None:
    held = lease(queue, claim_after_put(queue))
    held.run_started()
    if action == "pause":
        queue.pause(held.job_id)
        assert queue.get(held.job_id).state is State.PAUSING
    else:
        queue.stop(held.job_id, at_checkpoint=action != "stop")
    assert held.renew() == held.control() == action
    held.paused()
    assert queue.get(held.job_id).state is state
    assert queue.get(held.job_id).control is None


def test_a_job_that_was_to_pause_is_paused_when_its_holder_is_lost(
    queue: JobQueue, clock: Clock
) -> None:
    held = lease(queue, claim_after_put(queue))
    queue.pause(held.job_id)
    clock.now += LEASE_S + 1
    queue.expire()
    assert queue.get(held.job_id).state is State.PAUSED


def test_an_edit_takes_effect_when_the_holder_lets_go(queue: JobQueue) -> None:
    held = lease(queue, claim_after_put(queue))
    changed = Question(names=("minibatch",), settings=("framework=null", "steps=9"))
    queue.edit(held.job_id, changed, Wants(device="none"))
    assert held.control() == "edit"
    assert queue.get(held.job_id).question != changed
    held.paused()
    job = queue.get(held.job_id)
    assert (job.state, job.question, job.name) == (State.QUEUED, changed, changed.text)


def test_actions_on_a_sweep_concern_its_jobs(queue: JobQueue) -> None:
    questions = [Question(names=("minibatch",), settings=(f"steps={n}",)) for n in (1, 2, 3)]
    sweep = queue.submit(
        questions, [Wants(device="none")] * 3, sweep=Question(names=("minibatch",))
    )
    assert (sweep.kind, len(sweep.children)) == ("sweep", 3)
    held = lease(queue, claim(queue))
    assert held.job_id == sweep.children[0]
    held.end(State.DONE)
    queue.pause(sweep.job_id)
    assert queue.get(sweep.job_id).state is State.PAUSED
    queue.resume(sweep.job_id)
    queue.stop(sweep.job_id)
    found = [job.state for job in queue.list(parent_id=sweep.job_id)]
    assert found == [State.STOPPED, State.STOPPED, State.DONE]
    assert queue.get(sweep.job_id).state is State.STOPPED


def test_the_list_is_newest_first_and_continues(queue: JobQueue) -> None:
    ids = [put(queue) for _ in range(5)]
    claimed = claim(queue).job_id
    assert [job.job_id for job in queue.list(limit=2)] == [ids[4], ids[3]]
    assert [job.job_id for job in queue.list(before=ids[3])] == ids[2::-1]
    assert [job.job_id for job in queue.list(states=[State.STARTING])] == [claimed]


def test_events_are_numbered_and_read_once(queue: JobQueue) -> None:
    held = lease(queue, claim_after_put(queue))
    held.renew(events=[("message", {"text": "one"}), ("message", {"text": "two"})])
    first, cursor = events_after(queue, held.job_id, limit=3)
    rest, cursor = events_after(queue, held.job_id, cursor)
    assert [event.sequence for event in (*first, *rest)] == [1, 2, 3, 4]
    assert events_after(queue, held.job_id, cursor) == ([], 4)
    held.end(State.DONE)
    followed = follow(queue, held.job_id, cursor, wait=lambda: pytest.fail("it has ended"))
    assert [event.value["state"] for event in followed] == ["done"]


def test_an_unknown_job_is_a_sentence(queue: JobQueue) -> None:
    for ask in (queue.get, queue.pause, queue.resume, lambda n: events_after(queue, n)):
        with pytest.raises(UsageError, match="There is no job 77"):
            ask(77)
