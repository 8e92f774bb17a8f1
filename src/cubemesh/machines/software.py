"""Software probe: versions of Python, system, frameworks, NVIDIA libraries and C++ compiler.

Versions come from the metadata of the installed distributions, so no framework is imported. cuDNN
and NCCL have separate distributions if a framework was installed from wheels (`nvidia-cudnn-cu13`,
…); otherwise the version is in the library's file name (`libcudnn.so.9.1.0`), searched next to the
framework, then in the library folders of Conda, NVIDIA's images and the system.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from cubemesh.cpp_compiler import compiler_version
from cubemesh.machines.files import Tree
from cubemesh.schema import Software
from cubemesh.untrusted import clean

PACKAGES: tuple[str, ...] = (
    "torch",
    "torchvision",
    "triton",
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "keras",
    "numpy",
    "scikit-learn",
    "pillow",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "psutil",
    "nvidia-ml-py",
)
"""The distributions that decide what a measurement runs on."""

VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "GLIBC_TUNABLES"),
    *("MALLOC_", "LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_"),
    *("GLOO_", "UCX_", "FI_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "XLA_", "JAX_"),
    *("TF_", "KERAS_", "OV_", "ORT_"),
)
"""Environment variables that change what the libraries do, by how their names begin."""
_TERRAFORM = ("TF_CLI_", "TF_VAR_", "TF_DATA_DIR", "TF_PLUGIN_", "TF_TOKEN_", "TF_WORKSPACE")
"""Variables of Terraform, which begin as TensorFlow's do."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_MOST_VARIABLES = 100
_MOST_CHARACTERS = 300

CUDA_MAJORS = (11, 12, 13, 14)
"""CUDA versions for which NVIDIA names distributions (`nvidia-nccl-cu12`)."""


def read_software(tree: Tree, *, driver: str | None, cuda: str | None) -> Software:
    """The software of the running Python; `driver` and `cuda` as NVML reports them, or None.

    Only the operating system is read from `tree`.
    """
    return Software(
        python=_python(),
        system=_system(tree),
        packages=installed(PACKAGES),
        cuda=cuda,
        cudnn=_library(tree, "cuDNN", "nvidia-cudnn", "libcudnn.so"),
        nccl=_library(tree, "NCCL", "nvidia-nccl", "libnccl.so"),
        driver=driver,
        cpp_compiler=compiler_version(),
        variables=library_variables(os.environ),
    )


def library_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that change what the libraries do; never one whose name is that of
    a secret."""
    own = (n for n in environ if n.startswith(VARIABLES) and not n.startswith(_TERRAFORM))
    names = sorted(n for n in own if not _SECRET.search(n))
    return {n: clean(environ[n], _MOST_CHARACTERS) for n in names[:_MOST_VARIABLES]}


def installed(names: Iterable[str]) -> dict[str, str]:
    """The version of each distribution that is installed in this Python environment."""
    return {name: version for name in names if (version := _version(name)) is not None}


def library_version(folders: Iterable[Path], name: str) -> str | None:
    """The version in the file names `<name>.<version>` of the first folder that has such a file.

    `libcudnn.so.9` and `libcudnn.so.9.1.0` side by side give the longer one, "9.1.0".
    """
    pattern = re.compile(re.escape(name) + r"\.(\d+(?:\.\d+)*)")
    for folder in folders:
        try:
            files = os.listdir(folder)
        except OSError:
            continue
        versions = [match[1] for file in files if (match := pattern.fullmatch(file))]
        if versions:
            return max(versions, key=lambda v: tuple(map(int, v.split("."))))
    return None


def _version(name: str) -> str | None:
    try:
        fields = metadata.distribution(name).metadata
    except (metadata.PackageNotFoundError, OSError, ValueError):  # not there, or not readable
        return None
    versions = fields.get_all("Version")
    return versions[0] if versions else None


def _library(tree: Tree, what: str, distribution: str, file: str) -> str | None:
    names = [f"{distribution}-cu{major}" for major in CUDA_MAJORS]
    versions = {n.rpartition("-")[2]: v for n, v in installed(names).items()}
    if len(set(versions.values())) > 1:  # frameworks for different CUDA versions side by side
        return ", ".join(f"{version} ({cuda})" for cuda, version in versions.items())
    if versions:
        return next(iter(versions.values()))
    found = library_version(_library_folders(), file)
    if found is None:
        why = f"no distribution {distribution}-cu* and no file {file}.* in the library folders"
        tree.missing(f"{what} version", why)
    return found


def _library_folders() -> list[Path]:
    torch = [Path(entry) / "torch" / "lib" for entry in sys.path if entry]
    system = [Path("/usr/lib") / f"{platform.machine()}-linux-gnu", Path("/usr/lib64")]
    return [*torch, Path(sys.prefix) / "lib", Path("/usr/local/cuda/lib64"), *system]


def _python() -> str:
    version, implementation = platform.python_version(), platform.python_implementation()
    return version if implementation == "CPython" else f"{version} ({implementation})"


def _system(tree: Tree) -> str:
    kernel = tree.text("/proc/sys/kernel/osrelease") or platform.release()
    kernel = f"{tree.text('/proc/sys/kernel/ostype') or platform.system()} {kernel}"
    release = tree.text("/etc/os-release") or tree.text("/usr/lib/os-release") or ""
    name = re.search(r"^PRETTY_NAME=[\"']?(.*?)[\"']?$", release, re.MULTILINE)
    if name is None:
        tree.missing("operating system's name", "/etc/os-release does not give it")
        return kernel
    return f"{name[1]}, {kernel}"
