"""States: every change that the queue makes is in the table, and no other is accepted."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.jobs.states import TRANSITIONS, State, check_transition, state_of_sweep


def test_every_state_has_a_row_and_every_state_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    reached = {after for states in TRANSITIONS.values() for after in states}
    assert reached == set(State)


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_only_the_changes_of_the_table_are_accepted(before: State, after: State) -> None:
    if after in TRANSITIONS[before]:
        check_transition(1, before, after)
        return
    with pytest.raises(UsageError, match=f"Job 1 is {before} and cannot become {after}"):
        check_transition(1, before, after)


def test_a_job_that_is_done_stays_so() -> None:
    assert TRANSITIONS[State.DONE] == frozenset()


def test_a_sweep_is_done_when_all_its_jobs_are() -> None:
    assert state_of_sweep([State.DONE, State.RUNNING, State.FAILED]) is State.RUNNING
    assert state_of_sweep([State.DONE, State.FAILED]) is State.FAILED
    assert state_of_sweep([State.DONE, State.DONE]) is State.DONE
