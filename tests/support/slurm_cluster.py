"""A real Slurm: the site's where there is one; else a controller and a node daemon of the tests'
own, of Debian's slurm-wlm, on this host only."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def configuration(folder):
    """A Slurm of one node that has all its files in `folder` and no authentication."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    cores = len(os.sched_getaffinity(0))
    lines = {
        "ClusterName": "cubemesh-test",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmUser": getpass.getuser(),
        "SlurmdUser": getpass.getuser(),
        "AuthType": "auth/none",
        "CredType": "cred/none",
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "MpiDefault": "none",
        "ReturnToService": "2",
        "KillWait": "900",
        "SlurmdParameters": "config_overrides",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmctldPort": str(free_port()),
        "SlurmdPort": str(free_port()),
        "StateSaveLocation": str(folder / "state"),
        "SlurmdSpoolDir": str(folder / "spool"),
        "SlurmctldPidFile": str(folder / "ctld.pid"),
        "SlurmdPidFile": str(folder / "d.pid"),
        "SlurmctldLogFile": str(folder / "ctld.log"),
        "SlurmdLogFile": str(folder / "d.log"),
        "NodeName": f"{host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN",
        "PartitionName": f"main Nodes={host} Default=YES MaxTime=INFINITE State=UP",
    }
    (folder / "slurm.conf").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
    return folder / "slurm.conf"


def answers():
    if shutil.which("sinfo") is None:
        return False
    done = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False)
    return any(state in done.stdout for state in ("idle", "mixed"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm that takes jobs."""
    if answers():
        yield
        return
    daemons = [shutil.which(name) or f"/usr/sbin/{name}" for name in ("slurmctld", "slurmd")]
    if not all(Path(daemon).exists() for daemon in daemons) or shutil.which("sbatch") is None:
        pytest.skip("no Slurm answers here, and slurm-wlm is not installed to start one")
    if os.geteuid() != 0:
        pytest.skip("no Slurm answers here, and starting one needs root")
    folder = tmp_path_factory.mktemp("slurm")
    running = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(configuration(folder)))
        try:
            running += [
                subprocess.Popen([d, "-D"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for d in daemons
            ]
            deadline = time.monotonic() + 60
            while not answers():
                if time.monotonic() > deadline:
                    logs = [p.read_text()[-500:] for p in folder.glob("*.log")]
                    pytest.skip(f"a Slurm of one node did not come up here: {logs}")
                time.sleep(0.5)
            yield
        finally:
            for daemon in reversed(running):
                daemon.terminate()
                daemon.wait()
