"""Commands made by chance from the command line's own grammar: no traceback, no hang, no remains.

The verbs, their options and arguments come from the parser, settings and names from the registries
and files from `fuzz_files.py`, so what is added later is tried without a change here. Each command
runs in a fork of one process that has imported cubemesh, in a folder of its own. A command fails if

    it ends with an exception, prints a traceback, control characters or invalid JSON
    its exit code is not documented (docs/cli.md)
    it and its workers use more than 30 s of processor time, or it waits for what never comes
    it leaves a process, a lock, a folder of a run or half a file, or writes outside its folder

    python benchmarks/fuzz.py                               # 3,000 commands
    python benchmarks/fuzz.py --commands 60 --seed 7 --json fuzz.json
    python benchmarks/fuzz.py --only 7:31                   # one again: its words and its output

Frameworks other than `null` are hidden, so that a command takes milliseconds. Exit code 1 if a
command fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")

import fuzz_fork
from fuzz_files import Files
from fuzz_grammar import Grammar

COMMANDS = 3000


def main(arguments: list[str] | None = None) -> int:
    """Run the commands; 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commands", type=int, default=COMMANDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbs", default="", help="only these, separated by commas")
    parser.add_argument("--no-workers", action="store_true", help="without verbs that measure")
    parser.add_argument("--only", metavar="SEED:N", help="run this one again and show its output")
    parser.add_argument("--jobs", type=int, default=1, help="commands at the same time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every command and code")
    asked = parser.parse_args(arguments)
    began, cpu_s = time.monotonic(), sum(os.times()[:4])
    fuzz_fork.prepare()
    fuzz_fork.build_commands()
    folder = Path(tempfile.mkdtemp(prefix="cubemesh-fuzz-"))
    try:
        files, grammar = (
            Files(folder / "originals"),
            Grammar(asked.verbs, workers=not asked.no_workers),
        )
        if asked.only:
            seed, _, number = asked.only.partition(":")
            return show(run_one(folder, files, grammar, int(seed), int(number)))
        results = run_all(folder, files, grammar, asked)
        complete = len(results) == asked.commands
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = [result for result in results if result["failures"]]
    cpu_s = sum(os.times()[:4]) - cpu_s
    seconds = time.monotonic() - began
    codes = Counter(result["code"] for result in results)
    print(
        f"{len(results):,} commands of {len({r['verb'] for r in results})} verbs, seed "
        f"{asked.seed}: {len(failed)} failed; exit codes "
        + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        + f"; {cpu_s:.1f} s of processor time in {seconds:.0f} s"
    )
    for result in failed:
        show(result, brief=True)
    if asked.json:
        document = {"seed": asked.seed, "cpu_s": round(cpu_s, 1), "commands": results}
        asked.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed or not complete else 0


def run_all(
    folder: Path, files: Files, grammar: Grammar, asked: argparse.Namespace
) -> list[dict[str, Any]]:
    """The result of each command; of `--jobs` processes."""
    pids = []
    for job in range(asked.jobs):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                own = folder / f"job-{job}"
                own.mkdir()
                with (folder / f"{job}.jsonl").open("w", buffering=1) as file:
                    for number in range(job, asked.commands, asked.jobs):
                        result = run_one(own, files, grammar, asked.seed, number)
                        file.write(json.dumps(result) + "\n")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    ended = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(ended):
        print("A process of the fuzzer itself failed; its commands are incomplete.")
    found = [
        json.loads(line)
        for job in range(asked.jobs)
        for line in (folder / f"{job}.jsonl").read_text().splitlines()
    ]
    return sorted(found, key=lambda result: int(result["number"]))


def run_one(folder: Path, files: Files, grammar: Grammar, seed: int, number: int) -> dict[str, Any]:
    """Make command `number` of a seed, run it and check it."""
    chance = random.Random(f"{seed}:{number}")
    place = folder / f"command-{number}"
    work = place / "work"
    work.mkdir(parents=True)
    try:
        chosen = files.place(chance, work)
        verb, words = grammar.command(chance, chosen)
        ended = fuzz_fork.run(words, work, place / "home", waits=grammar.waits(verb, words))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {
        "number": number,
        "seed": f"{seed}:{number}",
        "verb": verb,
        "words": [word.encode(errors="backslashreplace").decode() for word in words],
        "code": ended.code,
        "cpu_s": round(ended.cpu_s, 2),
        "failures": ended.failures,
        "output": ended.output[-4000:] if ended.failures or number < 0 else ended.output[-200:],
    }


def show(result: dict[str, Any], brief: bool = False) -> int:
    """Print a result; 1 if it failed."""
    print(f"\n{result['seed']}  cubemesh {' '.join(result['words'])[:2000]}")
    print(f"  exit code {result['code']}, {result['cpu_s']} s: {'; '.join(result['failures'])}")
    print("  " + result["output"][-1500 if brief else -4000 :].replace("\n", "\n  "))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
