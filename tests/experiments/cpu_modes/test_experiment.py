"""CPU configurations: which are measured, and which is significantly faster."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.experiments.core.experiment import Context, Scale
from cubemesh.experiments.cpu_modes.experiment import EXPERIMENT, Settings, modes
from cubemesh.experiments.cpu_modes.report import CpuMode, gain, mode_of
from cubemesh.experiments.registry import SUITES
from cubemesh.papers.claims import check_records
from cubemesh.papers.claims.evidence import Evidence
from cubemesh.papers.published import claims
from cubemesh.schema import ClaimState, NumaNode, Status, warn


@pytest.fixture
def server(machine):
    nodes = tuple(
        NumaNode(node=n, cpus=tuple(range(4 * n, 4 * n + 4)), memory_bytes=1 << 34) for n in (0, 1)
    )
    cpu = dataclasses.replace(
        machine.cpu, usable_cores=4, affinity_cores=8, logical_cores=8, numa_nodes=nodes
    )
    return dataclasses.replace(machine, cpu=cpu)


@pytest.fixture
def two_cores(machine):
    cpu = dataclasses.replace(machine.cpu, usable_cores=2, affinity_cores=2, logical_cores=2)
    return dataclasses.replace(machine, cpu=cpu)


def test_two_cores_have_few_configurations_the_default_first(two_cores):
    found = modes(Settings(layouts=("nchw",)), two_cores, Scale.DEFAULT)
    assert found == [
        CpuMode(2, "none", None, "nchw"),
        CpuMode(1, "none", None, "nchw"),
        CpuMode(1, "compact", None, "nchw"),
        CpuMode(2, "none", None, "nchw", huge_pages="never"),
    ]
    quick = modes(Settings(layouts=("nchw",)), two_cores, Scale.QUICK)
    assert {mode.huge_pages for mode in quick} == {"default"}


def test_memory_policies_of_the_default_on_several_nodes(server, play, record_of):
    found = modes(Settings(), server, Scale.QUICK)
    assert [(m.threads, m.memory_policy, m.huge_pages) for m in found[-2:]] == [
        (4, "interleave", "default"),
        (4, "preferred", "default"),
    ]
    settings = Settings(memory_policies=("default",), threads=(4,), layouts=("nchw",))

    def make(spec):
        if spec.placement.huge_pages == "never":
            return record_of(spec, step_s=0.2)
        return record_of(spec, step_s=0.1)

    _, sent = play(EXPERIMENT.plan(settings, Context(machine=server)), make)
    answer = EXPERIMENT.answer(settings, sent)
    (effect,) = (f for f in answer.findings if f.code == "huge-pages-effect")
    assert in_order(effect.text, "huge pages", "default", "never 0.50")
    assert any("several NUMA nodes" in note for note in answer.notes)
    slowest = answer.tables[0].rows[-1]
    assert slowest[-1].text == "never"
    refused = [
        record_of(s, status=Status.UNSUPPORTED, message="one node") for s in (sent[-1].spec,)
    ]
    assert any(
        "no huge pages" in f.text for f in EXPERIMENT.answer(settings, [sent[0], *refused]).findings
    )


def test_a_server_has_pinnings_layouts_and_a_node(server):
    found = modes(Settings(), server, Scale.DEFAULT)
    assert found[0] == CpuMode(4, "none", None, "nchw")
    assert len(found) == len(set(found))
    assert {m.threads for m in found} == {1, 2, 4, 8}
    assert {m.pinning for m in found if m.threads == 8} == {"none"}
    assert {m.pinning for m in found if m.threads == 4 and m.node is None} == {
        *("none", "compact", "spread")
    }
    assert {(m.threads, m.pinning) for m in found if m.node == 0 and m.threads > 2} == {(4, "none")}
    assert all(m.threads <= 4 for m in found if m.node == 0)
    quick = modes(Settings(), server, Scale.QUICK)
    assert {m.threads for m in quick} == {2, 4}


def test_specs_are_of_the_cpu_and_repeated_in_fresh_processes(two_cores, play, record_of):
    context = Context(machine=two_cores)
    planned, _ = play(EXPERIMENT.plan(Settings(), context), record_of)
    assert {s.placement.device for s in planned} == {"cpu"}
    assert {s.budget.repeats for s in planned} == {3}
    assert {s.program.layout for s in planned} == {"nchw", "nhwc"}
    assert len({s.spec_id for s in planned}) == len(planned) == 7


def measured(two_cores, play, record_of, speeds, scale=Scale.DEFAULT):
    """Records of the two-core machine; `speeds` has step times other than the default."""

    def make(spec):
        mode = (spec.placement.threads, spec.placement.pinning, spec.program.layout)
        return record_of(spec, step_s=speeds.get(mode, 0.1))

    context = Context(machine=two_cores, scale=scale)
    return play(EXPERIMENT.plan(Settings(), context), make)[1]


def test_a_significantly_faster_configuration_and_its_settings(two_cores, play, record_of):
    records = measured(two_cores, play, record_of, {(2, "none", "nhwc"): 0.05})
    answer = EXPERIMENT.answer(Settings(), records)
    first = answer.findings[0]
    assert first.code == "fastest-configuration"
    assert "2 threads, nhwc" in first.text
    assert first.value == pytest.approx(2, rel=0.05)
    assert first.low < 2 < first.high
    assert in_order(first.remedy, "--set threads=2 --set layout=nhwc")
    (layout,) = (f.text for f in answer.findings if f.code == "layout-effect")
    assert "nchw 0.50 ± 0.01×" in layout
    assert answer.tables[0].rows[0][5].text == "fastest"
    assert answer.charts[0].lines[0].points[0].x == "2 threads, nhwc"


def test_no_significant_difference(two_cores, play, record_of):
    records = measured(two_cores, play, record_of, {(1, "compact", "nhwc"): 0.0995})
    answer = EXPERIMENT.answer(Settings(), records)
    assert answer.findings[0].code == "default-fastest"
    assert answer.findings[0].remedy == ""
    assert "equal-configurations" in {f.code for f in answer.findings}


def test_one_configuration_is_not_compared_with_itself(two_cores, play, record_of):
    records = measured(two_cores, play, record_of, {})
    default = [r for r in records if mode_of(r) == mode_of(records[0])]
    answer = EXPERIMENT.answer(Settings(), default)
    (only,) = answer.findings
    assert only.code == "single-configuration"
    assert only.text.startswith("little-cnn trains at ")
    assert gain(default) is None


def test_a_single_process_each_is_a_warning(two_cores, play, record_of):
    records = measured(two_cores, play, record_of, {}, Scale.QUICK)
    (warning,) = EXPERIMENT.answer(Settings(), records).warnings
    assert warning.code == "reduced"
    assert "1 process" in warning.cause
    full = measured(two_cores, play, record_of, {})
    assert EXPERIMENT.answer(Settings(), full).warnings == ()


def test_unsupported_configurations_have_a_reason(two_cores, play, record_of):
    records = measured(two_cores, play, record_of, {})
    gone = record_of(records[-1].spec, status=Status.UNSUPPORTED, message="no nhwc here")
    answer = EXPERIMENT.answer(Settings(), [*records[:-1], gone])
    assert any("no nhwc here" in f.text for f in answer.findings)
    nothing = EXPERIMENT.answer(Settings(), [gone])
    assert [f.code for f in nothing.findings] == ["nothing-measured"]


def test_the_claim_about_a_knl_cannot_be_tested(two_cores, play, record_of):
    claim = next(c for c in claims() if c.id == "004-13")
    records = measured(two_cores, play, record_of, {(2, "none", "nhwc"): 0.05})
    verdict = check_records(claim, Evidence(records=tuple(records)))
    assert verdict.state is ClaimState.CANNOT_BE_TESTED_HERE
    assert "firmware" in verdict.reason
    assert "2 threads, nhwc" in verdict.reason
    assert verdict.measured.value == pytest.approx(2, rel=0.05)
    assert gain([]) is None
    assert check_records(claim, Evidence(records=())).measured is None


def test_it_is_in_the_suites():
    for suite in ("full", "doc-004"):
        assert "cpu-modes" in [a.experiment for a in SUITES[suite].entries]


def test_noisy_runs_are_inconclusive(two_cores, play, record_of):
    records = measured(two_cores, play, record_of, {(2, "none", "nhwc"): 0.05})
    busy = warn("busy-host", "others used 40 %", "stop them")
    records[0] = dataclasses.replace(records[0], warnings=(busy,))
    first = EXPERIMENT.answer(Settings(), records).findings[0]
    assert first.code == "noisy-runs"
    assert first.caveats == ("busy-host",)
    assert first.value is None
