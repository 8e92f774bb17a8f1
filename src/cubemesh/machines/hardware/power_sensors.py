"""Power of the whole machine: readings of its management controller (BMC) and of the kernel.

`ipmitool dcmi power reading` asks the controller for the power at the machine's supply (Data Center
Manageability Interface 1.5, section 6.6.1) through the local device /dev/ipmi0, mostly as root; no
network is used. Sensors of the kernel are /sys/class/hwmon/hwmon*/power*_average and _input, in
microwatts (Documentation/hwmon/sysfs-interface.rst): `power_meter` is ACPI's meter of the whole
machine, others measure what their label names.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

from cubemesh.machines.files import Tree
from cubemesh.schema import PowerReading

IPMI_DEVICES = ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")
SENSORS = "/sys/class/hwmon"
WHOLE_MACHINE = "power_meter"
WAIT_S = 10.0
"""Limit of an answer of the controller, which takes up to some seconds."""
MOST_WATTS = 1e6
MOST_SENSORS = 64

_INSTANT = re.compile(r"Instantaneous power reading\s*:\s*(\d{1,7})\s*Watts")
_STATE = re.compile(r"Power reading state is\s*:\s*(\w+)")


def read_power(tree: Tree) -> tuple[PowerReading, ...]:
    """The readings; none where no sensor answers, with a note if the controller fails."""
    return (*_controller(tree), *_kernel(tree))


def _controller(tree: Tree) -> Iterator[PowerReading]:
    if not tree.live or not any(map(tree.exists, IPMI_DEVICES)):
        return
    what = "power of the whole machine from its BMC"
    program = shutil.which("ipmitool")
    if program is None:
        tree.missing(what, "there is a BMC, and ipmitool is not installed")
        return
    found = ask_ipmitool(program)
    if isinstance(found, str):
        tree.missing(what, found)
    else:
        yield found


def ask_ipmitool(program: str) -> PowerReading | str:
    """The controller's reading, or the reason why there is none."""
    command = [program, "-I", "open", "dcmi", "power", "reading"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        return f"ipmitool does not answer within {WAIT_S:g} s"
    except (OSError, ValueError) as error:
        return f"ipmitool does not start: {error}"
    watts, state = _INSTANT.search(answer.stdout), _STATE.search(answer.stdout)
    if answer.returncode or watts is None:
        said = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
        return f"ipmitool dcmi power reading fails: {said[0][:200] if said else 'no answer'}"
    if state is not None and state[1] != "activated":
        return f"the BMC's power reading is {state[1]}"
    if not 0 < int(watts[1]) < MOST_WATTS:
        return f"the BMC's power reading is {watts[1]} W"
    return PowerReading(source="ipmitool dcmi", watts=float(watts[1]))


def _kernel(tree: Tree) -> Iterator[PowerReading]:
    found = 0
    for number in tree.numbered(SENSORS, "hwmon"):
        folder = f"{SENSORS}/hwmon{number}"
        name = (tree.text(f"{folder}/name") or "sensor")[:40]
        for sensor in _sensors(tree.names(folder)):
            microwatts = tree.number(f"{folder}/{sensor}_average")
            if microwatts is None:
                microwatts = tree.number(f"{folder}/{sensor}_input")
            if microwatts is None or not 0 < microwatts < MOST_WATTS * 1e6:
                continue
            found += 1
            if found > MOST_SENSORS:
                tree.missing("some power sensors", f"the first {MOST_SENSORS} are read")
                return
            label = (tree.text(f"{folder}/{sensor}_label") or sensor)[:40]
            yield PowerReading(
                source=f"hwmon {name}",
                watts=microwatts / 1e6,
                label=None if name == WHOLE_MACHINE else label,
            )


def _sensors(names: list[str]) -> list[str]:
    """`power1`, `power2`, … of a folder's files."""
    found = {
        match[1]
        for name in names
        if (match := re.match(r"(power\d{1,4})_(?:average|input)$", name))
    }
    return sorted(found, key=lambda sensor: int(sensor.removeprefix("power")))
