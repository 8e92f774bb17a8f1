"""Memory policy and huge pages of a process, set in a process of its own and read back."""

import os
import platform
import re
from pathlib import Path

import pytest

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema import Placement
from cubemesh.worker.launch import memory_policy
from cubemesh.worker.launch.memory_policy import (
    SET_MEMPOLICY,
    allowed_nodes,
    apply_memory_settings,
    check_huge_pages,
    policy_nodes,
    set_policy,
)


def in_child(work):
    """What `work` returns, as text, in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as end:
        text = end.read().decode()
    os.waitpid(child, 0)
    return text


def test_the_default_changes_nothing():
    assert in_child(lambda: apply_memory_settings(Placement())) == "None"


def policy_of_new_memory():
    """The kernel's word for the policy of this process's memory."""
    words = re.findall(r"(?m)^[0-9a-f]+ (\S+)", Path("/proc/self/numa_maps").read_text())
    return ",".join(sorted(set(words)))


@pytest.mark.skipif(platform.machine() not in SET_MEMPOLICY, reason="no number of the system call")
@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="the kernel has no NUMA")
@pytest.mark.parametrize(
    ("policy", "word"), [("interleave", "interleave"), ("preferred", "prefer")]
)
def test_a_policy_is_that_of_the_process(policy, word):
    def work():
        set_policy(policy, (allowed_nodes()[0],))
        return policy_of_new_memory()

    found = in_child(work)
    if "refuses" in found:
        pytest.skip(found)
    assert word in found


def test_the_nodes_of_a_policy():
    assert policy_nodes(Placement(memory_policy="interleave"), (0, 2)) == (0, 2)
    assert policy_nodes(Placement(memory_policy="preferred"), (0, 2)) == (0,)
    assert policy_nodes(Placement(memory_policy="preferred", numa_node=2), (0, 2)) == (2,)


@pytest.mark.parametrize(
    ("placement", "nodes", "why"),
    [
        (Placement(memory_policy="interleave"), (0,), "one NUMA node"),
        (Placement(memory_policy="preferred", numa_node=1), (0, 2), "nodes 0, 2"),
    ],
)
def test_what_cannot_be_chosen_is_unsupported(placement, nodes, why):
    with pytest.raises(Unsupported, match=why):
        policy_nodes(placement, nodes)


def test_the_mask_of_nodes_and_a_refusal(monkeypatch):
    monkeypatch.setattr(memory_policy.platform, "machine", lambda: "x86_64")
    seen = []

    def call(number, mode, mask, bits):
        seen.append((number, mode, list(mask), bits.value))
        return 0

    set_policy("interleave", (0, 1, 64), call)
    assert seen == [(238, 3, [3, 1], 129)]
    with pytest.raises(Unsupported, match="refuses set_mempolicy"):
        set_policy("preferred", (0,), lambda *_: -1)
    monkeypatch.setattr(memory_policy.platform, "machine", lambda: "vax")
    with pytest.raises(Unsupported, match="vax"):
        set_policy("preferred", (0,), call)


def test_allowed_nodes_of_a_status_file(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tx\nMems_allowed_list:\t0-1,4\n")
    assert allowed_nodes(status) == (0, 1, 4)
    assert allowed_nodes(tmp_path / "missing") == (0,)


@pytest.mark.parametrize("text", ["always madvise [never]\n", None])
def test_without_huge_pages_there_is_nothing_to_disable(tmp_path, text):
    enabled = tmp_path / "enabled"
    if text:
        enabled.write_text(text)
    with pytest.raises(Unsupported, match="no transparent huge pages"):
        check_huge_pages(enabled)


@pytest.mark.skipif(
    not memory_policy.HUGE_PAGES.exists() or "[never]" in memory_policy.HUGE_PAGES.read_text(),
    reason="the kernel gives no transparent huge pages",
)
def test_huge_pages_are_disabled_for_the_process():
    def work():
        apply_memory_settings(Placement(huge_pages="never"))
        return Path("/proc/self/status").read_text()

    enabled = re.search(r"THP_enabled:\s*(\d)", in_child(work))
    if enabled is None:
        pytest.skip("the kernel does not report it")
    assert enabled[1] == "0"
