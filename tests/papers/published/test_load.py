import csv
import io
from collections import Counter

import pytest

from cubemesh.errors import DataError
from cubemesh.forecast.styles import STYLES
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.networks import NETWORKS
from cubemesh.papers.published import (
    claims,
    figures,
    scaling_figures,
    scaling_files,
    stock_figures,
)
from cubemesh.papers.published.load import (
    CLAIM_COLUMNS,
    FIGURE_COLUMNS,
    SCALING_COLUMNS,
    read_claims,
    read_figures,
    read_scaling,
)
from cubemesh.papers.published.names import SPELLINGS

SOURCES = {
    "jcjohnson/cnn-benchmarks": 348,
    "Lambda deeplearning-benchmark v1": 318,
    "dmikushin/cnn-benchmarks (fork of jcjohnson)": 288,
    "Baidu DeepBench train": 242,
    "TensorFlow benchmarks page (May 2017)": 207,
    "Paperspace/cnn-benchmarks (fork of jcjohnson)": 207,
    "soumith/convnet-benchmarks README": 144,
    "stas00/ml-engineering": 124,
    "MLPerf Training v3.0": 123,
    "u39kun/deep-learning-benchmark": 116,
    "soumith/convnet-benchmarks README (layer-wise, Apr 2015)": 108,
    "NVIDIA DeepLearningExamples": 84,
    "MLPerf Training v2.1": 80,
    "MLPerf Training v3.1": 79,
    "microsoft/superbenchmark tests/data/diagnosis_summary.json": 62,
    "mila-iqia/milabench config/scaling/H100.yaml": 61,
    "MXNet docs/faq/perf.md training results": 59,
    "MLPerf Training v4.0": 58,
    "MLPerf Training v0.7": 34,
    "timm results CSV": 30,
    "pytorch/benchmark PR 796 (#706)": 14,
    "FFCV ffcv-imagenet README": 12,
    "mila-iqia/milabench config/scaling/H200.yaml": 6,
    "Dell HPC Innovation Lab (Oct 2016) Fig 3": 6,
    "Dell HPC Innovation Lab (Oct 2016) Fig 2": 4,
    "Horovod docs/benchmarks.rst": 4,
    "mila-iqia/milabench README": 3,
    "NVIDIA/apex issue 1445": 2,
    "PaddlePaddle/models PR 4864": 2,
    "PaddlePaddle/benchmark PR 1672": 2,
}


def test_every_published_row_is_there():
    assert len(figures()) == 2827
    assert Counter(f.source for f in figures()) == SOURCES


def test_metrics_and_conditions_are_as_in_the_sources():
    units = Counter(f.unit for f in figures() if f.metric == "throughput")
    assert units == {"images/s": 716, "tokens/s": 134, "sequences/s": 106}
    assert sum(f.precision_implied for f in figures()) == 1327
    assert sum(f.devices == 0 for f in figures()) == 87
    assert sum(f.devices is None for f in figures()) == 24
    assert sum(f.batch_per_device is None for f in figures()) == 234
    assert {f.precision for f in figures() if f.precision_implied} == {"fp32"}


def test_a_row_keeps_everything_its_source_says():
    wanted = [
        f
        for f in figures()
        if f.source.startswith("MXNet") and f.canonical == "alexnet" and f.batch_per_device == 256
    ]
    v100 = next(f for f in wanted if f.device == "V100")
    assert (v100.system, v100.devices, v100.precision) == ("EC2 p3.2xlarge", 1, "fp32")
    assert (v100.value, v100.unit) == (2994.32, "images/s")
    assert v100.url.startswith("https://github.com/apache/mxnet ")


def test_every_spelling_occurs_and_stands_for_one_network():
    published = {f.network for f in (*figures(), *scaling_figures())}
    spellings = [s for all_of in SPELLINGS.values() for s in all_of]
    assert set(spellings) <= published
    assert len(set(spellings)) == len(spellings)
    # Widely published networks that cubemesh may yet learn are spelt here already.
    assert set(SPELLINGS) - set(NETWORKS) <= {"googlenet", "inception-v3", "overfeat", "vit-b16"}


def test_every_claim_is_there():
    assert Counter(c.document for c in claims()) == {
        "000": 12,
        "001": 24,
        "002": 22,
        "003": 13,
        "004": 18,
    }
    assert Counter(c.kind for c in claims())["wish"] == 2
    several = next(c for c in claims() if c.id == "004-3")
    assert several.values == (7.8, 9.1, 7.2, 8.0)
    assert next(c for c in claims() if c.id == "001-21").values == ()


def table(columns, **changed):
    good = {
        **dict.fromkeys(columns, "x"),
        "devices": "1",
        "precision_implied": "no",
        "batch_per_device": "8",
        "value": "1.5",
        "id": "001-1",
        "document": "001",
        "values": "1;2",
        "kind": "claim",
        **changed,
    }
    out = io.StringIO()
    csv.writer(out).writerows([columns, [good[c] for c in columns]])
    return out.getvalue()


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("value", "fast", "is not a number"),
        ("value", "nan", "is not finite"),
        ("value", "", "must not be empty"),
        ("source", " ", "must not be empty"),
        ("devices", "-1", "at least 0"),
        ("devices", "1.5", "at least 0"),
        ("batch_per_device", "0", "at least 1"),
        ("precision_implied", "maybe", "yes, no"),
    ],
)
def test_a_malformed_figure_names_file_line_and_field(field, value, why):
    with pytest.raises(DataError, match=rf"f\.csv, line 2, field {field}: .*{why}"):
        read_figures(table(FIGURE_COLUMNS, **{field: value}), "f.csv")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("values", "1;two", "is not a number"),
        ("kind", "rumour", "must be one of"),
        ("id", "002-1", "does not begin with its document"),
    ],
)
def test_a_malformed_claim_names_file_line_and_field(field, value, why):
    with pytest.raises(DataError, match=rf"c\.csv, line 2, field {field}: .*{why}"):
        read_claims(table(CLAIM_COLUMNS, **{field: value}), "c.csv")


def test_invalid_tables():
    with pytest.raises(DataError, match=r"f\.csv, line 1: .*\bnetwork\b"):
        read_figures("a,b\n1,2\n", "f.csv")
    good = table(CLAIM_COLUMNS)
    with pytest.raises(DataError, match=r"line 3: 2 .*\b11\b"):
        read_claims(good + "a,b\n", "c.csv")
    with pytest.raises(DataError, match=r"line 3, field id: .*'001-1'"):
        read_claims(good + good.splitlines()[1] + "\n", "c.csv")
    with pytest.raises(DataError, match="line 2"):
        read_claims(good.splitlines()[0] + '\n"open', "c.csv")


def test_stock_rates_of_h200_stand_apart():
    found = stock_figures()
    assert len(found) == 28
    assert {f.device for f in found} == {"H200"}
    assert {f.devices for f in found} == {1, 2, 4, 8}
    eight = next(f for f in found if f.devices == 8 and f.batch_per_device == 32)
    assert (eight.canonical, eight.value) == ("resnet-50", 6984)
    assert not {f.source for f in found} & {f.source for f in figures()}


def test_rates_of_several_devices_have_a_file_a_style_and_a_machine() -> None:
    found = scaling_figures()
    several = [f for f in found if (f.devices or 0) > 1]
    assert len(several) == 906
    assert {f.source for f in several} == {file["source"] for file in scaling_files()}
    assert {f.style for f in found} - {""} <= STYLES.keys()
    for f in several:
        assert f.machine
        system = load_system(f.machine)
        systems = system.cluster.systems if system.cluster else 1
        assert (f.devices or 0) <= system.devices * systems
        assert " at " in f.url
    assert all(len(file["commit"]) == 40 and file["licence"] for file in scaling_files())


def test_each_configuration_is_there_once() -> None:
    keys = Counter(
        (f.url, f.system, f.framework, f.style, f.network, f.precision, f.batch_per_device)
        for f in scaling_figures()
        if f.devices == 1
    )
    assert [key for key, times in keys.items() if times > 1] == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("file", "nowhere", "is not one of scaling_files.csv"),
        ("rates", "1:362", "must be devices=rate"),
        ("rates", "1=x", "is not a number"),
        ("input", "much", "must be one of"),
        ("system", "", "must not be empty"),
    ],
)
def test_a_rate_that_does_not_fit_is_named(field: str, value: str, message: str) -> None:
    row = {"file": "a-1", "batch_per_device": "32", "input": "", "rates": "1=10 2=19"}
    files = {"a-1": {"source": "a", "url": "u", "path": "p", "commit": "c"}}
    text = table(SCALING_COLUMNS, **row)
    assert [f.value for f in read_scaling(text, "f.csv", files)] == [10, 19]
    with pytest.raises(DataError, match=rf"f.csv, line 2, field {field}: .*{message}"):
        read_scaling(table(SCALING_COLUMNS, **row | {field: value}), "f.csv", files)
