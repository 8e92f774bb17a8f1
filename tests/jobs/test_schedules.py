"""Nightly schedules: once a night, when the host is idle, with every skipped night recorded."""

import threading

import pytest

from cli_forkserver import CommandProcess
from cubemesh.errors import UsageError
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.schedules import (
    DAY_S,
    MOST_SKIPPED,
    NO_AGENT,
    PAUSED,
    Schedule,
    Schedules,
    parse_hour,
)
from cubemesh.jobs.submission import schedule_question
from cubemesh.jobs.values import Question, Wants
from cubemesh.store import Store
from cubemesh.store.database import database_time
from cubemesh.team.audit_log import entries
from patience import wait_until
from scripted_clock import Clock

FREE = FreeDevices(hostname="here")
HOUR_S = 3600
TODAY = 11 * DAY_S
"""Midnight of 12 January 1970; the scripted clock starts at 13:46:40 on that day."""
QUESTION = Question(names=("minibatch",), settings=("framework=null",), no_cache=True)


@pytest.fixture
def schedules(queue: JobQueue) -> Schedules:
    return Schedules(queue)


def add(schedules: Schedules, at: str = "02:00", **given: object) -> Schedule:
    wants = Wants(**{"device": "none", **given.pop("wants", {})})  # type: ignore[dict-item]
    options = {"at_s": parse_hour(at), "within_s": 4 * HOUR_S, **given}
    return schedules.add(QUESTION, wants, **options)  # type: ignore[arg-type]


def nights(schedules: Schedules) -> list[tuple[str, int | None, str]]:
    (one,) = schedules.list()
    return [(night.night, night.job_id, night.why) for night in one.nights]


def test_a_night_has_one_job_whoever_looks_and_how_often(
    schedules: Schedules, queue: JobQueue, clock: Clock
) -> None:
    made = add(schedules)
    assert (made.at, made.next_utc) == ("02:00", "1970-01-13T02:00:00.000+00:00")
    assert schedules.submit_due("a", FREE) == [], "the first night is the next that begins"
    clock.now = TODAY + DAY_S + 2 * HOUR_S - 1
    assert schedules.submit_due("a", FREE) == []
    clock.now += 1
    (job_id,) = schedules.submit_due("a", FREE)
    again = Schedules(JobQueue(queue.database, clock))  # as after a restart
    assert [again.submit_due(agent, FREE) for agent in ("a", "b")] == [[], []]
    job = queue.get(job_id)
    assert job.question == QUESTION
    assert job.wants == Wants(device="none", host="here"), "it stays on the host that was idle"
    clock.now += DAY_S
    (second,) = schedules.submit_due("b", FREE)
    assert nights(schedules) == [("1970-01-14", second, ""), ("1970-01-13", job_id, "")]
    assert len(queue.list()) == 2


def test_two_agents_at_once_queue_one_job(
    schedules: Schedules, queue: JobQueue, clock: Clock
) -> None:
    add(schedules)
    clock.now = TODAY + DAY_S + 3 * HOUR_S
    together = threading.Barrier(4)
    made: list[int] = []

    def look(agent: str) -> None:
        together.wait()
        made.extend(Schedules(queue).submit_due(agent, FREE))

    threads = [threading.Thread(target=look, args=(f"agent-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [job.job_id for job in queue.list()] == made


def test_it_waits_for_an_idle_host_and_the_skipped_night_says_why(
    schedules: Schedules, queue: JobQueue, clock: Clock
) -> None:
    add(schedules)
    asked: list[float] = []

    def busy() -> str:
        asked.append(clock.now)
        return "Other programs use 40 % of the processors on here"

    assert schedules.submit_due("a", FREE, busy) == []
    assert asked == [], "nothing is due"
    clock.now = TODAY + DAY_S + 2 * HOUR_S
    assert schedules.submit_due("a", FREE, busy) == []
    clock.now += 4 * HOUR_S
    assert schedules.submit_due("a", FREE, busy) == []
    assert len(asked) == 1, "it is not asked after the window"
    assert nights(schedules) == [
        ("1970-01-13", None, "Other programs use 40 % of the processors on here")
    ]
    clock.now = TODAY + 2 * DAY_S + 2 * HOUR_S
    assert schedules.submit_due("a", FREE, busy) == []
    clock.now += HOUR_S
    assert len(schedules.submit_due("a", FREE, lambda: "")) == 1, "idle within the window"
    assert len(queue.list()) == 1


def test_a_schedule_for_any_load_does_not_ask(schedules: Schedules, clock: Clock) -> None:
    add(schedules, when_idle=False)
    clock.now = TODAY + DAY_S + 2 * HOUR_S
    assert len(schedules.submit_due("a", FREE, lambda: pytest.fail("asked"))) == 1


def test_nights_without_an_agent_are_recorded(schedules: Schedules, clock: Clock) -> None:
    add(schedules)
    clock.now = TODAY + 3 * DAY_S + 3 * HOUR_S
    (job_id,) = schedules.submit_due("a", FREE)
    assert nights(schedules) == [
        ("1970-01-15", job_id, ""),
        ("1970-01-14", None, NO_AGENT),
        ("1970-01-13", None, NO_AGENT),
    ]
    clock.now += 2 * MOST_SKIPPED * DAY_S
    assert len(schedules.submit_due("a", FREE)) == 1, "years without an agent are no obstacle"


def test_devices_that_are_missing_or_used_delay_it(schedules: Schedules, clock: Clock) -> None:
    add(schedules, wants={"device": "gpu", "devices": 2})
    clock.now = TODAY + DAY_S + 2 * HOUR_S
    one = FreeDevices(hostname="here", gpus=1, has_gpus=True)
    assert schedules.submit_due("a", one) == []
    clock.now += 5 * HOUR_S
    assert schedules.submit_due("a", one) == []
    assert nights(schedules)[0][2] == "2 GPUs were needed and 1 were free on here"
    clock.now += DAY_S - 5 * HOUR_S
    two = FreeDevices(hostname="here", gpus=2, has_gpus=True)
    assert len(schedules.submit_due("a", two)) == 1


def test_a_schedule_of_a_host_is_for_its_agent(schedules: Schedules, clock: Clock) -> None:
    add(schedules, wants={"host": "there"})
    clock.now = TODAY + DAY_S + 2 * HOUR_S
    assert schedules.submit_due("a", FREE) == []
    assert len(schedules.submit_due("b", FreeDevices(hostname="there"))) == 1


def test_a_deleted_schedule_queues_nothing_more(
    schedules: Schedules, queue: JobQueue, clock: Clock
) -> None:
    made = add(schedules)
    clock.now = TODAY + DAY_S + 2 * HOUR_S
    (job_id,) = schedules.submit_due("a", FREE)
    schedules.delete(made.schedule_id, who="ada")
    clock.now += DAY_S
    assert schedules.submit_due("a", FREE) == []
    assert schedules.list() == []
    assert queue.get(job_id).job_id == job_id
    with pytest.raises(UsageError, match=f"no schedule {made.schedule_id}"):
        schedules.delete(made.schedule_id, who="ada")


def test_a_paused_schedule_queues_nothing_and_its_nights_are_recorded(
    schedules: Schedules, queue: JobQueue, clock: Clock
) -> None:
    made = add(schedules)
    clock.now = TODAY + 2 * DAY_S  # the first night passed without an agent
    paused = schedules.pause(made.schedule_id, who="ada")
    assert (paused.next_utc, paused.paused_utc) == (None, "1970-01-14T00:00:00.000+00:00")
    with pytest.raises(UsageError, match="paused already"):
        schedules.pause(made.schedule_id, who="ada")
    clock.now = TODAY + 3 * DAY_S + 3 * HOUR_S
    assert schedules.submit_due("a", FREE) == []
    resumed = schedules.resume(made.schedule_id, who="ada")
    assert (resumed.next_utc, resumed.paused_utc) == ("1970-01-15T02:00:00.000+00:00", None)
    with pytest.raises(UsageError, match="not paused"):
        schedules.resume(made.schedule_id, who="ada")
    (job_id,) = schedules.submit_due("a", FREE)
    assert nights(schedules) == [
        ("1970-01-15", job_id, ""),
        ("1970-01-14", None, PAUSED),
        ("1970-01-13", None, NO_AGENT),
    ]
    assert [night.state for night in schedules.get(made.schedule_id).nights] == [
        "queued",
        None,
        None,
    ]
    actions = [(one.who, one.action, one.detail) for one in entries(queue.database)]
    assert actions == [("ada", "resume schedule", "1"), ("ada", "pause schedule", "1")]


def test_what_ran_in_a_night_before_a_pause_is_not_run_again(
    schedules: Schedules, queue: JobQueue, clock: Clock
) -> None:
    made = add(schedules)
    clock.now = TODAY + DAY_S + 2 * HOUR_S
    assert len(schedules.submit_due("a", FREE)) == 1
    schedules.pause(made.schedule_id, who="ada")
    resumed = schedules.resume(made.schedule_id, who="ada")
    assert schedules.submit_due("a", FREE) == []
    assert resumed.next_utc == "1970-01-14T02:00:00.000+00:00"
    with pytest.raises(UsageError, match="no schedule 9"):
        schedules.pause(9, who="ada")


@pytest.mark.parametrize("text", ["2", "24:00", "02:60", "two", ""])
def test_an_hour_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="02:00"):
        parse_hour(text)


def test_what_cannot_run_is_refused_before_it_is_stored(schedules: Schedules, store: Store) -> None:
    def schedule(settings: tuple[str, ...] = ("framework=null",), within_s: float = 60.0) -> None:
        schedule_question(
            schedules,
            store,
            Question(names=("train",), settings=settings),
            at="02:00",
            within_s=within_s,
            when_idle=True,
        )

    with pytest.raises(UsageError, match="frobnicate"):
        schedule(("frobnicate=1",))
    with pytest.raises(UsageError, match="sweep"):
        schedule(("framework=null", "learning_rate=0.1,0.2"))
    for within_s in (24 * HOUR_S, float("inf")):
        with pytest.raises(UsageError, match="23 hours"):
            schedule(within_s=within_s)
    assert schedules.list() == []


@pytest.mark.parametrize("location", ["sqlite"], indirect=True)
def test_an_agent_runs_what_is_due(live: JobQueue, start_agent) -> None:
    question = Question(
        names=("minibatch",),
        settings=("framework=null", "ceiling=false", "batch_sizes=8", "script=step=0.01"),
        scale="quick",
        no_cache=True,
    )
    with live.database.read() as connection:
        now = database_time(connection)
    schedules = Schedules(live)
    schedules.add(question, Wants(device="none"), at_s=int(now + 2) % DAY_S, when_idle=False)
    wait_until(lambda: _begun(live, now + 2), "the begin of the window")
    agent: CommandProcess = start_agent("--until-idle")
    wait_until(lambda: agent.poll() is not None, "the end of the agent")
    (one,) = schedules.list()
    assert one.nights[0].job_id is not None
    job = live.get(one.nights[0].job_id)
    assert (job.state, len(job.run_ids)) == ("done", 1)


def _begun(queue: JobQueue, time_s: float) -> bool:
    with queue.database.read() as connection:
        return database_time(connection) >= time_s
