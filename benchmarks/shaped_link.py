"""Cost of a slow link for a network with many weights and for one with few.

Two hosts of one device each (two_hosts.py: namespaces of this machine, half of the cores each) are
joined by two links, limited to 10 and to 1 Gb/s (`--gbps`), and run `cubemesh run interconnect`
over both, as the papers 002 to 004 compare links. AlexNet communicates 61 million gradients per
step, GoogLeNet 7 million, for twice the operations. On processors the batch size is small, since
they compute so slowly that communication would otherwise be hidden. With `--device cuda` each host
has one GPU, and NCCL communicates by TCP:

    cost of the slow link   1 - throughput over it / throughput over the fast link

The goal is that AlexNet's cost is significantly larger. Exit code 1 otherwise, 2 where two hosts
cannot be made.

    python benchmarks/shaped_link.py
    python benchmarks/shaped_link.py --batches 16 --steps 12 --json shaped.json
    python benchmarks/shaped_link.py --device cuda --gbps 100,10 --batches 64
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

FAST, SLOW = "eth1", "eth0"
"""Interfaces."""
MANY_WEIGHTS, FEW_WEIGHTS = "alexnet", "googlenet"
GPU_SETTINGS = {"precision": "bf16", "layout": "nhwc"}

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


def measure(
    device: str,
    networks: Sequence[str],
    links: Mapping[str, float],
    batches: int,
    steps: int,
    store: Path,
) -> list[Mapping[str, Any]]:
    """The records of the networks over both links."""
    settings = {
        "hosts": ",".join(ADDRESSES),
        "devices": 2,
        "device": device,
        "links": ",".join(links),
        "networks": ",".join(networks),
        "batch_sizes": batches,
        "attribution": "false",
        "data_location": "device",
        "steps": steps,
        "windows": steps,
        "seconds": 0,
        "warmup_seconds": 5,
    }
    settings |= {"threads": 1} if device == "cpu" else GPU_SETTINGS
    words = [w for key, value in settings.items() for w in ("--set", f"{key}={value}")]
    options = ["--json", "--store", str(store)]
    with (
        tempfile.TemporaryDirectory() as folder,
        two_hosts(Path(folder), gpus=device == "cuda") as hosts,
    ):
        for interface, bits_per_s in links.items():
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


def summary(
    found: Mapping[tuple[str, str], Rate], links: Mapping[str, float]
) -> tuple[list[str], bool]:
    """A line for each network and link, what the slow one costs, and whether the goal is met."""
    lines, costs = [], {}
    for network in dict.fromkeys(network for network, _ in found):
        for link, bits_per_s in links.items():
            value, low, high = found[network, link]
            lines.append(
                f"{network:12} {bits_per_s / 1e9:3.0f} Gb/s {value:9.3f} samples/s "
                f"({low:.3f} to {high:.3f})"
            )
        costs[network] = cost(found[network, SLOW], found[network, FAST])
        value, low, high = costs[network]
        lines.append(
            f"{network:12} the slow link costs {100 * value:.0f} % "
            f"({100 * low:.0f} to {100 * high:.0f})"
        )
    met = costs[MANY_WEIGHTS][1] > costs[FEW_WEIGHTS][2]
    verdict = "suffers more than" if met else "does not suffer significantly more than"
    lines.append(f"AlexNet {verdict} GoogLeNet.")
    return lines, met


def two_rates(text: str) -> tuple[float, float]:
    """Bits per second of `10,1` in Gb/s, the faster one first."""
    fast, slow = (1e9 * float(rate) for rate in text.split(","))
    if not fast > slow > 0:
        raise ValueError(text)
    return fast, slow


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all costs; the exit code as above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--networks", default=f"{MANY_WEIGHTS},{FEW_WEIGHTS}")
    parser.add_argument(
        "--gbps",
        type=two_rates,
        default="10,1",
        metavar="FAST,SLOW",
        help="rates of the two links, the faster one first (default: 10,1)",
    )
    parser.add_argument("--batches", type=int, default=2, help="batch size per host")
    parser.add_argument("--steps", type=int, default=8, help="measured steps, a window each")
    parser.add_argument("--store", type=Path, help="keep the records here")
    parser.add_argument("--json", type=Path, help="also write the rates here")
    given = parser.parse_args(arguments)
    networks = given.networks.split(",")
    if not {MANY_WEIGHTS, FEW_WEIGHTS} <= {*networks}:
        parser.error(f"--networks {given.networks}: {MANY_WEIGHTS} and {FEW_WEIGHTS} are compared")
    if reason := missing():
        print(f"absent: {reason}", file=sys.stderr)
        return 2
    links = dict(zip((FAST, SLOW), given.gbps, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or Path(folder, "records.sqlite")
        work = (given.device, networks, links, given.batches, given.steps, store)
        found = rates(measure(*work))
    lines, met = summary(found, links)
    print("\n".join(lines))
    if given.json:
        plain = [
            {"network": n, "link": k, "bits_per_s": links[k], "rate": rate}
            for (n, k), rate in found.items()
        ]
        given.json.write_text(json.dumps(plain, indent=1))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
