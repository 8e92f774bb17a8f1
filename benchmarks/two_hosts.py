"""Two hosts made of this one: network namespaces joined by two cables, with an sshd in each.

    namespace cm-a-PID   eth0 10.77.0.1 ──── bridge ──── 10.77.0.2 eth0   namespace cm-b-PID
                         eth1 10.78.0.1 ──── bridge ──── 10.78.0.2 eth1

This machine is the third end of the first bridge, 10.77.0.3, so that a runner here reaches both.
Each namespace has a name of its own and one half of the cores. `tc` limits what each sends: a token
bucket in bits per second, behind a delay. With GPUs the first host has the first of them, the
second the second. Needs root, iproute2 and openssh-server; `missing` lists what is not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
HERE = "10.77.0.3"
SUBNETS = ("10.77.0", "10.78.0")
"""Of eth0, eth1."""
PORT = 2222
PATIENCE_S = 600
LEFT_OVER = re.compile(r"cm(-[ab]|\d+)-\d+")
"""Names of namespaces and of interfaces."""
BURST_MS = 1
"""What the token bucket lets through at once, as time at its rate; 64 KiB at least, a packet as
large as offloading makes them."""


@dataclass(frozen=True)
class Hosts:
    """How to reach them."""

    names: tuple[str, str]
    environment: Mapping[str, str]
    """Environment that a runner needs in addition."""

    def shape(
        self, bits_per_s: float | None, delay_ms: float = 0.0, interface: str = "eth0"
    ) -> None:
        """What each host may send through an interface, and how much later it arrives; None takes
        the limit away."""
        for name in self.names:
            inside = ["ip", "netns", "exec", name, "tc", "qdisc"]
            subprocess.run(
                [*inside, "del", "dev", interface, "root"], capture_output=True, check=False
            )
            if bits_per_s is None:
                continue
            burst = max(64 * 1024, int(bits_per_s / 8 * BURST_MS / 1000))
            rate = ["tbf", "rate", f"{bits_per_s:.0f}bit", "burst", str(burst), "latency", "50ms"]
            _run(*inside, "add", "dev", interface, "root", "handle", "1:", *rate)
            if delay_ms:
                later = ["netem", "limit", "100000", "delay", f"{delay_ms}ms"]
                _run(*inside, "add", "dev", interface, "parent", "1:", *later)


def missing() -> str:
    """What two hosts cannot be made without here; empty where nothing lacks."""
    if os.geteuid() != 0:
        return "two hosts need root, for network namespaces"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("sshd", "openssh-server")):
        if shutil.which(program) is None and not Path("/usr/sbin", program).exists():
            return f"two hosts need {program} ({package})"
    probe = f"cm-probe-{os.getpid()}"
    made = subprocess.run(
        ["ip", "netns", "add", probe], capture_output=True, text=True, check=False
    )
    if made.returncode:
        return f"network namespaces are not permitted here: {made.stderr.strip()}"
    _run("ip", "netns", "del", probe)
    return ""


@contextlib.contextmanager
def two_hosts(folder: Path, gpus: bool = False) -> Iterator[Hosts]:
    """The hosts, until the block ends, with a GPU each if `gpus`; `folder` takes keys and logs.
    Waits for the two hosts of another process, which have the same addresses."""
    names = (f"cm-a-{os.getpid()}", f"cm-b-{os.getpid()}")
    servers: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(open(Path(tempfile.gettempdir(), "cubemesh-two-hosts"), "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_left_overs()
        for name in names:
            _run("ip", "netns", "add", name)
            undo.callback(_run, "ip", "netns", "del", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for number, subnet in enumerate(SUBNETS):
            bridge = f"cm{number}-{os.getpid()}"
            _run("ip", "link", "add", bridge, "type", "bridge")
            undo.callback(_run, "ip", "link", "del", bridge)
            _run("ip", "link", "set", bridge, "up")
            if number == 0:
                _run("ip", "addr", "add", f"{HERE}/24", "dev", bridge)
            for end, name in enumerate(names, start=1):
                _cable(f"cm{number}{end}-{os.getpid()}", bridge, name, f"eth{number}", subnet, end)
        key = _keys(folder)
        for number, name in enumerate(names):
            servers.append(_sshd(folder, name, number, gpus))
            undo.callback(_end, servers[-1])
        ssh = f"ssh -p {PORT} -i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        environment = {"CUBEMESH_SSH": f"{ssh} -o BatchMode=yes -o LogLevel=ERROR"}
        for address, server in zip(ADDRESSES, servers, strict=True):
            _wait(environment["CUBEMESH_SSH"], address, server)
        yield Hosts(names, environment)


def _remove_left_overs() -> None:
    """Namespaces and bridges of a process that was killed: their addresses are these hosts'."""
    for kind, key in (("netns", "name"), ("link", "ifname")):
        listed = subprocess.run(["ip", "-j", kind], capture_output=True, text=True, check=True)
        for one in json.loads(listed.stdout or "[]"):
            if LEFT_OVER.fullmatch(name := one[key]):  # some go with others
                subprocess.run(["ip", kind, "del", name], capture_output=True, check=False)


def _cable(cable: str, bridge: str, name: str, interface: str, subnet: str, end: int) -> None:
    peer = ["type", "veth", "peer", "name", interface, "netns", name]
    _run("ip", "link", "add", cable, *peer)
    _run("ip", "link", "set", cable, "master", bridge, "up")
    _run("ip", "-n", name, "addr", "add", f"{subnet}.{end}/24", "dev", interface)
    _run("ip", "-n", name, "link", "set", interface, "up")


def _keys(folder: Path) -> Path:
    for name in ("host", "user"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    shutil.copy(folder / "user.pub", folder / "authorized")
    return folder / "user"


def _sshd(folder: Path, name: str, number: int, gpus: bool) -> subprocess.Popen[bytes]:
    """An sshd in a namespace, with the namespace's name for its host, half of the cores and, if
    `gpus`, the GPU of its number."""
    config = folder / f"sshd-{number}"
    own_gpu = f"SetEnv CUDA_VISIBLE_DEVICES={number}\n" if gpus else ""
    config.write_text(
        f"Port {PORT}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\n"
        f"StrictModes no\nPidFile none\n{own_gpu}"
    )
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd goes when it has no privileges
    cores = sorted(os.sched_getaffinity(0))
    half = cores[: len(cores) // 2] if number == 0 else cores[len(cores) // 2 :]
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    start = (
        f"hostname {name} && exec taskset -c {','.join(map(str, half))} {sshd} -D -e -f {config}"
    )
    with open(folder / f"sshd-{number}.log", "wb") as log:
        return subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", start],
            stdout=log,
            stderr=log,
        )


def _wait(ssh: str, address: str, server: subprocess.Popen[bytes]) -> None:
    """Until a server answers; RuntimeError if it ends first, or after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        words = [*ssh.split(), address, "true"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{address} does not answer: {done.stderr.strip()}")
        time.sleep(0.2)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    server.wait()


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(missing() and f"{missing()}.")
