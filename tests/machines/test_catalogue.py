"""Datasheets are complete, sourced, and found by the names devices really have."""

import re

import pytest

from cubemesh.errors import DataError, UsageError
from cubemesh.machines.catalogue import (
    PRECISIONS,
    datasheets,
    find,
    forms,
    load_gpu,
    read_datasheets,
)


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA B200", "b200-180gb"),
        ("NVIDIA GB200", "gb200-186gb"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx-1080-ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla M60", "m60"),
        ("Tesla V100S-PCIE-32GB", "v100s-pcie-32gb"),
        ("Tesla V100-SXM3-32GB", "v100-sxm3-32gb"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI325X", "mi325x"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5p", "tpu-v5p"),
        ("Intel Gaudi2", "gaudi2"),
        ("Apple M1 Max", "apple-m1-max"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"),
        ("Tesla P100-SXM2-16GB", "p100-sxm2-16gb"),
        ("NVIDIA GeForce GTX 1080", "gtx-1080"),
        ("NVIDIA TITAN X (Pascal)", "titan-x-pascal"),
        ("NVIDIA GeForce GTX TITAN X", "titan-x-maxwell"),
        ("Tesla K80", "k80"),
        ("Tesla K40m", "k40"),
        ("Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", "xeon-e5-2698-v4"),
        ("Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz", "xeon-phi-7250"),
    ],
)
def test_a_device_is_found_by_its_driver_s_name(name, id):
    sheet = find(name)
    assert sheet is not None
    assert sheet.id == id


@pytest.mark.parametrize(
    "name",
    [
        *("", "NVIDIA", "AMD", "NVIDIA GeForce GTX 1070 Ti", "NVIDIA H100", "RTX 6000", "TPU"),
        *("NVIDIA H20", "NVIDIA GH200 480GB", "Intel(R) Xeon(R) Processor @ 2.50GHz", "P100X"),
    ],
)
def test_what_is_not_in_the_catalogue_is_unknown(name):
    assert find(name) is None


def test_a_model_without_its_form_may_be_each_of_them():
    assert {s.id for s in forms("P100")} == {"p100-pcie-16gb", "p100-sxm2-16gb"}
    assert [s.id for s in forms("Tesla P100-SXM2-16GB")] == ["p100-sxm2-16gb"]
    assert {s.id for s in forms("H100 80GB")} == {"h100-pcie-80gb", "h100-sxm5-80gb"}
    assert [s.id for s in forms("V100")] == ["v100-sxm2-16gb"]
    assert forms("GTX 1070 Ti") == ()


def test_every_name_of_every_datasheet_means_that_datasheet():
    for sheet in datasheets().values():
        for name in sheet.named:
            assert find(name) == sheet, name


ADDRESS = re.compile(r"\b[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,4}\b(/\S+)?")
PAPER = re.compile(r"\[00[0-4]\]")


def test_every_figure_cites_a_web_address_or_one_of_the_five_papers():
    for sheet in datasheets().values():
        for name, figure in sheet.figures.items():
            cited = ADDRESS.search(figure.source) or PAPER.search(figure.source)
            assert cited, (sheet.id, name, figure.source)


def test_every_figure_has_a_plausible_size():
    for sheet in datasheets().values():
        peaks = [sheet.value(p) for p in PRECISIONS if sheet.value(p)]
        assert peaks, sheet.id
        assert all(5e11 < p < 1e16 for p in peaks), sheet.id
        assert 5e10 < (sheet.value("memory_bytes_per_s") or 1e12) < 1e13, sheet.id
        assert 4e9 <= (sheet.value("memory_bytes") or 1e12) <= 1e12, sheet.id
        base = sheet.value("fp32_at_base_clock")
        assert base is None or base < sheet.value("fp32")


def test_a_precision_without_a_unit_is_computed_in_another():
    halves = find("GTX 1080").peak("fp16")
    assert (halves.flops_per_s, halves.computed_in) == (9e12, "fp32")
    assert find("H200").peak("bf16").flops_per_s == 989.4e12
    assert find("Tesla V100-SXM2-16GB").peak("bf16") is None
    assert find("H200").peak("sparse") is None


def test_memory_is_what_can_be_used():
    assert find("NVIDIA B200").value("memory_bytes") == 180e9
    assert find("KNL").value("memory_bytes_per_s") > 4e11, "MCDRAM, not the DDR4 outside"


def test_tensor_rates_add_up_in_fp32():
    """GeForce cards do so at half the rate that they are sold with."""
    for name, rate in (("RTX 2080 Ti", 56.9e12), ("RTX 3090", 71e12), ("RTX 4090", 165.2e12)):
        assert find(name).peak("fp16").flops_per_s == rate
    assert find("RTX 5090").peak("fp16").flops_per_s == find("RTX 5090").peak("bf16").flops_per_s


@pytest.mark.parametrize(
    ("name", "sms", "cores", "tensor_cores", "mhz", "boost_mhz", "capability", "watts", "usd"),
    [
        ("Tesla K40", 15, 2880, 0, 745, 875, "3.5", 235, 5499),
        ("Titan X Maxwell", 24, 3072, 0, 1000, 1075, "5.2", 250, 999),
        ("GTX 1080", 20, 2560, 0, 1607, 1733, "6.1", 180, 599),
        ("Titan X Pascal", 28, 3584, 0, 1417, 1531, "6.1", 250, 1200),
        ("k80", 13, 2496, 0, 562, 875, "3.7", 150, 2500),
        ("P100 SXM2", 56, 3584, 0, 1328, 1480, "6.0", 300, None),
        ("V100", 80, 5120, 640, 1312, 1530, "7.0", 300, None),
        ("A100 SXM4 80GB", 108, 6912, 432, 1275, 1410, "8.0", 400, 15000),
        ("H100 SXM", 132, 16896, 528, 1590, 1980, "9.0", 700, 30000),
        ("NVIDIA H200", 132, 16896, 528, 1500, 1980, "9.0", 700, 32000),
    ],
)
def test_units_clocks_and_price(
    name, sms, cores, tensor_cores, mhz, boost_mhz, capability, watts, usd
):
    sheet = load_gpu(name)
    assert (sheet.multiprocessors, sheet.cores, sheet.tensor_cores) == (sms, cores, tensor_cores)
    assert (sheet.clock_hz, sheet.boost_clock_hz) == (mhz * 1e6, boost_mhz * 1e6)
    assert (sheet.compute_capability, sheet.tdp_watts) == (capability, watts)
    assert (sheet.price.amount if sheet.price else None) == usd
    assert sheet.price is None or sheet.price.currency == "USD"


def test_units_and_clocks_give_the_peak_in_fp32():
    """Two operations a clock and core, at the boost clock: within 8 % of the stated peak, which is
    rounded, or at another clock (B200)."""
    for sheet in datasheets().values():
        peak, clock = sheet.value("fp32"), sheet.boost_clock_hz
        if sheet.kind != "gpu" or not (peak and clock and sheet.cores):
            continue
        assert 2 * sheet.cores * clock == pytest.approx(peak, rel=0.08), sheet.id


def test_every_multiprocessor_has_the_same_units():
    for sheet in datasheets().values():
        if sheet.multiprocessors and sheet.cores:
            assert sheet.cores % sheet.multiprocessors == 0, sheet.id
            assert sheet.cores // sheet.multiprocessors in (64, 128, 192), sheet.id
        if sheet.multiprocessors and sheet.tensor_cores:
            assert sheet.tensor_cores // sheet.multiprocessors in (4, 8), sheet.id


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("P100", "fits several GPUs: .*PCIe.*SXM2"),
        ("GTX 1081", "Nearest: gtx-1080"),
        ("EPYC 7742", "is not a GPU"),
        ("", "is not a GPU"),
    ],
)
def test_a_gpu_that_is_not_one_known_gpu(name, words):
    with pytest.raises(UsageError, match=words):
        load_gpu(name)


GOOD = """
[sources]
a = "A"
[x1]
name = "X1"
kind = "gpu"
family = "X1"
architecture = "First"
named = ["X1"]
[[x1.figures]]
source = "a"
fp32 = 1e12
"""


def test_a_table_is_read():
    sheet = read_datasheets(GOOD, "own.toml")["x1"]
    assert sheet.peak("fp32").source == "A"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("fp32 = 1e12", "fp33 = 1e12", r"line 12, x1.figures\[0\].fp33: .*nearest: fp32"),
        ("fp32 = 1e12", 'fp32 = "fast"', r"line 12, x1.figures\[0\].fp32: is 'fast'"),
        ("fp32 = 1e12", "fp32 = -1", "fp32: is -1"),
        ("fp32 = 1e12", "fp32 = nan", "fp32: is nan"),
        ('source = "a"', 'source = "b"', r"line 11, x1.figures\[0\].source: is 'b'; known: a"),
        ('kind = "gpu"', 'kind = "abacus"', "line 6, x1.kind: is 'abacus'; known: gpu, cpu"),
        ('named = ["X1"]', "named = []", r"line 9, x1.named: is \[\]"),
        ('family = "X1"', "", "line 4, x1.family: is missing"),
        ('a = "A"', 'a = "A"\nb = "B"', "line 4, sources.b: "),
        ("[sources]", "[sources", "own.toml.* line 2"),
        ("[sources]", "[sauces]", "line 1, sources: is missing"),
        ("[x1]", "x2 = 3\n[x1]", "line 4, sources.x2: is 3"),
        ("fp32 = 1e12", "", "line 4, x1.figures: is missing"),
        ("fp32 = 1e12", "fp32 = 1e12\nprice_usd = 9", "price_year belong together"),
        ("[[x1.figures]]", "[x1.figures]", "line 10, x1.figures: is "),
        ("[x1]", "[x1]\ncomputes = {fp16 = 'fp31'}", "computes.fp16: is 'fp31'; known"),
        (
            "fp32 = 1e12",
            'fp32 = 1e12\n[[x1.figures]]\nsource = "a"\nfp32 = 2',
            r"line 15, x1.figures\[1\].fp32: .*twice",
        ),
    ],
)
def test_what_does_not_fit_is_named(old, new, words):
    with pytest.raises(DataError, match=words):
        read_datasheets(GOOD.replace(old, new), "own.toml")
