"""A network namespace, entered by a process of its own."""

import pytest

from script_server import run_code

SCRIPT = """
import ctypes, os, signal, socket
from cubemesh.frameworks.private_network import PR_GET_PDEATHSIG, PR_SET_PDEATHSIG
from cubemesh.frameworks.private_network import enter_private_network
libc, found = ctypes.CDLL(None), ctypes.c_int()
libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
user = os.getuid()
print(enter_private_network())
libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(found))
with socket.create_server(("", 0)) as server:
    socket.create_connection(("127.0.0.1", server.getsockname()[1])).close()
print([name for _, name in socket.if_nameindex()], os.getuid() == user, found.value)
"""


def test_it_has_a_loopback_interface_and_nothing_else():
    printed = run_code(SCRIPT)
    if printed.startswith("False"):
        pytest.skip("this system permits no network namespace")
    assert printed == "True\n['lo'] True 9\n"
