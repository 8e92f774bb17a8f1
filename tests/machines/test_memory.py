"""Memory, its limits, and the note about a total that may still grow."""

from cubemesh.machines.memory import read_memory


def blocks(count: int, hexadecimal: str = "8000000") -> dict[str, str]:
    folder = "/sys/devices/system/memory"
    files = {f"{folder}/memory{n}/state": "online\n" for n in range(count)}
    return {f"{folder}/block_size_bytes": f"{hexadecimal}\n", **files}


def test_memory_of_a_laptop(make_tree, laptop):
    tree = make_tree(laptop, blocks(125))
    memory = read_memory(tree)
    assert memory.total_bytes == 16000000 << 10
    assert memory.available_bytes == 9000000 << 10
    assert memory.swap_bytes == 2097148 << 10
    assert memory.cgroup_limit_bytes is None
    assert memory.present_bytes == 125 * (128 << 20)
    assert memory.usable_bytes == memory.total_bytes
    assert tree.unknown == []


def test_usable_memory_is_limited_by_the_control_group(make_tree, laptop):
    laptop["/sys/fs/cgroup/user.slice/memory.max"] = "4294967296\n"
    assert read_memory(make_tree(laptop)).usable_bytes == 4 << 30


def test_a_virtual_machine_that_grows_has_a_note(make_tree, laptop):
    tree = make_tree(laptop, blocks(256, "40000000"))
    memory = read_memory(tree)
    assert memory.installed_bytes == 256 << 30
    (note,) = tree.unknown
    assert note.what.startswith("memory")
    assert "15.3 GiB" in note.why
    assert "256 GiB" in note.why


def test_without_files_everything_is_unknown(make_tree):
    tree = make_tree({"/sys/devices/system/memory/block_size_bytes": "no number"})
    memory = read_memory(tree)
    assert memory.usable_bytes is None
    assert memory.installed_bytes is None
    assert [u.what for u in tree.unknown] == ["total memory", "available memory", "swap space"]
