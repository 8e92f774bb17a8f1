"""Mounts, from the text of the kernel."""

from pathlib import Path

import pytest

from cubemesh.data.mounts import Mount, mount_in, mount_of

TABLE = r"""23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 23 0:52 / /net/image\040sets rw,relatime shared:9 - nfs4 server:/export\040one rw,vers=4.2
broken
41 23 0:53 /
"""


@pytest.mark.parametrize(
    ("device", "mount", "network"),
    [
        ("8:1", Mount("ext4", "/dev/sda1", "/"), False),
        ("0:52", Mount("nfs4", "server:/export one", "/net/image sets"), True),
    ],
)
def test_type_source_and_place_of_a_mount(device: str, mount: Mount, network: bool) -> None:
    found = mount_in(TABLE, device)
    assert found == mount
    assert found.is_network == network


def test_what_is_not_in_the_table_is_unknown(tmp_path: Path) -> None:
    assert mount_in(TABLE, "0:53") is None
    assert mount_of(tmp_path / "nowhere") is None
    assert str(Mount("nfs4", "server:/x", "/net")) == "nfs4 (server:/x, mounted at /net)"
