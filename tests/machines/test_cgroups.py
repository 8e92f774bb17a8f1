"""Of all limits between the process's control group and the root, the tightest one holds."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cubemesh.cgroups import cgroup_cores, cgroup_memory_bytes, cgroup_paths, oom_kills

ROOT = "/sys/fs/cgroup"


def test_version_2_takes_the_tightest_of_nested_groups(make_tree, v2_mount):
    tree = make_tree(
        {
            "/proc/self/cgroup": "0::/kubepods.slice/pod7.slice/cri-1.scope\n",
            "/proc/self/mountinfo": v2_mount,
            f"{ROOT}/kubepods.slice/cpu.max": "max 100000\n",
            f"{ROOT}/kubepods.slice/pod7.slice/cpu.max": "150000 100000\n",
            f"{ROOT}/kubepods.slice/pod7.slice/cri-1.scope/cpu.max": "400000 100000\n",
            f"{ROOT}/kubepods.slice/memory.max": "8589934592\n",
            f"{ROOT}/kubepods.slice/pod7.slice/cri-1.scope/memory.max": "max\n",
        }
    )
    assert cgroup_cores(tree.root) == 1.5
    assert cgroup_memory_bytes(tree.root) == 8 << 30


def test_version_2_of_a_container_with_its_own_namespace(make_tree, v2_mount):
    tree = make_tree(
        {
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": v2_mount,
            f"{ROOT}/cpu.max": "250000 100000\n",
            f"{ROOT}/memory.max": "1073741824\n",
        }
    )
    assert cgroup_cores(tree.root) == 2.5
    assert cgroup_memory_bytes(tree.root) == 1 << 30


def test_version_1_quota_and_memory(make_tree, v1_mounts):
    tree = make_tree(
        {
            "/proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job/step\n1:name=systemd:/x\n",
            "/proc/self/mountinfo": v1_mounts,
            f"{ROOT}/cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
            f"{ROOT}/cpu,cpuacct/job/cpu.cfs_period_us": "50000\n",
            f"{ROOT}/cpu,cpuacct/job/step/cpu.cfs_quota_us": "-1\n",
            f"{ROOT}/cpu,cpuacct/job/step/cpu.cfs_period_us": "100000\n",
            f"{ROOT}/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            f"{ROOT}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        }
    )
    assert cgroup_cores(tree.root) == 4.0
    assert cgroup_memory_bytes(tree.root) is None


def test_version_1_container_sees_limits_above_it_through_memory_stat(make_tree, v1_mounts):
    mounts = v1_mounts.replace(" / /sys/fs/cgroup/memory ", " /docker/abc /sys/fs/cgroup/memory ")
    tree = make_tree(
        {
            "/proc/self/cgroup": "4:memory:/docker/abc\n",
            "/proc/self/mountinfo": mounts,
            f"{ROOT}/memory/memory.limit_in_bytes": "4294967296\n",
            f"{ROOT}/memory/memory.stat": "cache 1\nhierarchical_memory_limit 2147483648\n",
        }
    )
    assert cgroup_memory_bytes(tree.root) == 2 << 30


def test_the_mounted_group_is_removed_from_the_path(make_tree, v1_mounts):
    mounts = v1_mounts.replace(
        " / /sys/fs/cgroup/cpu,cpuacct ", " /docker/abc /sys/fs/cgroup/cpu,cpuacct "
    )
    quota = {
        f"{ROOT}/cpu,cpuacct/inner/cpu.cfs_quota_us": "50000\n",
        f"{ROOT}/cpu,cpuacct/inner/cpu.cfs_period_us": "100000\n",
    }
    inside = {"/proc/self/cgroup": "3:cpu,cpuacct:/docker/abc/inner\n"}
    assert cgroup_cores(make_tree(quota, inside, {"/proc/self/mountinfo": mounts}).root) == 0.5
    elsewhere = {"/proc/self/cgroup": "3:cpu,cpuacct:/docker/abcdef/inner\n"}
    assert cgroup_cores(make_tree(elsewhere).root) is None


def test_both_versions_side_by_side(make_tree, v1_mounts):
    tree = make_tree(
        {
            "/proc/self/cgroup": "3:cpu,cpuacct:/\n0::/app.scope\n",
            "/proc/self/mountinfo": v1_mounts
            + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            f"{ROOT}/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
            f"{ROOT}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        }
    )
    assert cgroup_cores(tree.root) == 3.0
    assert cgroup_paths(tree.root)["cgroup2"] == "/app.scope"


@pytest.mark.parametrize("content", ["", "max", "x y z", "100000", "0 100000", "100000 0", "\0"])
def test_malformed_or_absent_limits_are_no_limits_or_plain_ones(make_tree, v2_mount, content):
    tree = make_tree(
        {
            "/proc/self/cgroup": "0::/../outside\nrubbish\n",
            "/proc/self/mountinfo": "short line\n - \n" + v2_mount,
            f"{ROOT}/cpu.max": content,
            f"{ROOT}/memory.max": content,
        }
    )
    assert cgroup_cores(tree.root) == (1.0 if content == "100000" else None)
    assert cgroup_memory_bytes(tree.root) == (100000 if content == "100000" else None)


def test_no_control_groups_at_all(make_tree):
    assert cgroup_cores(make_tree().root) is None
    assert cgroup_memory_bytes(make_tree().root) is None


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | st.integers(1000, 10**7), min_size=1, max_size=5))
def test_the_smallest_quota_of_all_parent_groups_applies(make_tree, v2_mount, quotas):
    levels = {}
    path = ""
    for depth, quota in enumerate(quotas):
        levels[f"{ROOT}{path}/cpu.max"] = f"{'max' if quota is None else quota} 100000\n"
        path += f"/level{depth}"
    own = {"/proc/self/cgroup": f"0::{path}\n", "/proc/self/mountinfo": v2_mount}
    # Deeper levels of an earlier example may still lie there; this example's path passes them.
    deeper = {f"{ROOT}{path}/cpu.max": "max 100000\n"}
    set_quotas = [q for q in quotas if q is not None]
    expected = min(set_quotas) / 100000 if set_quotas else None
    assert cgroup_cores(make_tree(levels, own, deeper).root) == expected


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, None),
        ({"/proc/vmstat": "pgfault 3\noom_kill 4\n"}, 4),
        (
            {
                "/proc/self/cgroup": "0::/g\n",
                "/sys/fs/cgroup/g/memory.events": "oom 9\noom_kill 2\n",
                "/proc/vmstat": "oom_kill 4\n",
            },
            2,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/g\n",
                "/sys/fs/cgroup/memory/g/memory.oom_control": "under_oom 0\noom_kill 3\n",
            },
            3,
        ),
    ],
)
def test_oom_kills_of_the_own_group_come_before_those_of_the_machine(
    make_tree, v1_mounts, v2_mount, files, kills
):
    mounts = {"/proc/self/mountinfo": v2_mount + v1_mounts}
    assert oom_kills(make_tree(files, mounts).root) == kills
