import shutil
from pathlib import Path

import cubemesh
from cubemesh.runs.code_version import MEASURING, code_version


def test_the_code_version_is_a_version_and_a_digest():
    version, digest = code_version().split("+")
    assert version == cubemesh.__version__
    assert len(digest) == 12
    assert int(digest, 16) >= 0


def test_only_sources_that_measure_change_the_code_version(tmp_path):
    package = tmp_path / "cubemesh"
    source = Path(cubemesh.__file__).parent

    def version():
        code_version.cache_clear()
        return code_version(package)

    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    before = version()
    with open(package / "runs" / "executor.py", "a") as file:
        file.write("# a comment\n")
    (package / "worker" / "__pycache__").mkdir()
    (package / "worker" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert version() == before
    with open(package / "worker" / "run.py", "a") as file:
        file.write("# a comment\n")
    after = version()
    assert after != before
    (package / "networks" / "zoo" / "mine.py").write_text("")
    assert version() not in (before, after)
    code_version.cache_clear()


def test_every_measuring_file_exists():
    package = Path(cubemesh.__file__).parent
    assert [name for name in MEASURING if not (package / name).exists()] == []
