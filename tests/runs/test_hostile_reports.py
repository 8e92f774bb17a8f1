"""Ranks and hosts that report what they should not: the run goes on or fails, the suite goes on."""

import json
import os
import shlex
import sys

import pytest

from cubemesh.runs import Executor
from cubemesh.schema import Budget, Collective, Placement, RunSpec, Status
from cubemesh.store import Store
from cubemesh.worker.launch import ssh
from cubemesh.worker.launch.host_replies import parse_reply

HOSTILE_RANK = """
import glob, os
from cubemesh.frameworks.null.program import *
from cubemesh.frameworks.null import program
def capabilities():
    (path,) = glob.glob(os.environ["CUBEMESH_RUNS_FOLDER"] + "/run-*/events-0.jsonl")
    with open(path, "ab") as file:
        for line in LINES:
            file.write(line.encode() + b"\\n")
    return program.capabilities()
"""
AGENT = """#!{python}
import json, sys, time
name = sys.argv[1]
def say(**reply):
    print(json.dumps(reply), flush=True)
deep = "[" * 100_000
for line in sys.stdin:
    request = json.loads(line)
    if "environment" in request:
        if name == "no-software":
            say(here={{"host": name}})
        say(here={{"host": name, "software": {{}}}})
    elif "ping" in request:
        say(clock=time.perf_counter())
    elif "job" in request:
        rank = int(name != "a")
        if name == "deep":
            print('{{"rank": 1, "event": ' + deep, flush=True)
        elif name == "thief":
            say(rank=0, event={{}})
        elif name == "evaluator":
            say(store={{"id": 0, "op": "eval", "key": "a"}})
        elif name == "tracer":
            say(rank=1, trace="not base64")
        say(rank=rank, event=dict(event="rank", t=0, host=name, device="cpu", threads=1))
        if name == "b":
            say(rank=1, event=dict(event="artifact", t=0, name="trace", file="{secret}"))
            say(rank=1, event=dict(event="window", t=0))
            say(rank=1, event=dict(event=dict()))
        say(rank=rank, event=dict(event="outcome", t=0, outcome=dict(status="ok")))
        say(exits={{}}, outputs={{}})
"""


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "id_rsa"
    file.write_text("key")
    return file


@pytest.fixture
def run(tmp_path, small_machine):
    def go(*specs):
        with (
            Store.open(str(tmp_path / "r.db")) as store,
            Executor(store, machine=small_machine, runs_folder=tmp_path / "runs") as executor,
        ):
            return executor.run(specs)

    return go


def test_a_rank_that_reports_nonsense(run, null_spec, secret, tmp_path, monkeypatch):
    lines = [
        json.dumps({"event": "artifact", "t": 0, "name": "trace", "file": str(secret)}),
        json.dumps({"event": "enter", "t": 0}),
        json.dumps({"event": "window", "t": 0, "window": {"phase": "measure"}}),
        json.dumps({"event": "progress", "t": 0}),
        "[" * 100_000,
    ]
    (tmp_path / "hostilelib.py").write_text(HOSTILE_RANK.replace("LINES", repr(lines)))
    (tmp_path / "sitecustomize.py").write_text(
        "import cubemesh.frameworks as f, dataclasses\n"
        "f.FRAMEWORKS['null'] = dataclasses.replace(f.FRAMEWORKS['null'], module='hostilelib')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    for record in run(null_spec(), null_spec(seed=1)):
        assert record.ok, record.outcome
        assert record.artifacts == {}
        events, files = (w.cause for w in record.warnings if w.code == "event-refused")
        assert "4 events of rank 0" in events
        assert "rank 0" in files
    assert secret.read_text() == "key"


def test_hosts_that_report_nonsense(run, secret, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    agent = tmp_path / "ssh"
    agent.write_text(AGENT.format(python=sys.executable, secret=secret))
    agent.chmod(0o755)
    monkeypatch.setenv("CUBEMESH_SSH", str(agent))

    def spec(*hosts):
        return RunSpec(
            work=Collective(sizes_bytes=(1 << 16,)),
            placement=Placement(device="cpu", devices=2, threads=1, hosts=hosts),
            budget=Budget(steps=2, windows=2, seconds=0.1),
        )

    hostile = ("no-software", "deep", "thief", "evaluator", "tracer")
    *failed, last = run(*(spec("a", name) for name in hostile), spec("a", "b"))
    for name, record in zip(hostile, failed, strict=True):
        assert record.outcome.status is Status.CRASHED, name
        assert f"host {name} " in record.outcome.message
        assert len(record.outcome.message) < 1000
    assert last.ok, last.outcome
    assert last.artifacts == {}
    events, files = (w.cause for w in last.warnings if w.code == "event-refused")
    assert "2 events of rank 1 on b" in events
    assert "rank 1" in files
    assert secret.read_text() == "key"


def test_a_reply_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(ssh, "MOST_BYTES", 1000)
    host = ssh.RemoteHost("endless", {"CUBEMESH_SSH": "sh -c 'cat /dev/zero'"})
    with pytest.raises(ssh.HostFault, match="host endless "):
        host.receive(None)
    host.close()
    host.wait()


@pytest.mark.parametrize(
    ("command", "timeout_s", "words"),
    [
        ("exec cat /dev/zero 3>&1 >&2", 0.5, "did not reply"),
        ("head -c 3000000 /dev/zero >&2; echo nonsense", None, "nonsense"),
        (
            "head -c 3000000 /dev/zero >&2; echo >&2; echo No route to host >&2; exit 255",
            None,
            "No route",
        ),
    ],
    ids=["endless", "nonsense", "away"],
)
def test_only_the_end_of_a_hosts_errors_is_kept(command, timeout_s, words):
    host = ssh.RemoteHost("loud", {"CUBEMESH_SSH": shlex.join(["sh", "-c", command])})
    with pytest.raises(ssh.HostFault, match=f"host loud .*{words}"):
        host.receive(timeout_s)
    assert len(host._last_errors) <= ssh.ERROR_BYTES
    host.close()
    host.wait()


@pytest.mark.parametrize(
    "reply",
    [
        7,
        {},
        {"here": 7},
        {"here": {"host": "h", "software": {"Python": 3}}},
        {"fault": 7},
        {"clock": "noon"},
        {"clock": float("nan")},
        {"clock": 1.0, "fault": "x"},
        {"rank": 1},
        {"rank": "1", "event": {}},
        {"rank": 1, "event": 7},
        {"rank": 1, "event": {}, "stacks": ""},
        {"rank": 1, "event": {}, "trace": ""},
        {"rank": 1, "trace": 7},
        {"trace": ""},
        {"event": {}},
        {"exits": {}},
        {"exits": {"0": "1"}, "outputs": {}},
        {"exits": {"0": 10**30}, "outputs": {}},
        {"exits": {}, "outputs": {"0": 7}},
        {"rank": 0, "stacks": "\ud800"},
        {"store": 7},
        {"rank": 0, "store": {}, "stacks": ""},
    ],
)
def test_a_reply_of_another_shape_is_refused(reply):
    with pytest.raises(ValueError, match=r"\w"):
        parse_reply(json.dumps(reply).encode())


def test_a_server_that_something_interferes_with(run, null_spec, tmp_path, monkeypatch):
    """A library that writes into the protocol of the server from a worker."""
    (tmp_path / "sitecustomize.py").write_text(
        "import cubemesh.worker.forkserver as f\n"
        "reply = f.Server._reply\n"
        "def wrong(self, **fields):\n"
        "    reply(self, **({'exit': None} if 'exit' in fields else fields))\n"
        "f.Server._reply = wrong\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    (record,) = run(null_spec("error@5"))
    assert record.outcome.status is Status.CRASHED
