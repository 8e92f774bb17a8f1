"""A network of its own for this process and those it forks: Linux network namespaces.

For libraries that listen on all interfaces, without authentication and without a setting for that.
The namespace has a loopback interface and nothing else, so that its ports exist for these processes
only. Without CAP_SYS_ADMIN a user namespace is entered too, in which this user keeps the same id
(network_namespaces(7), user_namespaces(7)).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
_LOOPBACK = b"lo"


def enter_private_network() -> bool:
    """Leave the host's network for a private one; False where the system does not permit that. The
    process must have one thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    signal = ctypes.c_int()
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(signal))
    try:
        if libc.unshare(CLONE_NEWNET):
            if libc.unshare(CLONE_NEWNET | CLONE_NEWUSER):
                return False
            # Entering a user namespace clears the signal at the end of the parent.
            libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.value))
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _bring_up_loopback()
    except OSError:
        return False
    return True


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", _LOOPBACK, 0)
        _, flags = struct.unpack("16sh22x", fcntl.ioctl(control, SIOCGIFFLAGS, request))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", _LOOPBACK, flags | IFF_UP))
