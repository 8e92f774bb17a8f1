"""Commands made by chance: a few of them, always the same, and faults that are found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cubemesh.cli import app

pytest.importorskip("onnx")
FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


FAULTS = {
    "nothing": ("print('fine')", ""),
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
PROGRAM = """
import json, os, sys
from pathlib import Path
folder, faults, words = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
sys.path.insert(0, folder)
import fuzz, fuzz_fork
fuzz_fork.prepare()

def plant():
    from cubemesh.cli import app

    @app.command()
    def planted(code: str, json: bool = False):
        exec(code)

    fuzz_fork.IDLE_S[False], fuzz_fork.END_S, fuzz_fork.MOST_CPU_S = 1.0, 1.0, 1
    found = {}
    for name, (code, _) in faults.items():
        work = Path(name.replace(" ", "-"), "work").absolute()
        work.mkdir(parents=True)
        words = ["planted", code, "--json"] if name == "JSON" else ["planted", code]
        found[name] = fuzz_fork.run(words, work, work.parent / "home", waits=False).failures
    Path("planted.json").write_text(json.dumps(found))

if (pid := os.fork()) == 0:  # the commands made by chance do not know the planted verb
    try:
        fuzz_fork.prepare()
        plant()
    finally:
        os._exit(0)
os.waitpid(pid, 0)
sys.exit(fuzz.main(words))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Planted faults and sixty commands, of one process that has imported what commands import:
    its folder, and how it ended."""
    folder = tmp_path_factory.mktemp("fuzz")
    commands = ("--commands", "60", "--seed", "7", "--no-workers", "--json", "fuzz.json")
    words = [sys.executable, "-c", PROGRAM, str(FUZZ.parent), json.dumps(FAULTS), *commands]
    return folder, subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def found(ended):
    """What is found of each planted fault."""
    folder, done = ended
    written = folder / "planted.json"
    assert written.exists(), done.stdout + done.stderr
    return json.loads(written.read_text())


def test_sixty_commands_end_as_documented(ended):
    folder, done = ended
    assert done.returncode == 0, done.stdout + done.stderr
    commands = json.loads((folder / "fuzz.json").read_text())["commands"]
    assert len({command["verb"] for command in commands}) > 12
    assert [command["seed"] for command in commands] == [f"7:{n}" for n in range(60)]
    assert len({command["code"] for command in commands}) > 2


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "nothing"])
def test_what_must_not_happen_is_found(found, name):
    assert any(FAULTS[name][1] in failure for failure in found[name]), found[name]


def test_a_command_without_a_fault_has_no_failure(found):
    assert found["nothing"] == []


def test_every_verb_is_tried(script):
    grammar = script("fuzz_grammar").Grammar()
    assert len(grammar.verbs) == len(app.registered_commands)
