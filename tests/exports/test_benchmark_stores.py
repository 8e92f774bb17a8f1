"""Every format of every store in benchmarks/records, read by the tool that it is for."""

import io

import pytest

from cubemesh.exports.table import table_rows
from cubemesh.store import Store
from stored_benchmarks import RECORDS

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
junitparser = pytest.importorskip("junitparser")
mlp_parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser.ruleset_400")
protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

STORES = sorted(RECORDS.glob("*.sqlite"))


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.stem)
def test_each_format_has_every_run_and_throughput(path, exported):
    with Store.open(str(path), read_only=True) as store:
        records = tuple(store.records())
        machines = {machine.machine_id: machine for machine in store.machines()}
        series = {r.run_id: store.series(r.run_id) for r in records}

    def written(name):
        return exported(name, records, machines=machines, series=series)

    known = {r.run_id: r.figure("throughput_per_s") for r in records}
    values = sorted(value for value in known.values() if value is not None)

    for frame in (
        pandas.read_csv(io.BytesIO(written("csv")), dtype={"run_id": str}),
        pandas.read_parquet(io.BytesIO(written("parquet"))),
    ):
        assert list(frame.columns) == list(table_rows(records)[0])
        if values:
            read = dict(zip(frame["run_id"], frame["throughput_per_s"], strict=True))
            assert {r: v for r, v in read.items() if not pandas.isna(v)} == {
                r: v for r, v in known.items() if v is not None
            }

    lines = pandas.read_json(io.BytesIO(written("jsonl")), lines=True, dtype={"run_id": str})
    assert lines["run_id"].tolist() == list(known)

    newest = {(r.spec.workload_id, r.key.machine_id, r.key.repeat): r for r in records}
    families = openmetrics.text_string_to_metric_families(written("openmetrics").decode())
    samples = {family.name: family.samples for family in families}
    assert len(samples["cubemesh_run_info"]) == len(newest)
    shown = [
        sample
        for unit in ("samples", "images")  # images of a stage of the input
        for sample in samples.get(f"cubemesh_throughput_{unit}_per_second", [])
    ]
    found = [r.figure("throughput_per_s") for r in newest.values()]
    assert sorted(s.value for s in shown) == sorted(v for v in found if v is not None)

    events, errors = mlp_parser.parse_generator(written("mllog").decode().splitlines())
    assert errors == []
    logged = [e.value["value"] for e in events if e.key == "cubemesh_throughput_per_s"]
    assert sorted(logged) == values

    xml = junitparser.JUnitXml.fromstring(written("junit"))
    assert xml.tests == len(records)
    assert xml.errors == sum(not r.outcome.status.expected for r in records)
    names = [(suite.name, case.classname, case.name) for suite in xml for case in suite]
    assert len(names) == len(set(names)), "no two test cases have one name"

    trace = protos.Trace()
    trace.ParseFromString(written("perfetto"))
    begun = [p for p in trace.packet if p.track_event.type == protos.TrackEvent.TYPE_SLICE_BEGIN]
    assert len(begun) == sum(1 + len(r.phases) + len(r.windows) for r in records)
