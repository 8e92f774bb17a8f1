"""Commands made by chance: a few of them, always the same, and faults that are found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cubemesh.cli import app

pytest.importorskip("onnx")
FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


def fuzzed(*words, **options):
    return subprocess.run(
        [sys.executable, FUZZ, *words], capture_output=True, text=True, check=False, **options
    )


def test_sixty_commands_end_as_documented(tmp_path):
    written = tmp_path / "fuzz.json"
    done = fuzzed("--commands", "60", "--seed", "7", "--no-workers", "--json", written)
    assert done.returncode == 0, done.stdout + done.stderr
    commands = json.loads(written.read_text())["commands"]
    assert len({command["verb"] for command in commands}) > 12
    assert [command["seed"] for command in commands] == [f"7:{n}" for n in range(60)]
    assert len({command["code"] for command in commands}) > 2


FAULTS = {
    "an exception": ("raise RuntimeError('planted')", "a traceback"),
    "an exit code": ("import sys; sys.exit(7)", "exit code 7 is not documented"),
    "an escape": ("print('\\x1b[31m')", "control characters on stdout"),
    "a process": (
        "import subprocess; subprocess.Popen(['sleep', '1000'])",
        "left processes: sleep",
    ),
    "a file elsewhere": ("open('../../../planted', 'w').close()", "writes outside its folder"),
    "a wait": ("import time; time.sleep(1000)", "idly"),
    "a computation": ("while True: pass", "of processor time"),
    "half a file": ("open('.page.html.abcdef', 'w').close()", "left half a file"),
    "JSON": ("print('{NaN}')", "invalid JSON"),
}
PLANTED = """
import sys
sys.path.insert(0, {folder!r})
import fuzz_fork
from pathlib import Path
fuzz_fork.prepare()
from cubemesh.cli import app

@app.command()
def planted(json: bool = False):
    {code}

fuzz_fork.IDLE_S[False], fuzz_fork.END_S, fuzz_fork.MOST_CPU_S = 1.0, 1.0, 1
work = Path({place!r}, "a", "work")
work.mkdir(parents=True)
words = ["planted", "--json"] if "JSON" in {name!r} else ["planted"]
print(fuzz_fork.run(words, work, work.parent / "home", waits=False).failures)
"""


@pytest.mark.parametrize("name", FAULTS)
def test_what_must_not_happen_is_found(tmp_path, name):
    code, failure = FAULTS[name]
    script = PLANTED.format(folder=str(FUZZ.parent), code=code, place=str(tmp_path), name=name)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert failure in done.stdout, done.stdout + done.stderr


def test_every_verb_is_tried(script):
    grammar = script("fuzz_grammar").Grammar()
    assert len(grammar.verbs) == len(app.registered_commands)
