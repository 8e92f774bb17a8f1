"""ECC counters from scripted NVML answers, and Xid errors from logs."""

import os
from types import SimpleNamespace

import pytest

from cubemesh.machines.files import Tree
from cubemesh.machines.hardware import gpu_errors
from cubemesh.machines.hardware.gpu_errors import read_gpu_errors, read_xids, with_xids
from cubemesh.schema import Gpu, GpuErrors, XidCount

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")

LOG = """\
[    1.5] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04
[  812.4] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.
[  812.5] NVRM: Xid (PCI:0000:3B:00): 79, pid=1234, name=python
[  900.1] NVRM: Xid (PCI:0000:af:00): 48, pid=77, An uncorrectable double bit error
[  901.0] NVRM: Xid (0000:af:00): 63, Row Remapper: New row marked for remapping
[  902.0] NVRM: Xid (PCI:nonsense): x
"""


class Scripted:
    """pynvml's constants and errors, with answers by query and arguments."""

    def __init__(self, **answers):
        self.answers = answers

    def __getattr__(self, name):
        if not name.startswith("nvmlDevice"):
            return getattr(pynvml, name)
        if name not in self.answers:
            return lambda *_: self.refuse()
        return lambda _, *rest: self.answers[name](*rest)

    @staticmethod
    def refuse():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_counters_of_a_gpu_with_ecc():
    counts = {(0, 0): 2, (1, 0): 0, (0, 1): 17, (1, 1): 1}
    nvml = Scripted(
        nvmlDeviceGetEccMode=lambda: [1, 1],
        nvmlDeviceGetTotalEccErrors=lambda kind, counter: counts[kind, counter],
        nvmlDeviceGetRemappedRows=lambda: (3, 1, 1, 0),
    )
    assert read_gpu_errors(nvml, 0) == GpuErrors(
        ecc_enabled=True,
        corrected=2,
        uncorrected=0,
        corrected_lifetime=17,
        uncorrected_lifetime=1,
        remapped_rows_corrected=3,
        remapped_rows_uncorrected=1,
        remap_pending=True,
        remap_failed=False,
    )


def test_retired_pages_of_older_gpus():
    nvml = Scripted(nvmlDeviceGetRetiredPages=lambda cause: [1, 2] if cause else [3])
    assert read_gpu_errors(nvml, 0) == GpuErrors(retired_pages=3)


def test_a_gpu_without_ecc_has_no_counters():
    assert read_gpu_errors(Scripted(), 0) is None


def test_queries_that_an_old_binding_lacks_are_left_out():
    old = SimpleNamespace(
        **{n: getattr(pynvml, n) for n in dir(pynvml) if n.startswith("NVML")},
        nvmlDeviceGetEccMode=lambda handle: [0, 0],
    )
    assert read_gpu_errors(old, 0) == GpuErrors(ecc_enabled=False)


def gpus():
    return [
        Gpu(index=0, name="A", uuid="a", pci_address="0000:3b:00.0", errors=GpuErrors(corrected=1)),
        Gpu(index=1, name="B", uuid="b", pci_address="0000:af:00.0"),
        Gpu(index=2, name="C", uuid="c", pci_address="0000:d8:00.0"),
    ]


@pytest.mark.parametrize("path", ["/dev/kmsg", "/var/log/kern.log", "/var/log/syslog"])
def test_xids_are_counted_by_gpu(make_tree, path):
    tree = make_tree({path: LOG})
    first, second, third = with_xids(tree, gpus())
    assert first.errors == GpuErrors(corrected=1, xids=(XidCount(code=79, count=2),))
    assert second.errors.xids == (XidCount(code=48, count=1), XidCount(code=63, count=1))
    assert third.errors is None
    assert tree.unknown == []


def test_no_readable_log_is_noted(tmp_path):
    tree = Tree(tmp_path)
    assert with_xids(tree, gpus()) == tuple(gpus())
    assert [u.what for u in tree.unknown] == ["Xid errors of the GPUs"]
    assert with_xids(Tree(tmp_path), []) == ()


def test_of_a_large_log_the_end_is_read(make_tree, monkeypatch):
    monkeypatch.setattr(gpu_errors, "MOST_LOG_BYTES", 20_000)
    line = "[ 1.0] NVRM: Xid (PCI:0000:3b:00): 13, old\n"
    tree = make_tree({"/var/log/kern.log": line + "x" * 40_000 + "\n" + LOG})
    assert read_xids(tree) == {("0000:3b:00", 79): 2, ("0000:af:00", 48): 1, ("0000:af:00", 63): 1}


def test_damaged_logs_and_pipes_are_not_an_error(make_tree, tmp_path):
    assert read_xids(make_tree({"/var/log/syslog": os.urandom(100_000)})) == {}
    os.mkfifo(tmp_path / "var/log/kern.log")
    assert read_xids(Tree(tmp_path)) == {}
