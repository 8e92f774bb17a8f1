"""Whether `cubemesh accept` finds planted faults of a machine, in real runs.

    slow-disk     the disk reads at half of its stated rate, or less where reads are uneven
    slow-rank     device 1 is idle after each of its steps, for 0.4 of the step's time
    wrong-result  device 1 changes one element of each result that it receives
    slow-link     the link between two devices is limited, after three tests without the limit,
                  which are the fleet: by `tc` between two hosts made of this machine
                  (two_hosts.py), and with --device cuda by NCCL's transport over sockets

Each fault is planted in a test that first ran without it. A fault is found if the test with it
fails with exit code 99 and names it, and the test without it does not fail. A figure that is too
low while other programs run is not judged, so the machine must do nothing else. Exit code 1 if a
fault was not found, 2 where one cannot be planted here.

    python benchmarks/accept_faults.py
    python benchmarks/accept_faults.py --only wrong-result
    python benchmarks/accept_faults.py --device cuda --json faults.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from two_hosts import ADDRESSES, missing, two_hosts

FAULT = "CUBEMESH_PLANTED_FAULT"
PLANTS = f"""
import os, time

fault = os.environ.get("{FAULT}", "")
if fault == "slow-rank":
    from cubemesh.worker.run import task

    time_steps = task.time_steps

    def slowed(own, meters, program, step, *rest, **more):
        def late():
            start = time.perf_counter()
            step()
            program.synchronize()
            time.sleep(0.4 * (time.perf_counter() - start))

        return time_steps(own, meters, program, late if own.group.rank else step, *rest, **more)

    task.time_steps = slowed
if fault == "wrong-result":
    from cubemesh.worker.run import collectives

    sweep = collectives.sweep

    def faulty(spec, program, group, log):
        count = program.wrong

        def wrong(repetition):
            program._got[:1] += 1
            return count(repetition)

        if group.rank:
            program.wrong = wrong
        return sweep(spec, program, group, log)

    collectives.sweep = faulty
"""
"""A sitecustomize.py: Python runs it in every process of the test."""
SLOW_BITS_PER_S = 200e6
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


@dataclass(frozen=True)
class Fault:
    """A fault, the parts of the test that meet it, and how the test must name it."""

    name: str
    parts: str
    codes: tuple[str, ...]
    words: tuple[str, ...]
    """Patterns of its sentence."""


FAULTS = (
    Fault("slow-disk", "disk", ("check-failed",), ("disk read", "datasheet")),
    Fault("slow-rank", "neighbours", ("slow-device",), (r"cuda:1\b|\b1 of ",)),
    Fault("wrong-result", "links", ("wrong-results",), ("wrong element",)),
    Fault(
        "slow-link",
        "links",
        ("check-failed", "faster-link-unused"),
        ("mean of the fleet|joined by NVLink",),
    ),
)


@dataclass(frozen=True)
class Tested:
    """A test of the machine: its exit code and its document."""

    exit_code: int
    document: Mapping[str, Any]

    @property
    def findings(self) -> list[Mapping[str, Any]]:
        """Those of the answer."""
        return list(self.document["answer"]["findings"])


def names_it(tested: Tested, fault: Fault) -> bool:
    """Whether a test failed for this fault."""
    return tested.exit_code == 99 and any(
        one["code"] in fault.codes and all(re.search(word, one["text"]) for word in fault.words)
        for one in tested.findings
    )


def line_of(fault: Fault, sound: Tested, planted: Tested) -> tuple[str, bool]:
    """The result in a line, and whether the fault was found."""
    found = names_it(planted, fault) and sound.document["verdict"] != "fail"
    texts = [one["text"] for one in planted.findings if one["code"] in fault.codes]
    why = texts[0] if texts else planted.findings[0]["text"]
    verdicts = f"without it {sound.document['verdict']}, with it {planted.document['verdict']}"
    return f"{fault.name:13} {'found' if found else 'NOT FOUND'} ({verdicts}): {why}", found


class Machine:
    """Runs tests of this machine."""

    def __init__(self, folder: Path, device: str, environment: Mapping[str, str]) -> None:
        (folder / "sitecustomize.py").write_text(PLANTS)
        path = filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])
        self.folder, self.device = folder, device
        self.environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path)}

    def test(
        self, fault: Fault, settings: Mapping[str, object], extra: Mapping[str, str] | None = None
    ) -> Tested:
        """One acceptance test of the parts that meet a fault."""
        given = {"parts": fault.parts, "device": self.device, "devices": 2, **settings}
        words = [w for key, value in given.items() for w in ("--set", f"{key}={value}")]
        store = ("--store", str(self.folder / f"{fault.name}.sqlite"))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "cubemesh", "accept", "--quick", "--burn-in", "0"),
                *(*words, *store, "--json"),
            ],
            env={**self.environment, **(extra or {})},
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode not in (0, 1, 99):
            raise SystemExit(f"cubemesh accept ended with {done.returncode} ({fault.name})")
        return Tested(done.returncode, json.loads(done.stdout))


def disk_rates(tested: Tested) -> tuple[float, float]:
    """GB/s of the disk in a test, and the upper end of the interval."""
    (record,) = tested.document["records"]
    figure = record["figures"]["rate_bytes_per_s"]
    return figure["value"] / 1e9, (figure["high"] or figure["value"]) / 1e9


def slow_disk(machine: Machine, fault: Fault) -> tuple[Tested, Tested]:
    """Tests with the measured rate as the stated one, and with twice its upper end."""
    folder = {"folder": machine.folder, "device": "cpu"}
    rate, high = disk_rates(machine.test(fault, folder))
    sound = machine.test(fault, {**folder, "disk_gb_per_s": rate})
    return sound, machine.test(fault, {**folder, "disk_gb_per_s": 2 * high})


def patched(machine: Machine, fault: Fault) -> tuple[Tested, Tested]:
    """Tests without and with a fault in the code of the ranks."""
    return machine.test(fault, {}), machine.test(fault, {}, {FAULT: fault.name})


def slow_link(machine: Machine, fault: Fault) -> tuple[Tested, Tested]:
    """The fourth of four tests without a limit, and one with it."""
    if machine.device == "cuda":
        sound = [machine.test(fault, {}) for _ in range(4)][-1]
        return sound, machine.test(fault, {}, SOCKETS)
    with ExitStack() as undo:
        hosts = undo.enter_context(two_hosts(machine.folder))
        machine.environment |= hosts.environment
        between = {"hosts": ",".join(ADDRESSES), "threads": 1}
        sound = [machine.test(fault, between) for _ in range(4)][-1]
        hosts.shape(SLOW_BITS_PER_S)
        return sound, machine.test(fault, between)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant each fault; the exit code as above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[fault.name for fault in FAULTS], help="this fault alone")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="also write the findings here")
    given = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if given.only in (None, fault.name)]
    needs_hosts = given.device == "cpu" and any(fault.name == "slow-link" for fault in chosen)
    if needs_hosts and (reason := missing()):
        print(f"absent: {reason}", file=sys.stderr)
        return 2
    how = {"slow-disk": slow_disk, "slow-link": slow_link}
    results = {}
    for fault in chosen:
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(Path(folder), given.device, {})
            sound, planted = how.get(fault.name, patched)(machine, fault)
        line, found = line_of(fault, sound, planted)
        print(line, flush=True)
        results[fault.name] = {"found": found, "findings": planted.findings}
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))
    return 0 if all(one["found"] for one in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
