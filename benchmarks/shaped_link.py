"""Cost of a slow link for a network with many weights and for one with few.

Two hosts of one device each (two_hosts.py: namespaces of this machine, half of the cores each) are
joined by two links, limited to 1 and to 10 Gb/s, and run `cubemesh run interconnect` over both, as
the papers 002 to 004 compare links. AlexNet communicates 61 million gradients per step, GoogLeNet 7
million, for twice the operations. The batch size is small, since a processor computes so slowly
that communication would otherwise be hidden:

    cost of the slow link   1 - throughput over it / throughput over the fast link

The goal is that AlexNet's cost is significantly larger. Exit code 1 otherwise, 2 where two hosts
cannot be made.

    python benchmarks/shaped_link.py
    python benchmarks/shaped_link.py --batches 16 --steps 12 --json shaped.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from two_hosts import ADDRESSES, missing, two_hosts

LINKS = {"eth1": 10e9, "eth0": 1e9}
"""Interface → bits per second; the fast one first."""
NETWORKS = ("alexnet", "googlenet")

Rate = tuple[float, float, float]
"""Samples per second, and the ends of its interval."""


def rates(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Rate]:
    """(network, link) → throughput, of the records of `cubemesh run --json`."""
    found = {}
    for record in records:
        figure = record["figures"].get("throughput_per_s")
        if record["outcome"] != "ok" or figure is None:
            raise SystemExit(f"{record['run_id']}: {record['outcome_detail']['message']}")
        spec = record["spec"]
        value = figure["value"]
        low, high = (value if figure[end] is None else figure[end] for end in ("low", "high"))
        found[spec["work"]["network"], spec["placement"]["link"]] = (value, low, high)
    return found


def cost(slow: Rate, fast: Rate) -> Rate:
    """What the slow link costs, and the widest that two intervals allow."""
    return 1 - slow[0] / fast[0], 1 - slow[2] / fast[1], 1 - slow[1] / fast[2]


def measure(batches: int, steps: int, store: Path) -> list[Mapping[str, Any]]:
    """The records of both networks over both links."""
    settings = {
        "hosts": ",".join(ADDRESSES),
        "devices": 2,
        "device": "cpu",
        "threads": 1,
        "links": ",".join(LINKS),
        "networks": ",".join(NETWORKS),
        "batches": batches,
        "attribution": "false",
        "data_location": "device",
        "steps": steps,
        "windows": steps,
        "seconds": 0,
        "warmup_seconds": 5,
    }
    words = [w for key, value in settings.items() for w in ("--set", f"{key}={value}")]
    options = ["--json", "--store", str(store)]
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
        for interface, bits_per_s in LINKS.items():
            hosts.shape(bits_per_s, interface=interface)
        done = subprocess.run(
            [sys.executable, "-m", "cubemesh", "run", "interconnect", *words, *options],
            env=os.environ | hosts.environment,
            stdout=subprocess.PIPE,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"cubemesh run interconnect ended with {done.returncode}")
    records: list[Mapping[str, Any]] = json.loads(done.stdout)["records"]
    return records


def summary(found: Mapping[tuple[str, str], Rate]) -> tuple[list[str], bool]:
    """A line for each network and link, what the slow one costs, and whether the goal is met."""
    lines, costs = [], {}
    fast, slow = LINKS
    for network in NETWORKS:
        for link, bits_per_s in LINKS.items():
            value, low, high = found[network, link]
            lines.append(
                f"{network:10} {bits_per_s / 1e9:3.0f} Gb/s {value:7.3f} samples/s "
                f"({low:.3f} to {high:.3f})"
            )
        costs[network] = cost(found[network, slow], found[network, fast])
        value, low, high = costs[network]
        lines.append(
            f"{network:10} the slow link costs {100 * value:.0f} % "
            f"({100 * low:.0f} to {100 * high:.0f})"
        )
    met = costs["alexnet"][1] > costs["googlenet"][2]
    verdict = "suffers more than" if met else "does not suffer significantly more than"
    lines.append(f"AlexNet {verdict} GoogLeNet.")
    return lines, met


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both costs; the exit code as above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2, help="batch size per host")
    parser.add_argument("--steps", type=int, default=8, help="measured steps, a window each")
    parser.add_argument("--store", type=Path, help="keep the records here")
    parser.add_argument("--json", type=Path, help="also write the rates here")
    given = parser.parse_args(arguments)
    if reason := missing():
        print(f"absent: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or Path(folder, "records.sqlite")
        found = rates(measure(given.batches, given.steps, store))
    lines, met = summary(found)
    print("\n".join(lines))
    if given.json:
        plain = [{"network": n, "link": k, "rate": rate} for (n, k), rate in found.items()]
        given.json.write_text(json.dumps(plain, indent=1))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
