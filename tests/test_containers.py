"""Containerfiles: checked everywhere; built by `pytest -m sweep` where a builder works."""

import io
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

dockerfile_parse = pytest.importorskip("dockerfile_parse", reason="needs the extra dev")
ROOT = Path(__file__).parent.parent
ALL_FILES = sorted((ROOT / "containers").glob("*/Containerfile"))
TOOLKIT = ROOT / "containers" / "cuda" / "Containerfile"
"""A base for the others; it installs nothing of cubemesh."""
FILES = [path for path in ALL_FILES if path != TOOLKIT]
CONSTRAINTS = dict(
    line.lower().replace("_", "-").split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)
HADOLINT = Path(sys.executable).parent / "hadolint"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, value) of a file, in order, without comments."""
    parser = dockerfile_parse.DockerfileParser(fileobj=io.BytesIO(path.read_bytes()))
    return [
        (one["instruction"], one["value"])
        for one in parser.structure
        if one["instruction"] != "COMMENT"
    ]


def arguments(found: list[tuple[str, str]]) -> dict[str, str]:
    """The defaults of the build arguments."""
    pairs = (value.split("=", 1) for name, value in found if name == "ARG")
    return {name: value.strip('"') for name, value in pairs}


def problems(found: list[tuple[str, str]], *, base_only: bool = False) -> list[str]:
    """What is wrong with a file; `base_only` for one whose user and entry point its images set."""
    wrong = []
    values: dict[str, list[str]] = {}
    for name, value in found:
        values.setdefault(name, []).append(value)
    defaults = arguments(found)
    for named in values["FROM"]:
        base = re.sub(r"\$\{(\w+)\}", lambda m: defaults.get(m[1], ""), named)
        if not re.search(r":\d+\.\d+\.\d+[\w.-]*$", base):
            wrong.append(f"base without a full version: {base}")
    users = [i for i, (name, _) in enumerate(found) if name == "USER"]
    if base_only:
        pass
    elif not users or found[users[-1]][1] in ("root", "0"):
        wrong.append("runs as root")
    elif any(name == "RUN" and "apt-get" in value for name, value in found[users[-1] :]):
        wrong.append("installs packages as the user")
    for value in values.get("COPY", []):
        wrong += [f"copies {s}" for s in value.split()[:-1] if not (ROOT / s).exists()]
    for value in values.get("RUN", []):
        if "apt-get install" in value and not (
            "--no-install-recommends" in value and "rm -rf /var/lib/apt/lists" in value
        ):
            wrong.append(f"leaves package lists: {value}")
        if "pip install" in value and "--no-cache-dir" not in value:
            wrong.append(f"leaves a cache: {value}")
    if not base_only and not values.get("ENTRYPOINT", [""])[-1].startswith("["):
        wrong.append("an entry point in a shell does not receive signals")
    return wrong


def test_there_is_a_file_for_each_framework():
    assert [path.parent.name for path in ALL_FILES] == [
        *("cuda", "inference", "jax", "keras", "pytorch", "tensorflow")
    ]


def test_the_base_with_the_toolkit_is_sound():
    found = instructions(TOOLKIT)
    assert problems(found, base_only=True) == []
    (base,) = [value for name, value in found if name == "FROM"]
    assert "-devel-" in base, "with nvcc and the headers"
    (install,) = [value for name, value in found if name == "RUN"]
    assert "userdel" in install, "the images on it use the number 1000"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_each_image_is_built_on_a_base_for_processors_or_for_gpus(path):
    found = instructions(path)
    assert [value for name, value in found if name == "FROM"] == ["${BASE}"]
    assert "python:3.11" in arguments(found)["BASE"]
    environment = " ".join(value for name, value in found if name == "ENV")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in environment


def test_the_framework_of_each_image_has_one_version():
    for path in FILES:
        defaults = arguments(instructions(path))
        package = next(value for name, value in defaults.items() if name != "BASE")
        for name in (package, *GPU_PACKAGES.get(package, ())):
            assert name.partition("[")[0] in CONSTRAINTS, f"{name} of {path.parent.name}"


GPU_PACKAGES = {
    "tensorflow-cpu": ("tensorflow[and-cuda]",),
    "onnxruntime": ("onnxruntime-gpu[cuda,cudnn]",),
    "jax": ("jaxlib", "jax[cuda12]"),
}
"""Package → what replaces it on GPUs."""


def test_the_page_has_every_image_and_its_build_argument():
    page = (ROOT / "docs" / "containers.md").read_text()
    for path in ALL_FILES:
        assert f"`containers/{path.parent.name}/Containerfile`" in page
    for packages in GPU_PACKAGES.values():
        assert packages[-1] in page


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_a_containerfile_is_sound(path):
    assert problems(instructions(path)) == []


@pytest.mark.skipif(not HADOLINT.exists(), reason="needs hadolint (extra dev, Linux on x86-64)")
@pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: path.parent.name)
def test_hadolint_finds_no_fault(path):
    done = subprocess.run(
        [str(HADOLINT), "--no-color", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_it_installs_extras_that_exist_with_the_tested_versions(path):
    (install,) = [value for name, value in instructions(path) if "pip install" in value]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', install)
    assert set(extras.split(",")) <= set(EXTRAS)
    assert "--constraint constraints.txt" in install
    (argument,) = re.findall(r"\$\{(\w+)\}", install)
    package = arguments(instructions(path))[argument]
    assert any(p.startswith(package) for extra in EXTRAS for p in flat(extra))


def flat(extra: str) -> list[str]:
    """The packages of an extra, with those of the extras that it names."""
    found = []
    for package in EXTRAS[extra]:
        own = re.fullmatch(r"cubemesh\[([\w,]+)\]", package)
        found += [p for e in own[1].split(",") for p in flat(e)] if own else [package]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_what_is_copied_is_not_ignored(path):
    included = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source.rstrip("/")
        for name, value in instructions(path)
        if name == "COPY"
        for source in value.split()[:-1]
    }
    assert copied == included
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {project["project"]["readme"], *project["project"]["license-files"]}
    assert needed | {p.split("/")[0] for p in wheel["packages"]} <= copied
    assert set(wheel.get("shared-data", ())) <= copied


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (("FROM", "python:latest"), "base without a full version"),
        (("USER", "root"), "runs as root"),
        (("COPY", "missing.txt ./"), "copies missing.txt"),
        (("RUN", "apt-get install g++"), "leaves package lists"),
        (("RUN", "pip install ."), "leaves a cache"),
        (("ENTRYPOINT", "cubemesh"), "signals"),
    ],
)
def test_the_check_finds_a_planted_fault(changed, found):
    lines: list[Any] = instructions(FILES[0])
    index = max(i for i, (name, _) in enumerate(lines) if name == changed[0])
    lines[index] = changed
    assert any(found in problem for problem in problems(lines))


def builder() -> str | None:
    """A builder that works here; docker may be installed without its daemon."""
    for name, check in (("docker", "info"), ("podman", "info"), ("buildah", "info")):
        if shutil.which(name):
            done = subprocess.run([name, check], capture_output=True, check=False)
            if done.returncode == 0:
                return name
    return None


@pytest.mark.sweep
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_the_image_builds_and_runs(path):
    name = builder()
    if name is None:
        pytest.skip("no builder works here: docker, podman and buildah are missing or have no host")
    tag = f"cubemesh-{path.parent.name}-test"
    build = [name, "build", "-f", str(path), "-t", tag, str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    if name == "buildah":
        return
    ran = subprocess.run(
        [name, "run", "--rm", tag, "--version"], capture_output=True, text=True, check=False
    )
    assert ran.stdout.startswith("cubemesh "), ran.stderr
