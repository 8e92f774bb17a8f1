import pytest

from cubemesh.runs.exit_status import (
    WorkerExit,
    innermost,
    outcome_from_exit,
    rank_outcomes,
    run_outcome,
    signal_name,
)
from cubemesh.schema import Status

STACKS = """\
Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/x/telemetry.py", line 20 in _sample

Current thread 0x00007e (most recent call first):
  File "/x/cubemesh/frameworks/null.py", line 77 in train_step
  File "/x/cubemesh/worker/tasks.py", line 9 in step
"""


def end(code, **facts):
    return outcome_from_exit(
        WorkerExit(exit_code=code, elapsed_s=1.0, phase="measure", steps=40, **facts)
    )


@pytest.mark.parametrize(
    ("code", "seen", "status"),
    [
        (-11, {}, Status.CRASHED),
        (-6, {}, Status.CRASHED),
        (-6, {"output": "what():  std::bad_alloc"}, Status.OOM),
        (-9, {}, Status.KILLED),
        (-9, {"oom_kills": 1}, Status.OOM),
        (-15, {"oom_kills": 1}, Status.KILLED),
        (-45, {}, Status.KILLED),
        (3, {}, Status.CRASHED),
        (0, {}, Status.CRASHED),
        (-9, {"time_limit_s": 90.0}, Status.TIMED_OUT),
        (-9, {"server_died": True}, Status.KILLED),
        (-2, {}, Status.KILLED),
        (-2, {"output": "blas_thread_init: pthread_create failed for thread 1"}, Status.CRASHED),
    ],
)
def test_the_exit_status_decides_the_outcome(code, seen, status):
    outcome = end(code, **seen)
    assert (outcome.status, outcome.origin) == (status, "runner")
    assert (outcome.facts["phase"], outcome.facts["steps"]) == ("measure", 40)
    if code >= 0:
        assert outcome.facts["exit_code"] == code
    elif "time_limit_s" not in seen:
        assert outcome.facts["signal"] == signal_name(-code)


def test_a_stopped_agent_is_named_once_with_the_stacks_of_each_rank():
    worker = WorkerExit(
        exit_code=-9,
        elapsed_s=1.0,
        phase="measure",
        stopped="the agent of the ranks (process 7)",
        stopped_s=31.0,
        rank_stacks={1: STACKS},
    )
    outcomes = rank_outcomes({}, worker, 2)
    assert {outcome.status for outcome in outcomes} == {Status.TIMED_OUT}
    assert ["stacks" in outcome.facts for outcome in outcomes] == [False, True]
    whole = run_outcome(outcomes, {})
    assert whole.message.startswith("the agent of the ranks (process 7) was stopped (SIGSTOP")
    assert whole.facts["heartbeat_timeout_s"] == 31.0, "so that a training resumes"


def test_facts_have_the_signal_the_stacks_and_the_last_lines():
    outcome = end(-9, time_limit_s=1.0, stacks=STACKS, output="\n".join(map(str, range(100))))
    assert not {"signal", "exit_code"} & set(outcome.facts)
    assert "null.py" in outcome.facts["stacks"]
    assert outcome.facts["output"].splitlines() == [str(i) for i in range(85, 100)]
    assert "at null.py:77 in train_step" in outcome.message


def test_the_innermost_call_is_the_main_threads():
    assert innermost(STACKS) == "null.py:77 in train_step"
    c_stack = STACKS + "\nCurrent thread's C stack trace (most recent call first):\n  Binary file\n"
    assert innermost(c_stack) == "null.py:77 in train_step"
    assert innermost("") == ""


def test_facts_have_the_signal_or_the_exit_code():
    assert end(-11).facts["signal"] == "SIGSEGV"
    assert end(3).facts["exit_code"] == 3


def test_the_stacks_of_a_fatal_signal_are_separated_from_the_output():
    output = f"loading\nFatal Python error: Bus error\n\n{STACKS}\nExtension modules: numpy\n"
    outcome = end(-7, output=output)
    assert outcome.facts["output"] == "loading"
    assert outcome.facts["stacks"].splitlines()[0] == "Bus error"
    assert "Extension" not in outcome.facts["stacks"]
    assert "null.py:77" in outcome.message


def test_signals_without_a_name_are_numbered():
    assert signal_name(11) == "SIGSEGV"
    assert signal_name(40) == "signal 40"
