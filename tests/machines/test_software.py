"""Versions come from metadata and file names; no framework is imported for them."""

import platform
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest

from cubemesh.frameworks import entry
from cubemesh.machines.software import installed, library_version, read_software
from cubemesh.schema import Software


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Installs an empty distribution of a name and version in a folder of its own."""
    site = tmp_path / "site"

    def install(name: str, version: str | None) -> None:
        folder = site / f"{name.replace('-', '_')}-{version or 0}.dist-info"
        folder.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\n"
        (folder / "METADATA").write_text(text + (f"Version: {version}\n" if version else ""))

    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(sys, "path", [str(site)])
    return install


def read(tree):
    return read_software(tree, driver="580.159.04", cuda="13.0")


def test_installed_names_what_is_there():
    assert installed(["numpy", "no-such-distribution"]) == {"numpy": metadata.version("numpy")}


def test_a_distribution_with_broken_metadata_is_not_listed(distribution, tmp_path):
    distribution("torch", None)
    distribution("jax", "0.11.2")
    (tmp_path / "site" / "jax-0.11.2.dist-info" / "METADATA").write_bytes(b"Version: \xff\xfe")
    distribution("numpy", "2.4.6")
    assert installed(["torch", "jax", "numpy"]) == {"numpy": "2.4.6"}


def test_the_stack(make_tree, laptop, distribution):
    distribution("torch", "2.11.0+cu130")
    distribution("nvidia-cudnn-cu13", "9.15.1.9")
    distribution("nvidia-nccl-cu13", "2.28.9")
    tree = make_tree(laptop)
    software = read(tree)
    assert software.python.startswith(platform.python_version())
    assert software.system == "Debian GNU/Linux 12 (bookworm), Linux 6.1.0-18-amd64"
    assert software.packages == {"torch": "2.11.0+cu130"}
    assert (software.cudnn, software.nccl) == ("9.15.1.9", "2.28.9")
    assert (software.driver, software.cuda) == ("580.159.04", "13.0")
    assert tree.unknown == []


def test_the_compiler_is_named_with_its_version(make_tree, laptop, tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read(make_tree(laptop)).cpp_compiler == "none"
    for name, prints in (("clang++", "echo clang version 19.1.7; echo Target"), ("silent", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{prints}\n")
        (tmp_path / name).chmod(0o755)
    assert read(make_tree(laptop)).cpp_compiler == "clang version 19.1.7"
    monkeypatch.setenv("CXX", "silent")
    assert read(make_tree(laptop)).cpp_compiler == "silent"


def test_the_compiler_identifies_the_software_of_what_it_compiles():
    software = Software(python="3", system="Linux", packages={"torch": "2.13", "jax": "0.11"})
    none, gcc = (replace(software, cpp_compiler=c) for c in ("none", "g++ 12.2.0"))
    for name in ("pytorch", "pytorch-compiled", "pytorch-captured"):
        ids = {entry(name).software_id(one) for one in (software, none, gcc)}
        assert len(ids) == 3
    assert entry("jax").software_id(none) == entry("jax").software_id(gcc)
    older = entry("pytorch").software_id(software)
    assert older == software.software_id(("torch", "numpy")), "as stored by older versions"


def test_libraries_for_two_cuda_versions_are_both_listed(make_tree, laptop, distribution):
    distribution("nvidia-cudnn-cu12", "9.10.2.21")
    distribution("nvidia-cudnn-cu13", "9.15.1.9")
    assert read(make_tree(laptop)).cudnn == "9.10.2.21 (cu12), 9.15.1.9 (cu13)"


def test_file_names_next_to_torch_replace_a_missing_distribution(
    make_tree, laptop, distribution, tmp_path
):
    distribution("torch", "1.9.0")
    libraries = tmp_path / "site" / "torch" / "lib"
    libraries.mkdir(parents=True)
    for name in ("libcudnn.so.8", "libcudnn.so.8.10.2", "libcudnn.so.8.9.7", "libcudnn_ops.so.8"):
        (libraries / name).touch()
    assert read(make_tree(laptop)).cudnn == "8.10.2"


def test_library_version_takes_the_first_folder_that_has_one(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (first / "libnccl.so").touch()
    (second / "libnccl.so.2").touch()
    assert library_version([tmp_path / "none", first, second], "libnccl.so") == "2"
    assert library_version([first], "libnccl.so") is None


def test_a_system_without_a_name_gives_its_kernel_and_a_note(make_tree):
    tree = make_tree({"/proc/sys/kernel/ostype": "Linux", "/proc/sys/kernel/osrelease": "6.1.0"})
    assert read(tree).system == "Linux 6.1.0"
    assert "operating system's name" in {u.what for u in tree.unknown}


def test_the_probe_imports_no_framework():
    script = (
        "import sys; from cubemesh.machines import probe; probe();"
        "heavy = {'torch', 'jax', 'tensorflow', 'keras', 'numpy', 'psutil', 'pandas', 'pydantic'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
