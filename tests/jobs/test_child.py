"""The settings with which a job's process asks its question."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.jobs.child import job_settings
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Question, QueuedJob

OWN = ["checkpoints=/jobs/7", "resume=true"]


def added(*lines, names=("train",), attempt=1):
    """What is added to the settings of a job."""
    job = QueuedJob(
        job_id=7,
        kind="question",
        name="job",
        question=Question(names=names, settings=lines),
        state=State.RUNNING,
        attempt=attempt,
    )
    found = job_settings(job, "/jobs/7")
    assert found[: len(lines)] == list(lines)
    return found[len(lines) :]


@pytest.mark.parametrize("framework", ["pytorch", "pytorch-compiled", "jax", "tensorflow", "keras"])
def test_a_training_gets_checkpoints_with_every_framework_that_computes(framework):
    assert added("networks=little-cnn") == OWN
    assert added(f"framework={framework}") == OWN
    assert added(f"framework = {framework}", "sync=all-reduce") == OWN


def test_what_cannot_resume_gets_none():
    assert added("framework=null") == []
    assert added("framework=jax", names=("minibatch",)) == []
    assert added("sync=asynchronous") == []


def test_a_later_attempt_resumes_in_the_folder_that_the_job_names():
    assert added("checkpoints=ck", "framework=jax") == []
    assert added("checkpoints=ck", "framework=jax", attempt=2) == ["resume=true"]


def test_an_unknown_framework_is_an_error():
    with pytest.raises(UsageError, match="jacks"):
        added("framework=jacks")
