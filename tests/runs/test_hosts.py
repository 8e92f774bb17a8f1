"""How hosts are reached, what must be alike on them, and a run on two."""

import contextlib
import dataclasses
import importlib
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.rendezvous import SupportsDistributed
from cubemesh.runs import Executor
from cubemesh.schema import Budget, Collective, Gpu, Placement, RunSpec, Status, TrainSteps
from cubemesh.store import Store
from cubemesh.training.checkpoint import load, steps_in
from cubemesh.worker.launch.host_agent import (
    address_toward,
    interface_of,
    processor_name,
    with_names,
)
from cubemesh.worker.launch.multi_host_launcher import Greeting, check_alike
from cubemesh.worker.launch.ssh import HostFault, command
from listening_sockets import SLOW_DATA, attack, listening
from loadable_frameworks import KERAS
from patience import wait_until

EPOCHS = "3"
STOPPING = """
import sys
from pathlib import Path
from cubemesh.training import checkpoint_writer
from stopped_rank import stop_this, watch_only

save = checkpoint_writer.save

def save_then_stop(folder, rank, ranks, checkpoint):
    size_bytes = save(folder, rank, ranks, checkpoint)
    fault = Path({folder!r}, "stops")
    if rank == 1 and checkpoint.step == 10 and fault.exists():
        fault.unlink()  # in the first run only
        stop_this(Path({folder!r}, "stopped-rank"))
    return size_bytes

checkpoint_writer.save = save_then_stop
if "train" in sys.orig_argv:  # not a worker
    watch_only(1, Path({folder!r}, "stopped-rank"))
"""
"""Rank 1 stops itself when its second checkpoint is written."""
SUPPORT = Path(__file__).parents[1] / "support"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEC = RunSpec(
    work=Collective(sizes_bytes=(1 << 16,)),
    placement=Placement(device="cpu", devices=2, threads=1, hosts=("127.0.0.1", "localhost")),
    budget=Budget(steps=2, windows=2, seconds=0.1),
)


def test_a_host_is_reached_by_ssh_by_srun_or_by_the_given_command():
    plain = command("me@a", {"PYTHONPATH": "/x y"})
    assert plain[:-1] == ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "me@a"]
    worker = [sys.executable, "-P", "-m", "cubemesh.worker", "host"]
    assert shlex.split(plain[-1]) == ["env", "PYTHONPATH=/x y", *worker]
    slurm = command("n1", {"SLURM_JOB_ID": "1"})
    assert slurm[0] == "srun"
    assert slurm[-6:] == ["--nodelist=n1", *worker]
    own = command("b", {"SLURM_JOB_ID": "1", "CUBEMESH_SSH": "ssh -p 22"})
    assert own[:4] == ["ssh", "-p", "22", "b"]


@pytest.mark.parametrize(
    ("words", "ssh"),
    [
        (("--hosts", " , "), "ssh"),
        (("--hosts", ""), "ssh"),
        (("--set", "hosts=,"), "ssh"),
        (("--hosts", f"a,{'b' * 5000}"), "ssh"),
        (("--hosts", "a,b"), " "),
        (("--hosts", "a,b"), "ssh -i 'key"),
    ],
)
def test_hosts_and_commands_that_are_invalid_end_with_exit_code_2(
    words, ssh, cubemesh, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUBEMESH_SSH", ssh)
    ended = cubemesh("run", "minibatch", *words, "--store", str(tmp_path / "r.db"))
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1, ended.stderr


def test_software_must_be_the_same():
    def greeting(**software):
        return Greeting(host="h", software=software)

    alike = [greeting(torch="2.13", Python="3.11")] * 2
    check_alike(("a", "b"), alike)
    with pytest.raises(HostFault, match=r"2\.13.*2\.11"):
        check_alike(("a", "b"), [alike[0], greeting(torch="2.11", Python="3.11")])
    with pytest.raises(HostFault, match=r"2\.13"):
        check_alike(("a", "b"), [alike[0], greeting(Python="3.11")])


@pytest.mark.parametrize(
    ("hosts", "devices", "words"),
    [
        (("a",), 2, "hosts=a is not valid"),
        (("a", "a"), 2, "hosts=a,a is not valid"),
        (("a", "b"), 3, "Set devices=2 or a multiple"),
        (("a", "-oProxyCommand=x"), 2, "'-oProxyCommand=x' is not a valid host name"),
        (("a", "b" * 5000), 2, "5000 characters"),
    ],
)
def test_invalid_hosts_are_refused(hosts, devices, words):
    with pytest.raises(UsageError, match=words):
        Placement(hosts=hosts, devices=devices)


def test_the_route_to_a_host_has_an_interface():
    address = address_toward("127.0.0.1")
    assert address == "127.0.0.1"
    assert interface_of(address) == "lo"
    with pytest.raises(OSError, match=r"192\.0\.2\.7"):
        interface_of("192.0.2.7")


def test_a_host_names_the_devices_of_its_ranks():
    gpus = (Gpu(index=3, name="NVIDIA H200", uuid="GPU-3"), Gpu(index=1, name="A", uuid="GPU-1"))
    named = with_names({"event": "rank", "device": "cuda:0"}, gpus)
    assert (named["device_name"], named["device_uuid"]) == ("NVIDIA H200", "GPU-3")
    assert with_names({"event": "rank", "device": "cpu"}, gpus)["device_name"] == processor_name()
    for other in ({"event": "rank", "device": "cuda:2"}, {"event": "window", "device": "cuda:0"}):
        assert with_names(other, gpus) == other


def test_the_name_of_the_processor_is_the_kernels(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Model T @ 2.5GHz: fast\nflags\t\t: fpu\n")
    assert processor_name(cpuinfo) == "Model T @ 2.5GHz: fast"
    cpuinfo.write_text("processor\t: 0\n")
    assert processor_name(cpuinfo) == processor_name(tmp_path / "none") == ""


@pytest.fixture
def run(tmp_path, small_machine, monkeypatch):
    """Runs specs whose hosts are reached by a command in place of ssh."""
    pytest.importorskip("torch")

    def go(ssh, *specs):
        monkeypatch.setenv("CUBEMESH_SSH", ssh)
        with (
            Store.open(str(tmp_path / "r.db")) as store,
            Executor(store, machine=small_machine, runs_folder=tmp_path / "runs") as executor,
        ):
            return executor.run(specs)

    return go


def test_a_host_that_fails_is_named_with_its_output(run, tmp_path):
    script = tmp_path / "ssh"
    script.write_text(
        "#!/bin/sh\nread line\n"
        "case $1 in away) echo No route to host >&2; exit 255;; esac\n"
        "echo Welcome to the cluster\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    asked = [
        dataclasses.replace(SPEC, placement=dataclasses.replace(SPEC.placement, hosts=hosts))
        for hosts in (("away", "b"), ("talks", "b"))
    ]
    away, talks = (record.outcome for record in run(str(script), *asked))
    assert away.status is talks.status is Status.CRASHED, "so that it is tried again"
    assert "host away" in away.message
    assert "No route to host" in away.message
    assert "Welcome to the cluster" in talks.message


SILENT_HOST = """#!{python} -IS
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "framework" in request:
        reply = {{"here": {{"host": "h", "software": {{}}}}}}
    elif "job" in request:
        reply = {{"exits": {{}}, "outputs": {{}}}}
    else:
        reply = {{"clock": 0.0}}
    print(json.dumps(reply), flush=True)
    if "exits" in reply:
        break
"""
"""A host whose ranks end at once, without an event."""


def test_hosts_whose_ranks_report_nothing_are_named(run, tmp_path):
    script = tmp_path / "ssh"
    script.write_text(SILENT_HOST.format(python=sys.executable))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (record,) = run(str(script), SPEC)
    assert record.outcome.status is Status.CRASHED
    ended = r"host (127\.0\.0\.1 ended without an outcome of rank 0|localhost .* of rank 1)"
    assert re.search(ended, record.outcome.message)


def test_a_host_listens_on_no_port_before_its_ranks_meet(no_processes_left):
    """So no other program can take the port, as it could when the agents met at one."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "cubemesh.worker", "host"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        request = {"environment": {}, "framework": "null", "toward": "127.0.0.1"}
        print(json.dumps(request), file=agent.stdin, flush=True)
        greeting = json.loads(agent.stdout.readline())["here"]
        assert sorted(greeting) == ["host", "software"], "it names no port"
        assert not listening(agent.pid)
        agent.stdin.close()
        assert agent.wait() == 1, "its connection was lost"


def test_a_framework_that_trains_on_one_host_is_refused_before_any_is_reached(
    tmp_path, small_machine, monkeypatch, null_spec
):
    monkeypatch.setenv("CUBEMESH_SSH", str(tmp_path / "there is no such command"))
    spec = dataclasses.replace(null_spec(), placement=SPEC.placement)
    with (
        Store.open(str(tmp_path / "r.db")) as store,
        Executor(store, machine=small_machine, runs_folder=tmp_path / "runs") as executor,
    ):
        (record,) = executor.run([spec])
    assert record.outcome.status is Status.UNSUPPORTED
    assert "hosts=127.0.0.1,localhost" in record.outcome.message
    assert "pytorch" in record.outcome.message


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_for_several_hosts_launch_ranks(name):
    line = FRAMEWORKS[name]
    if not line.across_hosts:
        one_host = {"null", "jax", "tensorflow", "tensorflow-xla", *KERAS.values()}
        assert name in one_host or not line.trains
    elif line.installed:
        assert isinstance(line.load(), SupportsDistributed)


def two_hosts():
    """The module that makes two hosts; None where that is not possible, and why."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        two = importlib.import_module("two_hosts")
    finally:
        sys.path.remove(str(BENCHMARKS))
    return two, two.missing()


def test_two_workers_started_by_a_command_are_one_run(run, tmp_path, no_processes_left):
    if not two_hosts()[1]:
        pytest.skip("the next test does the same with two real hosts")
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (record,) = run(str(script), SPEC)
    assert record.ok, record.outcome
    assert len(record.ranks) == 2
    assert record.figure("wrong_elements") == 0
    assert all(abs(rank.clock_offset_s) < 10 for rank in record.ranks), "it is one clock"
    assert {phase.rank for phase in record.phases} == {0, 1}
    assert no_processes_left(tmp_path / "runs")


def test_traces_of_other_hosts_are_stored(run, tmp_path):
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    work = TrainSteps(network="little-cnn", batch_per_device=2, image_size=8)
    budget = Budget(windows=2, seconds=0.1, attribution=True, trace=True)
    (record,) = run(str(script), dataclasses.replace(SPEC, work=work, budget=budget))
    assert record.ok, record.outcome
    assert "event-refused" not in {warning.code for warning in record.warnings}
    assert sorted(record.artifacts) == ["trace", "trace of rank 1"]
    for file in record.artifacts.values():
        assert json.loads(Path(file).read_text())["traceEvents"]


@pytest.fixture(scope="module")
def between(tmp_path_factory):
    """Two hosts with an sshd each; `start` starts a command of cubemesh over them."""
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("each host needs a core of its own")
    two, lacks = two_hosts()
    if lacks:
        pytest.skip(lacks)
    with two.two_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        hosts.shape(1e9)

        def start(store, *words):
            asked = [*words, "--hosts", ",".join(two.ADDRESSES), "--store", str(store)]
            return subprocess.Popen(
                [sys.executable, "-m", "cubemesh", *asked],
                env=os.environ | hosts.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )

        yield SimpleNamespace(hosts=hosts, start=start, addresses=two.ADDRESSES)


def ended(process, store):
    """The records of a command that ends well."""
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    with Store.open(str(store)) as opened:
        return sorted(opened.records(), key=lambda record: record.started_utc)


def test_two_hosts_with_an_sshd_each(between, tmp_path):
    store = tmp_path / "r.db"
    words = ["collectives", "-b", "4M", "-e", "4M", "-n", "2", "--device", "cpu"]
    (record,) = ended(between.start(store, *words), store)
    assert sorted(rank.host for rank in record.ranks) == sorted(between.hosts.names)
    assert all(abs(rank.clock_offset_s) < 10 for rank in record.ranks), "it is one clock"
    assert {rank.device_name for rank in record.ranks} == {processor_name()}
    assert record.figure("wrong_elements") == 0
    assert 0 < record.figure("bus_bytes_per_s") < 1.3e8, "a link of 1 Gb/s carries 125 MB/s"


def processes_on(name):
    """(name, process) of all on a host that have not ended meanwhile."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    found = []
    for pid in map(int, pids.stdout.split()):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found.append((process.name(), process))
    return found


def rank_on(name):
    """The rank on a host: the worker's process there that started no other."""
    workers = [process for kind, process in processes_on(name) if kind == "cubemesh-worker"]
    return [worker for worker in workers if not worker.children()]


def sockets_on(name):
    return {s for kind, p in processes_on(name) if kind != "sshd" for s in listening(p.pid)}


def test_ranks_of_two_hosts_listen_on_the_network_between_them_only(between, tmp_path):
    names, trace = between.hosts.names, tmp_path / "trace"
    words = ["train", "little-cnn", "--epochs", "100000", "--set", "image_size=8"]
    words += ["--set", "device=cpu", "--set", "threads=1"]
    (tmp_path / "slow.py").write_text(SLOW_DATA)
    words += ["--data", f"{tmp_path}/slow.py:data", "--batch-per-device", "4"]
    training = between.start(tmp_path / "r.db", *words)
    try:
        wait_until(lambda: all(map(sockets_on, names)) or training.poll() is not None)
        found = [sockets_on(name) for name in names]
        attack(trace, sorted(found[0] | found[1]))
    finally:
        training.send_signal(signal.SIGINT)
        training.communicate()
    assert [{address for address, _ in each} for each in found] == [{a} for a in between.addresses]
    assert not trace.exists()


def test_a_training_on_two_hosts_resumes_after_a_rank_was_stopped(between, tmp_path, monkeypatch):
    store, checkpoints = tmp_path / "r.db", tmp_path / "checkpoints"
    (tmp_path / "sitecustomize.py").write_text(STOPPING.format(folder=str(tmp_path)))
    (tmp_path / "stops").touch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{SUPPORT}:{os.environ.get('PYTHONPATH', '')}")
    training = between.start(
        store,
        *("train", "little-cnn", "--epochs", EPOCHS, "--checkpoints", str(checkpoints)),
        *("--checkpoint-every", "5", "--keep", "99", "--set", "heartbeat_timeout_s=2"),
        *("--set", "image_size=8", "--set", "device=cpu", "--set", "threads=1"),
    )
    first, second = ended(training, store)
    outcome = first.outcome
    assert (outcome.status, outcome.facts["rank"]) == (Status.TIMED_OUT, 1), outcome
    assert "most recent call first" in outcome.facts["stacks_of_others"]["0"], "from its host"
    assert second.ok, second.outcome
    assert second.figure("resumed_at_step") >= 5
    assert second.figure("epochs_trained") == int(EPOCHS)
    assert [rank.host for rank in second.ranks] == list(between.hosts.names)
    last = max(steps_in(checkpoints))
    one, other = (load(checkpoints, last, rank, 2).snapshot.weights for rank in range(2))
    assert {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in other.items()}
    with Store.open(str(store)) as opened:
        series = opened.series(second.run_id)
    sampled = {s.rank for s in series if s.name == "cpu_utilization_percent"}
    assert sampled == {0, 1}, "each host samples its own processors"
    assert not any(rank_on(name) for name in between.hosts.names), "every rank has ended"
