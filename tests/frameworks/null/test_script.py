import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.frameworks.null import script as null_script
from cubemesh.frameworks.null.script import EVENTS, Event, Script, read_script

POSITIVE = st.floats(1e-6, 1e3)


def test_no_script_has_default_settings():
    assert read_script(None) == read_script("") == Script()
    assert Script().step == 0.001


def test_settings_and_events_are_read():
    script = read_script("step=0.002, per_sample=1e-5,loss=2.3:0.5, segfault@40,exit:3@5,real=1")
    assert script.step == 0.002
    assert script.per_sample == 1e-5
    assert script.loss == (2.3, 0.5)
    assert script.real
    assert script.events == (
        Event(kind="segfault", step=40),
        Event(kind="exit", step=5, value=3),
    )
    assert script.events_at(5) == (Event(kind="exit", step=5, value=3),)
    assert script.events_at(6) == ()


@given(
    step=POSITIVE, jitter=st.floats(0, 1), at=st.integers(1, 10**6), kind=st.sampled_from(EVENTS)
)
def test_a_written_script_is_read_back(step, jitter, at, kind):
    script = read_script(f"{kind}@{at},step={step!r},jitter={jitter!r}")
    assert script == Script(step=step, jitter=jitter, events=(Event(kind=kind, step=at),))


@given(st.text(alphabet="abcdeilnoprstu_=@:,.0123456789- ", max_size=40))
def test_any_text_is_a_script_or_a_usage_error(text):
    try:
        script = read_script(text)
    except UsageError:
        return
    assert script.step_s(1, 1, 0.0) > 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("stpe=1", ("stpe", "step")),
        ("segfold@3", ("segfold", "segfault")),
        ("nonsense", ("nonsense", "key=value", "kind@step")),
        ("step=fast", ("step=fast", "a number")),
        ("step=1:2", ("step=1:2", "a number")),
        ("loss=2", ("loss=2", "from:to")),
        ("warmup=20", ("warmup=20", "steps:factor")),
        ("step=-1", ("step=-1", "0")),
        ("step=nan", ("step=nan", "a number")),
        ("step=0", ("step", "per_sample")),
        ("step=1,step=2", ("step",)),
        ("accuracy=0:2", ("accuracy=0:2", "1")),
        ("real=2", ("real=2", "0 or 1")),
        ("hang@0", ("hang@0", "kind@step")),
        ("hang@soon", ("hang@soon", "kind@step")),
        ("hang:2@3", ("hang:2@3", "exit")),
        ("exit:256@3", ("exit:256@3", "255")),
    ],
)
def test_errors_name_the_part_and_the_allowed_values(text, named):
    with pytest.raises(UsageError) as error:
        read_script(text)
    assert [name for name in named if name not in str(error.value)] == []


def test_the_time_of_a_step():
    script = read_script("step=0.01,per_sample=0.001,warmup=3:2,drift=0.5")
    assert script.step_s(100, 10, 0.0) == pytest.approx(0.02 * 1.5)
    assert script.step_s(3, 10, 0.0) == pytest.approx(0.02 * 2 * (1 + 0.5 * 3 / 100))
    jittery = read_script("step=0.01,jitter=0.1")
    assert jittery.step_s(1, 0, 2.0) == pytest.approx(0.012)
    assert jittery.step_s(1, 0, -50.0) == pytest.approx(0.001), "time never runs backwards"


def test_loss_and_accuracy():
    script = read_script("loss=2.5:0.5,accuracy=0.2:0.8,nan@300")
    assert script.loss_after(0) == 2.5
    assert script.loss_after(100) == pytest.approx(0.5 + 2 / math.e)
    assert math.isnan(script.loss_after(300))
    assert [script.accuracy_of(n, 4) for n in (1, 4, 9)] == pytest.approx([0.2, 0.8, 0.8])
    assert script.accuracy_of(1, 1) == 0.8


def test_the_docstring_lists_every_setting_and_event():
    rows = set(re.findall(r"^\| (\w+)", null_script.__doc__ or "", flags=re.M))
    settings = set(Script.__dataclass_fields__) - {"events", "only"}
    assert rows - {"setting", "event"} == settings | set(EVENTS)


def test_the_documentation_lists_every_setting_and_event():
    page = (Path(__file__).parents[3] / "docs" / "frameworks.md").read_text()
    for name in (set(Script.__dataclass_fields__) - {"events", "only"}) | set(EVENTS):
        assert f"`{name}" in page, f"docs/frameworks.md does not describe {name}"


def test_a_setting_may_apply_under_one_condition_only():
    of_passes = read_script("step=0.01,forward-backward.step=0.02")
    assert of_passes.under("fp32", "infer").step == 0.01
    assert of_passes.under("fp32", "forward-backward").step == 0.02
    script = read_script("step=0.01,bf16.step=0.002,2-threads.jitter=0.5,nhwc.loss=2:1")
    assert script.step == 0.01
    assert script.under("bf16", "nchw", "1-threads").step == 0.002
    both = script.under("fp32", "nhwc", "2-threads")
    assert (both.step, both.jitter, both.loss) == (0.01, 0.5, (2.0, 1.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bf61.step=1", "bf16"),
        ("threads.step=1", "1-threads"),
        ("bf16.stpe=1", "step"),
        ("bf16.step=1,bf16.step=2", "set twice"),
        ("bf16.step=0", "per_sample"),
    ],
)
def test_a_wrong_condition_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        read_script(text)
