"""The nouns add up, end and refuse as they say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.errors import (
    BusyError,
    CubemeshError,
    DataError,
    StoreError,
    UsageError,
    unknown_name,
)
from cubemesh.schema import (
    WARNINGS,
    WORK_KINDS,
    Budget,
    Ceiling,
    Cost,
    Cpu,
    Figure,
    Forward,
    Gpu,
    Machine,
    Memory,
    Outcome,
    Placement,
    ProgramSettings,
    RunKey,
    RunRecord,
    RunSpec,
    Series,
    Software,
    Status,
    Train,
    TrainSteps,
    Window,
    warn,
)

counts = st.integers(0, 10**15)
costs = st.builds(
    Cost,
    matrix_flops=counts,
    other_flops=counts,
    read_bytes=counts,
    written_bytes=counts,
    saved_bytes=counts,
)


@settings(deadline=None, max_examples=50)
@given(costs, costs, costs, st.integers(0, 1000))
def test_costs_add_and_scale(a, b, c, times):
    assert a + b == b + a
    assert (a + b) + c == a + (b + c) == sum([a, b, c])
    assert a + Cost() == a
    assert times * (a + b) == a * times + b * times
    assert sum([a] * 3) == 3 * a
    assert (a + b).flops == a.flops + b.flops
    assert (a + b).moved_bytes == a.read_bytes + a.written_bytes + b.moved_bytes


def test_intensity_is_operations_per_byte():
    assert Cost(matrix_flops=6, other_flops=2, read_bytes=3, written_bytes=1).intensity == 2.0
    assert Cost(matrix_flops=6).intensity == 0.0
    with pytest.raises(TypeError):
        Cost() + 1


def test_which_endings_are_answers():
    faults = {status for status in Status if not status.expected}
    assert faults == {Status.CRASHED, Status.KILLED, Status.TIMED_OUT}
    assert [s for s in Status if Outcome(status=s).ok] == [Status.OK]


def record(status: Status = Status.OK) -> RunRecord:
    return RunRecord(
        run_id="r",
        spec=RunSpec(work=Ceiling()),
        key=RunKey(spec_id="a", machine_id="b", software_id="c", code_version="d"),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=1.0,
        outcome=Outcome(status=status),
        windows=(
            Window(phase="warm-up", start_s=0.0, elapsed_s=0.4, steps=2, samples=16),
            Window(start_s=0.4, elapsed_s=0.3, steps=3, samples=24),
        ),
        figures={"throughput_per_s": Figure(value=80.0, unit="samples/s")},
    )


def test_a_record_gives_its_figures_and_the_windows_that_count():
    assert record().ok
    assert not record(Status.OOM).ok
    assert record().figure("throughput_per_s") == 80.0
    assert record().figure("nothing") is None
    (window,) = record().measured
    assert window.step_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TrainSteps(network="n", batch_per_device=0), "batch_per_device=0 is too small"),
        (lambda: TrainSteps(network="n", batch_per_device=-4), "must be 1 or more"),
        (lambda: Forward(network="n", batch_per_device=1, image_size=0), "image_size=0"),
        (lambda: Forward(network="n", batch_per_device=1, classes=0), "classes=0"),
        (lambda: Forward(network="n", batch_per_device=1, seed=-1), "seed=-1"),
        (lambda: Train(network="n", batch_per_device=1, epochs=0), "epochs=0"),
        (lambda: Train(network="n", batch_per_device=1, learning_rate=-0.1), "learning_rate=-0.1"),
        (lambda: TrainSteps(network="n", batch_per_device=1, momentum=float("nan")), "nan"),
        (lambda: Ceiling(size=0), "size=0"),
        (lambda: Placement(devices=0), "devices=0"),
        (lambda: Placement(threads=0), "threads=0"),
        (lambda: Budget(steps=0), "steps=0"),
        (lambda: Budget(windows=0), "windows=0"),
        (lambda: Budget(repeats=0), "repeats=0"),
        (lambda: Budget(seconds=-1), "seconds=-1"),
        (lambda: Budget(time_limit_s=0), "time_limit_s=0 must be more than 0"),
        (lambda: Budget(memory_limit_bytes=0), "memory_limit_bytes=0"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_value(make, said):
    with pytest.raises(UsageError) as raised:
        make()
    assert said in str(raised.value)


def test_work_is_known_by_its_kind():
    assert {
        kind: work.__dataclass_fields__["kind"].default for kind, work in WORK_KINDS.items()
    } == {kind: kind for kind in WORK_KINDS}


def test_a_series_has_a_time_for_each_value():
    with pytest.raises(ValueError, match=r"watts: 2 .*\b1\b"):
        Series(name="watts", times_s=(0.0, 1.0), values=(300.0,))


def test_work_without_batches_has_no_global_batch():
    assert RunSpec(work=Ceiling()).batch_per_device is None
    assert RunSpec(work=Ceiling()).global_batch is None


@pytest.mark.parametrize(
    ("total", "limit", "usable"), [(100, None, 100), (100, 40, 40), (None, 40, 40), (None,) * 3]
)
def test_usable_memory_is_the_smaller_of_machine_and_group(total, limit, usable):
    assert Memory(total_bytes=total, cgroup_limit_bytes=limit).usable_bytes == usable


def test_host_memory_is_held_against_that_of_all_gpus():
    def machine(*gpu_bytes: int | None, limit: int | None = None) -> Machine:
        return Machine(
            hostname="h",
            cpu=Cpu(),
            memory=Memory(total_bytes=512, cgroup_limit_bytes=limit),
            gpus=tuple(
                Gpu(index=i, name="n", uuid=f"GPU-{i}", memory_bytes=b)
                for i, b in enumerate(gpu_bytes)
            ),
            software=Software(python="3.11", system="Linux"),
        )

    assert machine(*[16] * 8).host_to_gpu_memory == 4.0
    assert machine(*[16] * 8, limit=256).host_to_gpu_memory == 2.0
    assert machine().host_to_gpu_memory is None
    assert machine(None).host_to_gpu_memory is None


def test_warnings_are_of_known_codes():
    for code in WARNINGS:
        assert warn(code, "seen", "do").code == code
    with pytest.raises(KeyError, match="no-such"):
        warn("no-such", "seen", "do")


def test_errors_end_the_command_with_their_codes():
    codes = {e: e.exit_code for e in (CubemeshError, UsageError, DataError, StoreError, BusyError)}
    assert list(codes.values()) == [1, 2, 1, 1, 75]
    assert all(issubclass(error, CubemeshError) for error in codes)


@pytest.mark.parametrize(
    ("given_name", "known", "said"),
    [
        ("vgg-16", ["vgg16", "vgg19"], "'vgg-16' is not a network. Nearest: vgg16"),
        ("zzz", ["b", "a"], "'zzz' is not a network. Known networks: a, b."),
        ("zzz", [], "No networks are known."),
    ],
)
def test_an_unknown_name_lists_what_is_near_or_known(given_name, known, said):
    error = unknown_name("network", given_name, known, "See `cubemesh networks`.")
    assert isinstance(error, UsageError)
    assert said in str(error)
    assert str(error).endswith("See `cubemesh networks`.")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_scale": "dynamic"}, "loss_scale=dynamic.*precision=fp16.*fp32"),
        ({"precision": "fp16", "loss_scale": 0.0}, "loss_scale=0.0"),
        (
            {"precision_of": ("fc8=bf16",)},
            "precision_of=fc8=bf16: under precision=fp32.*fp64, fp32",
        ),
        ({"precision": "fp64", "precision_of": ("fc8=fp32",)}, "another precision than fp64"),
        ({"precision": "bf16", "precision_of": ("fc8=bf16/fp16",)}, "bf16, fp8, or two"),
        ({"precision": "bf16", "precision_of": ("fc8=bf16/fp32/fp32",)}, "as forward/backward"),
        ({"precision": "bf16", "precision_of": ("fc8",)}, "precision_of=fc8"),
        ({"precision": "bf16", "precision_of": ("fc8=fp16",)}, "fp32, bf16, fp8"),
        ({"precision": "fp16", "precision_of": ("fc8=fp8",)}, "fp32, bf16, fp16"),
        ({"precision_of": ("*=fp8",)}, "forward/backward. fp8 needs precision=bf16."),
    ],
)
def test_settings_of_precision_that_do_not_go_together(settings, words):
    with pytest.raises(UsageError, match=words):
        ProgramSettings(**settings)


@pytest.mark.parametrize(
    ("precision", "line"),
    [
        ("fp32", "*=fp64"),
        ("tf32", "conv1=fp64/tf32"),
        ("bf16", "*=bf16/fp32"),
        ("fp16", "a=fp16/bf16"),
    ],
)
def test_a_layer_has_wider_types_than_its_program_and_one_for_each_pass(precision, line):
    assert ProgramSettings(precision=precision, precision_of=(line,)).precision_of == (line,)
