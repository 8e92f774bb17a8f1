"""Planted contradictions: small sets of records and answers, each with one thing wrong. The auditor
finds each, and nothing in consistent answers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from evidence_builders import (
    BAD_PARTS,
    BF16,
    FILES,
    GOOD_PARTS,
    NOT_BOUND,
    NOTHING_LOST,
    RATES,
    RESIDENT,
    SCALING,
    answer,
    bars,
    columns,
    consistent,
    published,
    rank,
    run,
    slow_files,
    stage,
    table,
)

from cubemesh.audit.audit import audit
from cubemesh.audit.evidence import Evidence
from cubemesh.audit.inconsistency import INCONSISTENCIES
from cubemesh.schema import (
    Against,
    Ceiling,
    Cell,
    Collective,
    Figure,
    Finding,
    Infer,
    Part,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Status,
    TrainSteps,
)
from record_fixtures import record_of

Planted = tuple[str, str, Callable[[], list[Evidence]]]
"""(what is wrong, the code that says so, the evidence)."""


def _cell_row(rate: float, step_ms: float, ratio: float) -> Evidence:
    """One row about run a, of 1,000 samples/s."""
    return answer(
        run("a"),
        tables=[
            table(
                [
                    Cell(text="resnet-50", run_id="a"),
                    Cell(text="16"),
                    Cell(value=rate, run_id="a"),
                    Cell(value=step_ms),
                    Cell(value=ratio),
                ],
                columns=RATES,
            )
        ],
    )


def _scaling(rate: float, percent: float) -> Evidence:
    one, four = run("a", rate=4744.0, batch=256), run("b", rate=rate, batch=256, devices=4)
    return answer(
        one,
        four,
        tables=[
            table(
                [
                    Cell(value=1, run_id="a"),
                    Cell(value=256),
                    Cell(value=4744.0, run_id="a"),
                    Cell(text="–"),
                ],
                [
                    Cell(value=4, run_id="b"),
                    Cell(value=1024),
                    Cell(value=rate, run_id="b"),
                    Cell(value=percent),
                ],
                columns=SCALING,
            )
        ],
    )


def _percent(value: float, name: str = "matmul use") -> Evidence:
    rows = table([Cell(value=value)], columns=columns(f"{name}:%"))
    return answer(run("a"), tables=[rows])


def _ratio(over: RunRecord, under: RunRecord, value: float, text: str) -> Evidence:
    finding = Finding(
        code="speed", text=text, value=value, unit="×", sides=(over.run_id, under.run_id)
    )
    return answer(over, under, findings=[finding])


def _interleaved() -> Evidence:
    """A and B interleaved, where B's steps give 1,100 samples/s, beside B by itself at 800."""
    own = run("a", rate=1000.0)
    spec = replace(own.spec, against=Against(work=own.spec.work, program=BF16))
    both = replace(
        own,
        spec=spec,
        figures={
            **own.figures,
            "against_step_s": Figure(value=16 / 1100, unit="s"),
            "against_throughput_per_s": Figure(value=1100.0, unit="samples/s"),
        },
    )
    rows = [[Cell(value=1100.0, run_id="a")], [Cell(value=800.0, run_id="b")]]
    rates = table(*rows, columns=columns("throughput:samples/s"))
    return answer(both, run("b", rate=800.0, program=BF16), tables=[rates])


def _collective(rate: float) -> Evidence:
    spec = RunSpec(work=Collective(), placement=Placement(devices=2))
    figure = Figure(value=rate, unit="B/s")
    record = replace(
        record_of(spec),
        run_id="a",
        windows=(),
        ranks=(rank("NVIDIA H200"),),
        figures={"bus_bytes_per_s": figure},
    )
    return answer(record)


def _energy(joules: float) -> Evidence:
    names = columns("samples/s", "power:W", "energy:J/sample")
    row = [Cell(value=1000.0, run_id="a"), Cell(value=500.0), Cell(value=joules)]
    return answer(run("a"), tables=[table(row, columns=names)])


def _stage_rate(unit: str) -> Evidence:
    record = stage("a", "read", 3150.0)
    row = [Cell(text="little-cnn"), Cell(value=3150.0, run_id="a")]
    return answer(record, tables=[table(row, columns=columns("network", f"throughput:{unit}"))])


def _failed() -> Evidence:
    spec = RunSpec(work=TrainSteps(network="resnet-50", batch_per_device=16))
    record = replace(record_of(spec, status=Status.OOM, message="needs 27 GiB"), run_id="a")
    row = [Cell(value=1000.0, run_id="a")]
    return answer(record, tables=[table(row, columns=columns("throughput:samples/s"))])


def _latencies(**ms: float) -> Evidence:
    """A run of one request after another that takes 10 ms in the mean, with these percentiles."""
    spec = RunSpec(work=Infer(network="resnet-50", batch_per_device=1))
    record = record_of(spec, step_s=0.01)
    found = {f"latency_{name}_s": Figure(value=value / 1e3, unit="s") for name, value in ms.items()}
    return answer(replace(record, run_id="a", figures={**record.figures, **found}))


def _windows() -> Evidence:
    record = run("a")
    wrong = replace(record.figures["throughput_per_s"], value=800.0, low=780.0, high=820.0)
    return answer(replace(record, figures={**record.figures, "throughput_per_s": wrong}))


def _sustained() -> Evidence:
    record = record_of(RunSpec(work=Ceiling(operation="copy")))
    names = columns("copy", "sustained:B/s", "fastest:B/s")
    row = [Cell(text="copy"), Cell(value=2.2e12), Cell(value=2.0e12)]
    return answer(replace(record, windows=()), tables=[table(row, columns=names)])


def _projection() -> Evidence:
    row = [Cell(text="little-cnn", run_id="a"), Cell(value=5.1)]
    names = columns("network", "90 epochs:days")
    return answer(run("a", network="little-cnn"), tables=[table(row, columns=names)])


def _scaling_loss(text: str = "") -> Evidence:
    """A run of four devices that loses 15 % to launch gaps and 10 % to straggler wait, in the mean
    over its ranks."""
    waits, gaps = (0.16, 0.04, 0.11, 0.09), (0.11, 0.20, 0.13, 0.16)
    record = run("a", batch=32, devices=4)
    ranks = tuple(
        tuple(
            Part(name=name, seconds=0.128 * share, method="")
            for name, share in (
                ("compute", 1 - wait - gap),
                ("launch_gaps", gap),
                ("straggler_wait", wait),
                ("unattributed", 0.0),
            )
        )
        for wait, gap in zip(waits, gaps, strict=True)
    )
    finding = Finding(
        code="scaling-overhead",
        text=text or "The largest overhead is straggler wait, 9.8 % of the step.",
        run_id="a",
    )
    return answer(replace(record, parts=ranks[0], rank_parts=ranks), findings=[finding])


def _two_verdicts(least: str) -> Evidence:
    """A ratio of 1.05 whose row says that no difference below 9.7 % would be detected."""
    text = "no significant difference (differences below {} % would not be detected)"
    finding = Finding(
        code="machine-ratio",
        text="resnet-50: 1.05×.",
        value=1.05,
        unit="×",
        verdict=text.format(least),
    )
    row = [Cell(value=1.05), Cell(text=text.format("9.7"))]
    names = columns("this / other:×", "this machine is")
    return answer(run("a"), findings=[finding], tables=[table(row, columns=names)])


def _cause(cause: str, compiled: float) -> Evidence:
    """A loss of eager PyTorch, of 1,000 samples/s, with torch.compile at `compiled`."""
    both = [
        run(name, rate=rate, program=ProgramSettings(framework=framework))
        for name, framework, rate in (
            ("a", "pytorch", 1000.0),
            ("b", "pytorch-compiled", compiled),
            ("c", "pytorch-captured", 1840.0),
        )
    ]
    words = f" to {cause}" if cause else "; the cause was not measured"
    text = f"PyTorch eager loses 46 % of the throughput of resnet-50{words}. It is slower."
    return answer(*both, findings=[Finding(code="largest-loss", text=text)])


def _same_columns() -> Evidence:
    names = columns("workload", "NVIDIA H200 · vm:images/s", "NVIDIA H200 · vm:images/s")
    row = [Cell(text="resnet-50"), Cell(value=1000.0), Cell(value=1100.0)]
    return answer(run("a"), tables=[table(row, columns=names)])


PLANTED: list[Planted] = [
    (
        "one workload at 1,029 and at 910 samples/s in two answers of a run",
        "different-figures",
        lambda: [
            answer(run("a", rate=1029.0), title="Fastest"),
            answer(run("b", rate=910.0), title="Breakdown"),
        ],
    ),
    (
        "the other side of an A/B run at 1,100, and by itself at 800",
        "different-figures",
        lambda: [_interleaved()],
    ),
    (
        "1.22 times the speed beside 1,029 and 910 samples/s",
        "ratio-differs",
        lambda: [
            _ratio(
                run("a", rate=1029.0, program=BF16),
                run("b", rate=910.0),
                1.22,
                "pytorch-captured, bf16, nhwc is 1.22× the speed of pytorch, fp32, nchw.",
            )
        ],
    ),
    ("2.5 times stock without a stock of 400", "ratio-differs", lambda: [_cell_row(1000, 16, 2.5)]),
    (
        "14,596 samples/s on four devices beside an efficiency of 100.03 %",
        "efficiency-differs",
        lambda: [_scaling(14596.0, 100.03)],
    ),
    (
        "compute 126 % and unattributed −27 % of a step",
        "parts-exceed-step",
        lambda: [answer(run("a", parts=BAD_PARTS))],
    ),
    (
        "nothing is lost beside unattributed −27 %",
        "verdict-without-evidence",
        lambda: [answer(run("a", parts=BAD_PARTS), findings=[NOTHING_LOST])],
    ),
    (
        "parts that add up to half of the mean step",
        "parts-do-not-add-up",
        lambda: [
            answer(run("a", parts={"compute": 0.4, "launch_gaps": 0.08, "unattributed": 0.02}))
        ],
    ),
    (
        "a row of parts that add up to 90 %",
        "parts-do-not-add-up",
        lambda: [
            answer(
                run("a"),
                tables=[
                    table(
                        [Cell(value=80.0), Cell(value=8.0), Cell(value=2.0)],
                        columns=columns("compute:%", "launch gaps:%", "unattributed:%"),
                    )
                ],
            )
        ],
    ),
    (
        "a bar of 112 %",
        "share-out-of-range",
        lambda: [answer(run("a"), charts=[bars("%", {"matmul use": 112.0})])],
    ),
    (
        "a stacked bar of 126 %",
        "share-out-of-range",
        lambda: [answer(run("a"), charts=[bars("%", {"a": 96.0, "b": 30.0}, stacked=True)])],
    ),
    (
        "a card of 112 % of the matrix rate",
        "share-out-of-range",
        lambda: [
            answer(
                run("a"),
                findings=[Finding(code="matmul-use", text="112 %", value=112.0, unit="%")],
            )
        ],
    ),
    ("an accuracy of −3 %", "share-out-of-range", lambda: [_percent(-3.0, "accuracy")]),
    (
        "112 % of the measured matrix product without a warning",
        "above-ceiling",
        lambda: [answer(run("a", figures={"ceiling_mfu_percent": Figure(value=112.0, unit="%")}))],
    ),
    (
        "130 % of the datasheet's peak without a warning",
        "above-peak",
        lambda: [answer(run("a", figures={"mfu_percent": Figure(value=130.0, unit="%")}))],
    ),
    ("2.2 TB/s sustained, 2.0 TB/s at most", "sustained-above-fastest", lambda: [_sustained()]),
    ("600 GB/s over links of 450 GB/s", "above-link", lambda: [_collective(600e9)]),
    (
        "training on files at 1,000 images/s that are decoded at 600",
        "above-stage",
        lambda: [answer(run("a", **FILES), stage("b", "decode", 600.0))],
    ),
    (
        "training from the host faster than with resident data",
        "above-resident",
        lambda: [answer(run("a"), run("b", rate=700.0, program=RESIDENT))],
    ),
    (
        "straggler wait as the largest loss of a step that loses more to launch gaps",
        "verdicts-differ",
        lambda: [_scaling_loss()],
    ),
    (
        "13 % launch gaps by the median rank, which are 15 % in the mean",
        "verdicts-differ",
        lambda: [_scaling_loss("resnet-50: 13 % launch gaps at batch size 32.")],
    ),
    (
        "no difference below 7.6 % in a card, and below 9.7 % in the table",
        "verdicts-differ",
        lambda: [_two_verdicts("7.6")],
    ),
    (
        "unfused kernels, where the compiler that fuses them is slower",
        "cause-without-evidence",
        lambda: [_cause("unfused kernels", compiled=960.0)],
    ),
    (
        "kernel launches without an attribution, where the compiler is slower",
        "cause-without-evidence",
        lambda: [_cause("kernel launches", compiled=960.0)],
    ),
    (
        "two sections called Weak scaling",
        "same-name",
        lambda: [answer(run("a"), title="Weak"), answer(run("b", "alexnet"), title="Weak")],
    ),
    ("two columns called NVIDIA H200 · vm", "same-name", lambda: [_same_columns()]),
    (
        "not input-bound beside files at 0.51 times the speed",
        "verdict-without-evidence",
        lambda: [answer(run("a"), findings=[NOT_BOUND, slow_files()])],
    ),
    (
        "files at 0.51 times the speed, and no reason",
        "unexplained-input-cost",
        lambda: [answer(run("a"), findings=[slow_files()])],
    ),
    (
        "80-pixel images next to published figures of 224",
        "different-image-size",
        lambda: [answer(run("a", image_size=80), tables=[published("H100")])],
    ),
    (
        "an RTX 3090 as the nearest published device of an H200",
        "farther-device",
        lambda: [
            answer(run("a", device="NVIDIA H200"), tables=[published("RTX 3090", "A100-SXM4-40GB")])
        ],
    ),
    (
        "8.52 times stock, which was eager, fp32 and NCHW",
        "not-comparable",
        lambda: [
            _ratio(
                run("a", rate=8520.0, program=BF16),
                run("b"),
                8.52,
                "resnet-50 trains at 8.52× the speed of stock.",
            )
        ],
    ),
    (
        "a ratio of batch size 64 to 16 that names neither",
        "not-comparable",
        lambda: [_ratio(run("a", batch=64, rate=1500.0), run("b"), 1.5, "1.5× as fast.")],
    ),
    (
        "a ratio of an H200 to an A100 that names neither",
        "not-comparable",
        lambda: [
            _ratio(
                run("a", rate=2000.0, device="NVIDIA H200", seed=1),
                run("b", device="NVIDIA A100-SXM4-40GB"),
                2.0,
                "2× as fast.",
            )
        ],
    ),
    ("90 ImageNet epochs from 32 pixels", "projection-of-other-data", lambda: [_projection()]),
    (
        "a fastest framework by a ratio of 1.02 (0.97 to 1.07)",
        "insignificant-verdict",
        lambda: [
            answer(
                run("a"),
                findings=[
                    Finding(
                        code="fastest-framework",
                        text="jax is fastest.",
                        value=1.02,
                        low=0.97,
                        high=1.07,
                        unit="× pytorch",
                    )
                ],
            )
        ],
    ),
    (
        "reading from disk as little-cnn in samples/s",
        "unit-of-other-work",
        lambda: [_stage_rate("samples/s")],
    ),
    ("images per second as B/s", "bytes-or-items", lambda: [_stage_rate("B/s")]),
    (
        "a value of 100 with an interval of 110 to 120",
        "interval-excludes-value",
        lambda: [
            answer(
                run("a"),
                findings=[Finding(code="x", text="", value=100.0, low=110.0, high=120.0, unit="s")],
            )
        ],
    ),
    (
        "1,000 samples/s in steps of 32 ms at batch size 16",
        "rate-and-step-differ",
        lambda: [_cell_row(1000, 32, 1.0)],
    ),
    ("500 W, 1,000 samples/s and 0.8 J/sample", "energy-and-power-differ", lambda: [_energy(0.8)]),
    (
        "a p99 of 9 ms below a p90 of 12 ms",
        "latencies-contradict",
        lambda: [_latencies(p50=8, p90=12, p99=9, max=40)],
    ),
    (
        "half of the requests take 25 ms, and the mean is 10 ms",
        "latencies-contradict",
        lambda: [_latencies(p50=25, p90=30, max=40)],
    ),
    ("800 samples/s, by its windows 1,000", "figure-differs-from-windows", lambda: [_windows()]),
    (
        "a cell of 1,300 that refers to a run of 1,000",
        "cell-differs-from-run",
        lambda: [_cell_row(1300, 16 / 1.3, 1.0)],
    ),
    ("1,000 samples/s of a run out of memory", "figure-of-failed-run", lambda: [_failed()]),
]


@pytest.mark.parametrize(("code", "build"), [p[1:] for p in PLANTED], ids=[p[0] for p in PLANTED])
def test_a_planted_contradiction_is_found(code: str, build: Callable[[], list[Evidence]]) -> None:
    found = audit(build())
    assert code in [one.code for one in found]
    assert all(one.text and one.remedy for one in found)


def test_a_stage_of_other_files_is_no_ceiling():
    training, decoding = run("a", **FILES), stage("b", "decode", 600.0)
    found = [
        replace(record, key=replace(record.key, data_id=data_id))
        for record, data_id in ((training, "x"), (decoding, "y"))
    ]
    assert "above-stage" in [one.code for one in audit([answer(training, decoding)])]
    assert "above-stage" not in [one.code for one in audit([answer(*found)])]


def test_there_are_at_least_25_and_every_code_is_planted() -> None:
    assert len(PLANTED) >= 25
    assert {code for _, code, _ in PLANTED} == set(INCONSISTENCIES)


def test_percentiles_in_order_pass() -> None:
    assert audit([_latencies(p50=9, p90=11, p99=40, p999=900, max=950)]) == ()


def test_verdicts_with_their_evidence_pass() -> None:
    both = "The largest overhead of scaling is straggler wait, 10.0 %. The largest loss is launch "
    assert audit([_scaling_loss(f"{both}gaps, 15 % of the step.")]) == ()
    assert audit([_two_verdicts("9.7")]) == ()
    assert audit([_cause("unfused kernels or launch gaps", compiled=1470.0)]) == ()
    assert audit([_cause("", compiled=960.0)]) == ()
    gaps = run("d", parts=GOOD_PARTS)
    shown = _cause("launch gaps", compiled=960.0)
    assert audit([replace(shown, records=(*shown.records, gaps))]) == ()


def test_a_consistent_set_passes() -> None:
    assert audit(consistent()) == ()


def test_runs_interleaved_with_two_programs_are_one_workload() -> None:
    first = run("a")
    several = [
        replace(
            first,
            run_id=name,
            spec=replace(
                first.spec,
                against=Against(work=first.spec.work, program=ProgramSettings(framework=other)),
            ),
        )
        for name, other in (("a", "pytorch-compiled"), ("b", "jax"))
    ]
    assert audit([Evidence(None, tuple(several))]) == ()


def test_runs_of_one_workload_with_several_budgets_are_pooled_within_an_answer() -> None:
    first, second = run("a", rate=1000.0), run("b", rate=1300.0)
    longer = replace(second.spec, budget=replace(second.spec.budget, windows=30))
    second = replace(
        second, spec=longer, key=replace(second.key, spec_id=longer.spec_id), artifacts={"t": "f"}
    )
    assert audit([answer(first, second)]) == ()
    assert audit([answer(first, second), answer(run("c", rate=1150.0), title="Again")]) == ()
    apart = [answer(first), answer(second, title="Again")]
    assert "different-figures" in [one.code for one in audit(apart)]


def test_repeats_are_pooled_before_they_are_compared_with_resident_data() -> None:
    host, resident = run("a", rate=900.0), run("b", rate=700.0, program=RESIDENT)
    assert [one.code for one in audit([answer(host, resident)])] == ["above-resident"]
    again = replace(run("c", rate=1000.0, program=RESIDENT), key=replace(resident.key, repeat=1))
    assert audit([answer(host, resident, again)]) == ()
