"""Power from the kernel's sensors in copied trees, and from a program in place of ipmitool."""

import pytest

from cubemesh.machines.hardware.power_sensors import ask_ipmitool, read_power
from cubemesh.schema import PowerReading

ANSWER = """
    Instantaneous power reading:                   344 Watts
    Minimum during sampling period:                 12 Watts
    Average power reading over sample period:      338 Watts
    Power reading state is:                   activated
"""


@pytest.fixture
def program(tmp_path):
    """Makes an executable that prints a text and ends with a code."""

    def make(text: str, code: int = 0, to: int = 1) -> str:
        file = tmp_path / "ipmitool"
        file.write_text(f"#!/bin/sh\ncat >&{to} <<'END'\n{text}\nEND\nexit {code}\n")
        file.chmod(0o755)
        return str(file)

    return make


def test_the_controllers_reading(program):
    assert ask_ipmitool(program(ANSWER)) == PowerReading(source="ipmitool dcmi", watts=344.0)


@pytest.mark.parametrize(
    ("text", "code", "to", "why"),
    [
        ("Could not open device at /dev/ipmi0", 1, 2, "Could not open device"),
        ("", 0, 1, "no answer"),
        (ANSWER.replace("344", "0"), 0, 1, "0 W"),
        (ANSWER.replace("activated", "deactivated"), 0, 1, "deactivated"),
    ],
)
def test_a_controller_without_a_reading_has_a_reason(program, text, code, to, why):
    assert why in ask_ipmitool(program(text, code, to))


def test_a_program_that_does_not_start_has_a_reason(tmp_path):
    assert "does not start" in ask_ipmitool(str(tmp_path / "none"))


def test_sensors_of_the_kernel(make_tree):
    tree = make_tree(
        {
            "/sys/class/hwmon/hwmon0/name": "power_meter\n",
            "/sys/class/hwmon/hwmon0/power1_average": "412000000\n",
            "/sys/class/hwmon/hwmon1/name": "pmbus\n",
            "/sys/class/hwmon/hwmon1/power2_input": "55500000\n",
            "/sys/class/hwmon/hwmon1/power2_label": "pin\n",
            "/sys/class/hwmon/hwmon1/power1_input": "-1\n",
            "/sys/class/hwmon/hwmon2/power1_input": "broken\n",
            "/sys/class/hwmon/hwmon2/power1_cap": "1000000\n",
        }
    )
    assert read_power(tree) == (
        PowerReading(source="hwmon power_meter", watts=412.0),
        PowerReading(source="hwmon pmbus", watts=55.5, label="pin"),
    )
    assert tree.unknown == []
