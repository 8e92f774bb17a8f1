"""Which fields of a ceiling go together? What a `Ceiling` is refused for."""

from __future__ import annotations

from cubemesh.errors import UsageError


def check_ceiling(
    operation: str,
    size: int | None,
    shape: tuple[int, int, int] | None,
    folder: str | None,
    pinned: bool,
) -> None:
    """UsageError where a field is given that the operation does not take, or misses one."""
    if shape is not None and (operation != "matrix_product" or size is not None or min(shape) < 1):
        raise UsageError(
            f"shape={','.join(map(str, shape))} does not fit: it is m,n,k of a "
            "matrix_product, each 1 or more, and stands in place of size."
        )
    if (operation == "disk_read") != (folder is not None):
        raise UsageError(
            f"operation={operation} with folder={folder} does not fit: disk_read "
            "needs a folder on the disk it is to read, and nothing else takes one."
        )
    if not pinned and operation not in ("host_to_device", "device_to_host"):
        raise UsageError(
            f"pinned=false goes with host_to_device and device_to_host, and the operation is "
            f"{operation}. Leave it out."
        )
