"""The whole probe: on this machine, on copies of others' files, and on no files at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cubemesh.machines import probe
from cubemesh.schema import Machine
from cubemesh.schema.serialization import from_plain, to_plain


def test_this_machine():
    machine = probe()
    assert machine.hostname
    assert 1 <= machine.cpu.usable_cores <= (os.cpu_count() or 1)
    assert machine.cpu.affinity_cores == len(os.sched_getaffinity(0))
    assert machine.memory.usable_bytes
    assert machine.memory.usable_bytes > 1 << 26
    assert machine.software.packages["psutil"]


def test_it_agrees_with_psutil():
    psutil = pytest.importorskip("psutil")
    machine = probe()
    assert machine.cpu.logical_cores == psutil.cpu_count()
    assert machine.memory.total_bytes == psutil.virtual_memory().total
    assert machine.memory.swap_bytes == psutil.swap_memory().total


def test_machine_and_id_survive_json():
    machine = probe()
    again = from_plain(Machine, json.loads(json.dumps(to_plain(machine))))
    assert again == machine
    assert again.machine_id == machine.machine_id


def test_the_id_is_the_same_in_the_next_process():
    script = "from cubemesh.machines import probe; print(probe().machine_id)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == probe().machine_id, done.stderr


def test_a_copy_of_a_laptops_files(make_tree, laptop):
    machine = probe(make_tree(laptop).root)
    assert machine.hostname == "laptop"
    assert machine.cpu.usable_cores == 4
    assert machine.memory.total_bytes == 16000000 << 10
    assert machine.virtualization is None
    assert machine.software.system.startswith("Debian GNU/Linux 12")


def test_no_files_at_all_leave_everything_unknown(tmp_path):
    machine = probe(tmp_path / "nothing-here")
    assert machine.cpu.model is None
    assert machine.cpu.usable_cores == 1
    assert machine.memory.total_bytes is None
    assert machine.memory.usable_bytes is None
    assert {
        "processor model and instruction sets",
        "logical processors",
        "physical cores",
        "processor affinity",
        "processor caches",
        "NUMA nodes",
        "total memory",
    } <= {u.what for u in machine.unknown}
    assert all(u.why for u in machine.unknown)


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"a: b\n\n: \n-1-\n" * 50])
def test_malformed_files_never_raise(make_tree, laptop, content):
    tree = make_tree(dict.fromkeys(laptop, content))
    machine = probe(tree.root)
    assert machine.cpu.model is None
    assert machine.memory.total_bytes is None
    assert machine.cpu.caches == ()


def test_folders_in_place_of_files_never_raise(tmp_path, laptop):
    for path in laptop:
        (tmp_path / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    assert probe(tmp_path).cpu.logical_cores is None


def test_a_root_may_be_given_as_text(make_tree, laptop):
    root = make_tree(laptop).root
    assert probe(str(root)).cpu == probe(Path(root)).cpu
