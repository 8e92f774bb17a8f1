"""How hosts are reached, what must be alike on them, and a run on two."""

import dataclasses
import importlib
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cubemesh.errors import UsageError
from cubemesh.model import Collective, Effort, Placement, RunSpec, Status
from cubemesh.results import Store
from cubemesh.runs import Executor
from cubemesh.worker.hosts import Greeting, HostFault, check_alike, command
from cubemesh.worker.remote import address_toward, interface_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEC = RunSpec(
    work=Collective(sizes_bytes=(1 << 16,)),
    placement=Placement(device="cpu", devices=2, threads=1, hosts=("127.0.0.1", "localhost")),
    effort=Effort(steps=2, windows=2, seconds=0.1),
)


def test_a_host_is_reached_by_ssh_by_srun_or_as_asked():
    plain = command("me@a", {"PYTHONPATH": "/x y"})
    assert plain[:-1] == ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "me@a"]
    worker = [sys.executable, "-P", "-m", "cubemesh.worker", "host"]
    assert shlex.split(plain[-1]) == ["env", "PYTHONPATH=/x y", *worker]
    slurm = command("n1", {"SLURM_JOB_ID": "1"})
    assert slurm[0] == "srun"
    assert slurm[-6:] == ["--nodelist=n1", *worker]
    own = command("b", {"SLURM_JOB_ID": "1", "CUBEMESH_SSH": "ssh -p 22"})
    assert own[:4] == ["ssh", "-p", "22", "b"]


def test_software_must_be_the_same():
    def greeting(**software):
        return Greeting(host="h", address="1", port=1, software=software)

    alike = [greeting(torch="2.13", Python="3.11")] * 2
    check_alike(("a", "b"), alike)
    with pytest.raises(HostFault, match=r"host a has torch 2\.13 and host b has 2\.11"):
        check_alike(("a", "b"), [alike[0], greeting(torch="2.11", Python="3.11")])
    with pytest.raises(HostFault, match=r"host a has torch 2\.13 and host b has none"):
        check_alike(("a", "b"), [alike[0], greeting(Python="3.11")])


@pytest.mark.parametrize(
    ("hosts", "devices", "words"),
    [
        (("a",), 2, "name two hosts or more"),
        (("a", "a"), 2, "each once"),
        (("a", "b"), 3, "Set devices=2 or a multiple"),
        (("a", "-oProxyCommand=x"), 2, "'-oProxyCommand=x' is no name of a host"),
    ],
)
def test_hosts_that_cannot_be_meant_are_refused(hosts, devices, words):
    with pytest.raises(UsageError, match=words):
        Placement(hosts=hosts, devices=devices)


def test_the_way_to_a_host_has_an_interface():
    address = address_toward("127.0.0.1")
    assert address == "127.0.0.1"
    assert interface_of(address) == "lo"
    assert interface_of("192.0.2.7") == ""


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


def test_a_host_that_cannot_take_part_is_named_with_what_it_said(run, tmp_path):
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
    assert away.message.endswith("host away is gone: No route to host.")
    assert "host talks said 'Welcome to the cluster'" in talks.message


def two_hosts():
    """The module that makes two hosts; None where that is not possible, and why."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        two = importlib.import_module("two_hosts")
    finally:
        sys.path.remove(str(BENCHMARKS))
    return two, two.missing()


def test_two_workers_that_came_by_a_command_are_one_run(run, tmp_path, nobody_left):
    if not two_hosts()[1]:
        pytest.skip("the next test does the same with two real hosts")
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (record,) = run(str(script), SPEC)
    assert record.ok, record.outcome
    assert len(record.ranks) == 2
    assert record.figure("wrong_elements") == 0
    assert all(abs(rank.clock_offset_s) < 0.1 for rank in record.ranks), "it is one clock"
    assert {phase.rank for phase in record.phases} == {0, 1}
    assert nobody_left(tmp_path / "runs")


def test_two_hosts_with_an_sshd_each(tmp_path):
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("each host needs a core of its own")
    two, lacks = two_hosts()
    if lacks:
        pytest.skip(lacks)
    store = str(tmp_path / "r.db")
    with two.two_hosts(tmp_path) as hosts:
        hosts.shape(1e9)
        words = ["collectives", "-b", "4M", "-e", "4M", "-n", "2", "--device", "cpu"]
        words += ["--hosts", ",".join(two.ADDRESSES), "--store", store]
        done = subprocess.run(
            [sys.executable, "-m", "cubemesh", *words],
            env=os.environ | hosts.environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        names = sorted(hosts.names)
    assert done.returncode == 0, done.stderr
    with Store.open(store) as opened:
        (record,) = opened.records()
    assert sorted(rank.host for rank in record.ranks) == names
    assert all(abs(rank.clock_offset_s) < 0.1 for rank in record.ranks), "it is one clock"
    assert record.figure("wrong_elements") == 0
    assert 1e7 < record.figure("bus_bytes_per_s") < 1.3e8, "a link of 1 Gb/s carries 125 MB/s"
