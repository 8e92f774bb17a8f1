"""The worker's command line, and the forkserver's protocol over its pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cubemesh
from cubemesh.errors import DataError
from cubemesh.schema import Budget, ProgramSettings, RunSpec, TrainSteps
from cubemesh.worker.__main__ import main
from cubemesh.worker.report.events import events_path, read_events
from cubemesh.worker.run.job_file import Job, read_job
from patience import wait_until

SOURCE = Path(cubemesh.__file__).parent.parent


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
    """Starts a server with `environ` added to the environment; `send` a request, `receive` a
    reply."""
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

        def send(**request):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()

        def receive():
            return json.loads(process.stdout.readline())

        return process, send, receive

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def state(pid):
    """The letter of a process's state; X when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def test_a_job_survives_writing_and_reading(tmp_path):
    job = Job(spec=spec(), folder=str(tmp_path), origin=1.5, usable_cores=3)
    assert read_job(job.write()) == job


@pytest.mark.parametrize("text", [None, "{", '{"spec": 1}', "[]"])
def test_an_invalid_job_file_is_a_data_error(tmp_path, text, capsys):
    path = tmp_path / "job.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError):
        read_job(path)
    assert main(["run", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_run_runs_one_job(tmp_path):
    job = job_file(tmp_path / "run")
    done = subprocess.run([sys.executable, "-m", "cubemesh.worker", "run", job])
    assert done.returncode == 0
    events = read_events(events_path(tmp_path / "run", 0))
    assert events[-1]["outcome"]["status"] == "ok"


def test_a_server_forks_reaps_and_ends_with_its_stdin(tmp_path, server):
    process, send, receive = server()
    assert receive()["ready"] >= 0
    send(run=job_file(tmp_path / "a"))
    send(run=job_file(tmp_path / "b", "exit:7@3"))
    replies = [receive() for _ in range(4)]
    pids = {s["job"]: s["pid"] for s in replies if "job" in s}
    codes = {s["pid"]: s["exit"] for s in replies if "exit" in s}
    assert len(set(pids.values())) == 2
    assert codes[pids[str(tmp_path / "a" / "job.json")]] == 0
    assert codes[pids[str(tmp_path / "b" / "job.json")]] == 7
    process.stdin.close()
    assert process.wait() == 0


def test_a_server_sends_signals_only_to_its_running_workers(tmp_path, server):
    _, send, receive = server()
    assert "ready" in receive()
    send(signal=9, pid=os.getpid())  # not one of its workers: nothing may happen
    send(run=job_file(tmp_path / "a", "hang@1"))
    pid = receive()["pid"]
    send(signal=9, pid=pid)
    assert receive() == {"exit": -9, "pid": pid}
    send(signal=9, pid=pid)
    send(run=job_file(tmp_path / "b"))
    assert "pid" in receive()
    assert receive()["exit"] == 0


def test_a_worker_leads_a_process_group_that_ends_with_it(tmp_path, server):
    (tmp_path / "sitecustomize.py").write_text(
        "import subprocess\n"
        "from cubemesh.frameworks.null import program as null\n"
        "hang = null._FAILURES['hang']\n"
        "def start_and_hang(event):\n"
        "    print(subprocess.Popen(['sleep', '6000']).pid, flush=True)\n"
        "    hang(event)\n"
        "null._FAILURES['hang'] = start_and_hang\n"
    )
    process, send, receive = server(PYTHONPATH=f"{tmp_path}:{SOURCE}")
    assert "ready" in receive()
    send(run=job_file(tmp_path / "a", "hang@1"))
    pid = receive()["pid"]
    assert os.getpgid(pid) == pid != os.getpgid(process.pid)
    output = tmp_path / "a" / "output-0.txt"
    wait_until(lambda: output.exists() and output.read_text().endswith("\n"))
    started = int(output.read_text())
    assert os.getpgid(started) == pid
    send(signal=9, pid=pid)
    assert receive()["exit"] == -9
    wait_until(lambda: state(started) in "ZX")


def test_sigusr1_writes_the_stacks_and_the_worker_continues(tmp_path, server):
    """A step waits until its stacks are written."""
    stacks = tmp_path / "a" / "stacks-0.txt"
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from cubemesh.frameworks.null import program as null\n"
        "def wait_for_stacks(event):\n"
        "    print('waiting', flush=True)\n"
        f"    while not Path({str(stacks)!r}).read_text():\n"
        "        time.sleep(0.01)\n"
        "null._FAILURES['hang'] = wait_for_stacks\n"
    )
    _, send, receive = server(PYTHONPATH=f"{tmp_path}:{SOURCE}")
    assert "ready" in receive()
    send(run=job_file(tmp_path / "a", "hang@1"))
    pid = receive()["pid"]
    output = tmp_path / "a" / "output-0.txt"
    wait_until(lambda: output.exists() and output.read_text().endswith("\n"))
    send(signal=10, pid=pid)
    assert receive() == {"exit": 0, "pid": pid}
    assert "in wait_for_stacks" in stacks.read_text()
    assert read_events(events_path(tmp_path / "a", 0))[-1]["outcome"]["status"] == "ok"


def test_the_output_of_a_worker_is_in_its_folder(tmp_path, server):
    _, send, receive = server()
    assert "ready" in receive()
    send(run=job_file(tmp_path / "a", "segfault@2"))
    receive()
    assert receive()["exit"] == -11
    assert "Segmentation fault" in (tmp_path / "a" / "output-0.txt").read_text()
