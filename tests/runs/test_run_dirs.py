import subprocess
import sys

from cubemesh.runs.run_dirs import RunFolders, default_runs_folder

HOLD = """
import sys
from pathlib import Path
from cubemesh.runs.run_dirs import RunFolders
folders = RunFolders(Path(sys.argv[1]))
folders.new_run()
print(folders.path, flush=True)
sys.stdin.read()
"""


def test_the_cache_folder_is_the_users(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(default_runs_folder()) == "/somewhere/cubemesh/runs"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/me")
    assert str(default_runs_folder()) == "/home/me/.cache/cubemesh/runs"


def test_each_run_has_a_folder_and_closing_removes_all(tmp_path):
    folders = RunFolders(tmp_path / "runs")
    first, second = folders.new_run(), folders.new_run()
    assert first != second
    assert first.is_dir()
    assert second.is_dir()
    folders.close()
    assert not folders.path.exists()


def test_folders_of_killed_runners_are_removed_and_used_ones_are_not(tmp_path):
    def hold():
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return process, tmp_path / process.stdout.readline().strip()

    (killed, left), (alive, used) = hold(), hold()
    killed.kill()
    killed.wait()
    assert (left / "run-1").is_dir()
    mine = RunFolders(tmp_path)
    assert not left.exists()
    assert (used / "run-1").is_dir()
    mine.close()
    alive.communicate("")
    killed.stdin.close()
    killed.stdout.close()
