"""The first rank that failed by itself is the reason for the others, and for the run."""

from cubemesh.runs.exit_status import WorkerExit, rank_outcomes, run_outcome
from cubemesh.schema import Outcome, Status

OK = Outcome(status=Status.OK)
OOM = Outcome(status=Status.OOM, message="memory was refused.")
LOST = Outcome(status=Status.CRASHED, message="connection closed by peer.")


def ending(failed=None, exit_code=0, **fields):
    return WorkerExit(
        exit_code=exit_code,
        elapsed_s=1.0,
        phase="measure",
        steps=12,
        failed_ranks=failed or {},
        **fields,
    )


def both(reported, ended, ranks):
    """(the outcome of each rank, that of the run)"""
    outcomes = rank_outcomes(reported, ended, ranks)
    return outcomes, run_outcome(outcomes, reported)


def test_a_run_is_ok_when_all_ranks_are():
    assert both({0: OK, 1: OK}, ending(), 2) == ([OK, OK], OK)


def test_a_killed_rank_is_the_reason_and_the_others_ended_with_it():
    outcomes, run = both({}, ending({1: -9}, rank_outputs={1: "its last words"}), 3)
    assert [o.status for o in outcomes] == [Status.KILLED] * 3
    assert outcomes[0].facts["ended_with"] == [1]
    assert outcomes[1].facts["output"] == "its last words"
    assert (run.status, run.facts["rank"], run.facts["signal"]) == (Status.KILLED, 1, "SIGKILL")


def test_a_rank_that_crashed_after_losing_another_is_not_the_reason():
    outcomes, run = both({0: LOST}, ending({0: 3, 1: -9}), 2)
    assert outcomes[0] == LOST
    assert (run.status, run.facts["rank"]) == (Status.KILLED, 1)


def test_a_reported_outcome_takes_precedence_over_an_exit_status():
    outcomes, run = both({0: LOST, 1: OOM}, ending({0: 3, 1: 3}), 2)
    assert outcomes == [LOST, OOM]
    assert (run.status, run.facts["rank"]) == (Status.OOM, 1)


def test_of_several_crashes_the_earliest_is_the_reason():
    first = Outcome(status=Status.CRASHED, message="a fault.")
    _, run = both({1: first, 0: LOST}, ending({0: 3, 1: 3}), 2)
    assert first.message in run.message
    assert run.facts["rank"] == 1


def test_a_rank_that_was_done_stays_ok_when_another_fails():
    outcomes, run = both({0: OK}, ending({1: -11}), 2)
    assert outcomes[0] == OK
    assert (run.facts["rank"], run.facts["signal"]) == (1, "SIGSEGV")


def test_an_unsupported_spec_names_no_rank():
    refused = Outcome(status=Status.UNSUPPORTED, message="devices=4: there are 2 GPUs.")
    _, run = both({2: refused}, ending({2: 3}), 4)
    assert run == refused


def test_the_end_of_the_agent_ends_every_rank():
    outcomes, run = both({}, ending(exit_code=-9, time_limit_s=5.0), 2)
    assert [o.status for o in outcomes] == [Status.TIMED_OUT] * 2
    assert run.status is Status.TIMED_OUT
