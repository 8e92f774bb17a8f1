"""Submission and sweeps: refused as `cubemesh run` refuses, before anything is queued."""

from pathlib import Path

import pytest

import cubemesh
from cubemesh.errors import UsageError
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.submission import edit_question, submit_question
from cubemesh.jobs.sweep import MOST_JOBS, combinations
from cubemesh.jobs.values import Question, QueuedJob, Wants
from cubemesh.store import Store

NULL = {"framework": "null", "networks": "little-cnn", "batch_sizes": "1,2"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "results.sqlite")


def submit(path: str, *names: str, **options: object) -> QueuedJob:
    return cubemesh.submit(*(names or ("minibatch",)), quick=True, store=path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("minibach",)}, "minibatch"),
        ({"bach_sizes": "1"}, "batch_sizes"),
        ({"networks": "resnet-49"}, "resnet-50"),
        ({"batch_sizes": "many"}, "batch_sizes=many is not valid"),
        ({"devices": "three"}, "--devices three: give a number of GPUs, cpu, or auto"),
        ({"priority": 10**7}, "--priority 10000000: give a number from"),
        ({"restarts": -1}, "--restarts -1: give a number from 0"),
        ({"sweep": ["steps=1,1"]}, "is empty or given twice"),
        ({"sweep": ["steps=1,,2"]}, "is empty or given twice"),
        ({"settings": ["steps=2"], "sweep": ["steps=1,2"]}, "steps is given twice"),
        ({"pythons": {"jax": "/no/python"}}, "no Python at /no/python"),
    ],
)
def test_what_run_refuses_is_not_queued(
    path: str, options: dict[str, object], message: str
) -> None:
    options = dict(options)
    names = options.pop("names", ("minibatch",))
    with pytest.raises(UsageError, match=message):
        submit(path, *names, **options)  # type: ignore[misc]
    cubemesh.submit("minibatch", quick=True, store=path, settings=NULL)
    assert [job.job_id for job in cubemesh.list_jobs(store=path)] == [1]


def test_the_devices_of_a_job_come_from_its_settings(path: str) -> None:
    wants = [
        submit(path, settings=NULL).wants,
        submit(path, device="cpu").wants,
        submit(path, "train", device="cuda", settings={"devices": 4}).wants,
        submit(path, devices=2).wants,
    ]
    found = [(want.device, want.devices) for want in wants]
    assert found == [("none", 1), ("cpu", 1), ("gpu", 4), ("gpu", 2)]
    on_cpu = submit(path, devices="cpu")
    assert on_cpu.wants.device == "cpu"
    assert "device=cpu" in on_cpu.question.settings
    with pytest.raises(UsageError, match="--devices cpu contradicts --set device=cuda"):
        submit(path, devices="cpu", device="cuda")


def test_a_grid_of_two_settings_is_four_jobs_of_one_sweep(path: str) -> None:
    sweep = submit(path, "train", batch_per_device="64,128", learning_rate="0.1,0.05", epochs=1)
    assert sweep.kind == "sweep"
    children = [cubemesh.job(n, store=path) for n in sweep.children]
    swept = [
        {k: v for k, v in (line.split("=") for line in job.question.settings) if k != "epochs"}
        for job in children
    ]
    assert swept == [
        {"batch_per_device": batch, "learning_rate": rate}
        for batch in ("64", "128")
        for rate in ("0.1", "0.05")
    ]
    assert {job.parent_id for job in children} == {sweep.job_id}


def test_a_list_is_no_sweep_unless_it_is_named_one() -> None:
    assert combinations(["minibatch"], ["batch_sizes=1,2"]) == [("batch_sizes=1,2",)]
    assert combinations(["minibatch"], [], ["batch_sizes=1,2"]) == [
        ("batch_sizes=1",),
        ("batch_sizes=2",),
    ]


def test_a_sweep_has_a_limit() -> None:
    many = ",".join(map(str, range(1, MOST_JOBS + 2)))
    with pytest.raises(UsageError, match=f"has {MOST_JOBS + 1} jobs, and at most {MOST_JOBS}"):
        combinations(["train"], [], [f"epochs={many}"])


def test_a_clone_asks_the_same_with_changes(path: str) -> None:
    first = submit(path, settings=NULL, priority=4)
    again = cubemesh.clone_job(first.job_id, {"batch_sizes": "4"}, store=path)
    assert again.job_id != first.job_id
    assert again.priority == 4
    assert set(first.question.settings) ^ set(again.question.settings) == {
        "batch_sizes=1,2",
        "batch_sizes=4",
    }
    sweep = cubemesh.clone_job(first.job_id, ["steps=10,20"], store=path)
    assert len(sweep.children) == 2


@pytest.mark.parametrize(
    ("devices", "change", "wants"),
    [
        ("2", {"epochs": "5"}, Wants(device="gpu", devices=2)),
        ("cpu", {"epochs": "5"}, Wants(device="cpu")),
        ("2", {"device": "cpu"}, Wants(device="cpu")),
        ("auto", {"framework": "null"}, Wants(device="none")),
    ],
)
def test_an_edit_of_a_job_that_waits_leaves_its_devices(
    path: str, devices: str, change: dict[str, str], wants: Wants
) -> None:
    with Store.open(path) as store:
        queue = JobQueue(store.database)
        train = Question(names=("train",), settings=("networks=little-cnn",))
        job = submit_question(queue, store, train, devices=devices)
        edit_question(queue, store, job.job_id, [f"{k}={v}" for k, v in change.items()], who="me")
        assert queue.get(job.job_id).wants == wants


def test_a_job_that_waits_can_be_edited_and_a_wrong_edit_is_refused(path: str) -> None:
    job = submit(path, settings=NULL)
    edited = cubemesh.edit_job(job.job_id, {"batch_sizes": "8"}, store=path)
    assert "batch_sizes=8" in edited.question.settings
    with pytest.raises(UsageError, match="batch_sizes=x is not valid"):
        cubemesh.edit_job(job.job_id, {"batch_sizes": "x"}, store=path)
    with pytest.raises(UsageError, match="Nothing to edit"):
        cubemesh.edit_job(job.job_id, {}, store=path)


def test_an_unknown_state_is_refused(path: str) -> None:
    submit(path, settings=NULL)
    with pytest.raises(UsageError, match="'idle' is not a state of a job"):
        cubemesh.list_jobs(states=["idle"], store=path)
