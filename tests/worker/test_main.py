"""The worker's own command line, and the server behind it, spoken to over its pipes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cubemesh
from cubemesh.errors import DataError
from cubemesh.schema import Budget, ProgramSettings, RunSpec, TrainSteps
from cubemesh.worker.__main__ import main
from cubemesh.worker.report.events import events_path, read_events
from cubemesh.worker.run.job_file import Job, read_job


def spec(script=""):
    return RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=4),
        program=ProgramSettings(framework="null", script=script or None),
        budget=Budget(steps=2, seconds=0.0, windows=2, warmup_seconds=0.0),
    )


def job_file(folder, script=""):
    folder.mkdir(exist_ok=True)
    return str(Job(spec=spec(script), folder=str(folder)).write())


@pytest.fixture
def server():
    """Starts a server, with `environ` on top of the own; `say` and `hear` speak its protocol."""
    started = []

    def start(**environ):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "cubemesh.worker", "serve"),
                *("--framework", "null", "--parent", str(os.getpid())),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **environ},
        )
        started.append(process)

        def say(**request):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()

        def hear():
            return json.loads(process.stdout.readline())

        return process, say, hear

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def wait_until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(pid):
    """The letter of a process's state; X when it is no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def test_a_job_comes_back_as_it_was_written(tmp_path):
    job = Job(spec=spec(), folder=str(tmp_path), origin=1.5, usable_cores=3)
    assert read_job(job.write()) == job


@pytest.mark.parametrize("text", [None, "{", '{"spec": 1}', "[]"])
def test_what_is_no_job_is_said_to_be_none(tmp_path, text, capsys):
    path = tmp_path / "job.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError):
        read_job(path)
    assert main(["run", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_a_job_runs_in_a_process_of_its_own(tmp_path):
    job = job_file(tmp_path / "run")
    done = subprocess.run([sys.executable, "-m", "cubemesh.worker", "run", job], timeout=60)
    assert done.returncode == 0
    events = read_events(events_path(tmp_path / "run", 0))
    assert events[-1]["outcome"]["status"] == "ok"


def test_a_server_forks_reaps_and_ends_with_its_stdin(tmp_path, server):
    process, say, hear = server()
    assert hear()["ready"] >= 0
    say(run=job_file(tmp_path / "a"))
    say(run=job_file(tmp_path / "b", "exit:7@3"))
    said = [hear() for _ in range(4)]
    pids = {s["job"]: s["pid"] for s in said if "job" in s}
    codes = {s["pid"]: s["exit"] for s in said if "exit" in s}
    assert len(set(pids.values())) == 2
    assert codes[pids[str(tmp_path / "a" / "job.json")]] == 0
    assert codes[pids[str(tmp_path / "b" / "job.json")]] == 7
    process.stdin.close()
    assert process.wait(timeout=60) == 0


def test_a_server_sends_signals_to_its_living_workers_only(tmp_path, server):
    _, say, hear = server()
    assert "ready" in hear()
    say(signal=9, pid=os.getpid())  # not one of its workers: nothing may happen
    say(run=job_file(tmp_path / "a", "hang@1"))
    pid = hear()["pid"]
    say(signal=9, pid=pid)
    assert hear() == {"exit": -9, "pid": pid}
    say(signal=9, pid=pid)
    say(run=job_file(tmp_path / "b"))
    assert "pid" in hear()
    assert hear()["exit"] == 0


def test_a_worker_leads_its_own_group_and_what_it_started_is_ended_with_it(tmp_path, server):
    (tmp_path / "sitecustomize.py").write_text(
        "import subprocess\n"
        "from cubemesh.frameworks.null import program as null\n"
        "hang = null._FAILURES['hang']\n"
        "def start_and_hang(event):\n"
        "    print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
        "    hang(event)\n"
        "null._FAILURES['hang'] = start_and_hang\n"
    )
    source = Path(cubemesh.__file__).parent.parent
    process, say, hear = server(PYTHONPATH=f"{tmp_path}:{source}")
    assert "ready" in hear()
    say(run=job_file(tmp_path / "a", "hang@1"))
    pid = hear()["pid"]
    assert os.getpgid(pid) == pid != os.getpgid(process.pid)
    output = tmp_path / "a" / "output-0.txt"
    wait_until(lambda: output.exists() and output.read_text().endswith("\n"))
    started = int(output.read_text())
    assert os.getpgid(started) == pid
    say(signal=9, pid=pid)
    assert hear()["exit"] == -9
    wait_until(lambda: state(started) in "ZX")


def test_sigusr1_writes_the_stacks_and_the_worker_goes_on(tmp_path, server):
    _, say, hear = server()
    assert "ready" in hear()
    say(run=job_file(tmp_path / "a", "real=1,step=0.3"))
    pid = hear()["pid"]
    stacks = tmp_path / "a" / "stacks-0.txt"
    events = events_path(tmp_path / "a", 0)
    wait_until(lambda: any(e.get("name") == "warm-up" for e in read_events(events)))
    say(signal=10, pid=pid)
    assert hear() == {"exit": 0, "pid": pid}
    assert "most recent call first" in stacks.read_text()
    assert read_events(events_path(tmp_path / "a", 0))[-1]["outcome"]["status"] == "ok"


def test_what_a_worker_prints_goes_to_its_folder(tmp_path, server):
    _, say, hear = server()
    assert "ready" in hear()
    say(run=job_file(tmp_path / "a", "segfault@2"))
    hear()
    assert hear()["exit"] == -11
    assert "Segmentation fault" in (tmp_path / "a" / "output-0.txt").read_text()
