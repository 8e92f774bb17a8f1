"""Shell completion of values, driven by the environment variables that the shells set."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cubemesh.cli import completion
from cubemesh.experiments.registry import EXPERIMENTS, SUITES
from cubemesh.networks import NETWORKS
from cubemesh.store.location import default_path

pytestmark = pytest.mark.usefixtures("forked_servers")

ROOT = Path(__file__).parents[2]
Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The command `cubemesh` on the PATH, a home and a cache of its own."""
    home = tmp_path_factory.mktemp("home")
    command = home / "bin" / "cubemesh"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom cubemesh.cli import main\nmain()\n")
    command.chmod(0o755)
    return {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_DATA_HOME": str(home / "data"),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }


@pytest.fixture(scope="module")
def run(environment) -> Callable[..., str]:
    """Runs a command, of cubemesh or of a shell; its output."""

    def output(*words: str, **more: str) -> str:
        done = subprocess.run(
            words, env={**environment, **more}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return output


@pytest.fixture(scope="module")
def complete(environment, cubemesh) -> Complete:
    """Completions of a line as fish asks for them: values without their help."""

    def values(line: str) -> list[str]:
        asked = {
            **{name: environment[name] for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME")},
            "_CUBEMESH_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_ARGS": line,
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in asked.items():
                patch.setenv(name, value)
            done = cubemesh()
        assert done.returncode == 0, done.stderr
        return [item.split("\t")[0] for item in done.stdout.splitlines() if item]

    return values


@pytest.fixture(scope="module")
def in_zsh(run, environment) -> Callable[[str], str]:
    """The line that an interactive zsh has after TAB. Control-X writes it into a file."""
    folder = Path(environment["HOME"]) / "zsh"
    folder.mkdir()
    (folder / ".zshrc").write_text(
        "autoload -Uz compinit && compinit -D\n"
        f"{run('cubemesh', _CUBEMESH_COMPLETE='source_zsh')}\n"
        "PS1=ready\nshow() { print -r -- $BUFFER >$OUT.part; mv $OUT.part $OUT; exit }\n"
        "zle -N show; bindkey '^I' complete-word '^X' show\n"
    )

    def line(typed: str) -> str:
        shown = folder / "line"
        shown.unlink(missing_ok=True)
        ours, theirs = pty.openpty()
        own = {"ZDOTDIR": str(folder), "OUT": str(shown), "TERM": "xterm"}
        shell = subprocess.Popen(
            ["zsh", "-d", "-i"],  # no files of the system's
            env={**environment, **own},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        screen = b""
        while b"ready" not in screen:
            screen += os.read(ours, 65536)
        os.write(ours, f"{typed}\t\x18".encode())
        with contextlib.suppress(OSError):  # the other end is closed
            while os.read(ours, 65536):
                pass
        os.close(ours)
        assert shell.wait() == 0, screen
        return shown.read_text().rstrip("\n")

    return line


@pytest.fixture(scope="module")
def in_bash(run) -> Callable[..., list[str]]:
    """COMPREPLY of bash itself, with the words split at `=` as bash splits them."""
    script = run("cubemesh", _CUBEMESH_COMPLETE="source_bash")

    def replies(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        code = (
            f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
            "_cubemesh_completion cubemesh\nprintf '%s\\n' \"${COMPREPLY[@]}\""
        )
        return run("bash", "--norc", "-c", code).split()

    return replies


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cubemesh run mini", ["minibatch"]),
        ("cubemesh run doc-", [s for s in SUITES if s.startswith("doc-")]),
        ("cubemesh run weak-scaling str", ["strong-scaling", "strategies"]),
        ("cubemesh networks resnet-1", ["resnet-18", "resnet-101", "resnet-152"]),
        ("cubemesh tune gp", ["gpt2", "gpt2-large", "gpt2-medium", "gpt2-xl"]),
        ("cubemesh experiments cei", ["ceilings"]),
        ("cubemesh predict resnet-50 --machine hgx-h2", ["hgx-h200", "hgx-h200-ndr"]),
        ("cubemesh run minibatch --set precision=b", ["precision=bf16"]),
        ("cubemesh run minibatch --set layo", ["layout=nchw", "layout=nhwc"]),
        ("cubemesh run minibatch --set networks=resnet-18,alex", ["networks=resnet-18,alexnet"]),
        ("cubemesh run minibatch --set ceil", ["ceiling=true", "ceiling=false"]),
        ("cubemesh run minibatch --against layout=nh", ["layout=nhwc"]),
        ("cubemesh run weak-scaling --set mod", ["mode=weak", "mode=constant-batch"]),
        ("cubemesh run minibatch --set mod", []),
        ("cubemesh train little-cnn --set schedu", [f"schedule={w}" for w in ("constant", "step",
         "cosine")]),
        ("cubemesh results --framework jax", ["jax"]),
        ("cubemesh results --format j", ["jsonl", "junit"]),
        ("cubemesh run nonsense-", []),
    ],
)  # fmt: skip
def test_values_of_a_line(complete, line, expected):
    assert sorted(complete(line)) == sorted(expected)


def test_every_experiment_suite_and_network_is_offered(complete):
    assert set(complete("cubemesh run ")) == {*EXPERIMENTS, *SUITES}
    assert complete("cubemesh train ") == list(NETWORKS)


def test_keys_are_those_of_the_experiments_in_the_command(complete):
    keys = complete("cubemesh run minibatch --set ")
    assert {"networks=", "batch_sizes=", "precision=", "steps="} <= set(keys)
    assert "global_batch_sizes=" not in keys
    assert "global_batch_sizes=" in complete("cubemesh run strong-scaling minibatch --set ")


def test_bash_completes_words_that_it_split_at_an_equals_sign(in_bash):
    assert in_bash("cubemesh", "run", "mini") == ["minibatch"]
    assert in_bash("cubemesh", "run", "minibatch", "--set", "precision", "=", "b") == ["bf16"]
    assert in_bash("cubemesh", "run", "minibatch", "--set", "layout", "=") == ["nchw", "nhwc"]
    first = ("--set", "precision", "=", "bf16")
    words = ("cubemesh", "run", "minibatch", *first, "--set", "layout", "=", "nh")
    assert in_bash(*words) == ["nhwc"]
    words = ("cubemesh", "run", "minibatch", *first, "--set", "ceiling", "=", "t")
    assert in_bash(*words) == ["true"]
    assert in_bash("cubemesh", "run", "minibatch", *first, "pow") == ["power"]


def test_zsh_gets_values_with_their_help(run):
    found = run(
        "cubemesh", _CUBEMESH_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="cubemesh run mini"
    )
    assert found.startswith('_arguments \'*: :(("minibatch":"How do throughput')


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_accepts_the_script(run):
    script = run("cubemesh", _CUBEMESH_COMPLETE="source_zsh")
    assert "compdef _cubemesh_completion cubemesh" in script
    code = f"autoload -Uz compinit && compinit -D\n{script}\necho $_comps[cubemesh]"
    assert run("zsh", "-f", "-c", code).strip() == "_cubemesh_completion"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("run mini", "run minibatch "),
        ("run minibatch --set precision=b", "run minibatch --set precision=bf16 "),
        ("run minibatch --set layo", "run minibatch --set layout=n"),
        ("run minibatch --fail-b", "run minibatch --fail-below "),
        ("run nonsense-", "run nonsense-"),
    ],
)
def test_tab_in_zsh_completes_the_line(in_zsh, typed, line):
    assert in_zsh(f"cubemesh {typed}") == f"cubemesh {line}"


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(run):
    script = run("cubemesh", _CUBEMESH_COMPLETE="source_fish")
    found = run("fish", "--no-config", "-c", f"{script}\ncomplete -C 'cubemesh run mini'")
    assert found.split("\t")[0] == "minibatch"


def test_run_ids_are_those_of_the_store(complete, cubemesh, environment, tmp_path):
    store = str(ROOT / "benchmarks" / "records" / "2026-11-22-one-h200-captured.sqlite")
    shutil.copy(store, tmp_path / "s.sqlite")
    ids = [
        r["run_id"]
        for r in json.loads(
            cubemesh("results", "--json", "--store", str(tmp_path / "s.sqlite")).stdout
        )["records"]
    ]
    line = f"cubemesh results --store {tmp_path / 's.sqlite'} "
    assert sorted(complete(line)) == sorted(ids)
    assert complete(line + ids[0][:4]) == [ids[0]]
    assert complete("cubemesh results ") == []
    folder = Path(environment["XDG_DATA_HOME"]) / "cubemesh"
    folder.mkdir(parents=True)
    shutil.copy(store, folder / "results.sqlite")
    assert sorted(complete("cubemesh compare ")) == sorted(ids)
    (folder / "results.sqlite").write_text("not a database")
    assert complete("cubemesh compare ") == []


def test_the_default_store_is_that_of_the_store(monkeypatch):
    assert completion.default_store() == default_path()
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert completion.default_store() == default_path()


def test_names_are_read_from_a_cache_that_follows_the_package(monkeypatch):
    found = completion._names()
    path = Path(os.environ["XDG_CACHE_HOME"]) / "cubemesh" / "completion.json"
    assert json.loads(path.read_text()) == found

    def fail() -> dict:
        raise AssertionError("collected again")

    with monkeypatch.context() as patch:
        patch.setattr(completion, "collect_names", fail)
        assert completion._names() == found
    monkeypatch.setattr(completion, "_signature", lambda: "newer")
    monkeypatch.setattr(completion, "collect_names", lambda: {"networks": {"new": ""}})
    assert completion.networks("n") == [("new", "")]
    path.write_text("{damaged")
    assert completion.networks("n") == [("new", "")]


def test_a_completion_from_the_cache_imports_nothing_heavy(environment, complete):
    complete("cubemesh run mini")  # writes the cache
    code = (
        "import sys, cubemesh.cli\n"
        "try:\n    cubemesh.cli.main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'networkx', 'sqlalchemy', 'psutil'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['cubemesh']\n{code}"],
        env={
            **environment,
            "_CUBEMESH_COMPLETE": "complete_zsh",
            "_TYPER_COMPLETE_ARGS": "cubemesh run mini",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "minibatch" in done.stdout


def test_install_completion_writes_the_script_of_the_shell(run, environment):
    home = Path(environment["HOME"])
    assert "bash completion installed" in run("cubemesh", "--install-completion", "bash")
    script = home / ".bash_completions" / "cubemesh.sh"
    assert "complete_bash" in script.read_text()
    assert str(script) in (home / ".bashrc").read_text()
    assert "fish completion installed" in run("cubemesh", "--install-completion", "fish")
    assert (home / ".config" / "fish" / "completions" / "cubemesh.fish").exists()
