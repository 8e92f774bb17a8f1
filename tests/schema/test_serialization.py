"""Every noun becomes plain JSON and comes back equal; what does not fit is refused by name."""

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cubemesh.schema as model
from cubemesh.schema import (
    Budget,
    Ceiling,
    CheckpointSettings,
    Collective,
    Cost,
    InferLoad,
    InferPrecision,
    Outcome,
    Placement,
    ProgramSettings,
    RunSpec,
    Series,
    Status,
    Train,
    TrainSteps,
)
from cubemesh.schema.serialization import canonical_json, digest, from_plain, to_plain

NOUNS = sorted(
    (n for n in vars(model).values() if isinstance(n, type) and dataclasses.is_dataclass(n)),
    key=lambda noun: noun.__name__,
)
SIMPLE = {
    int: st.integers(1, 10**12),
    float: st.floats(1e-6, 1e12),
    str: st.text(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
}


@functools.cache  # built from their fields for each example otherwise
def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as the nouns' annotations write them."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if kind is Any:
        return st.one_of(*SIMPLE.values(), st.lists(st.integers(), max_size=2))
    if kind is Series:
        pairs = st.lists(st.tuples(SIMPLE[float], SIMPLE[float]), max_size=3)
        return pairs.map(
            lambda p: Series(
                name="w", times_s=tuple(t for t, _ in p), values=tuple(v for _, v in p)
            )
        )
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {f.name: instances(hints[f.name]) for f in dataclasses.fields(kind) if f.init}
        if kind is Train:  # drops within the epochs, and a share
            drops = {"rate_drops": st.just((1, 3)), "schedule": st.just("step")}
            given = {**fields, "target_accuracy": st.none() | st.floats(0.01, 1.0)}
            given |= {"rate_drops": st.just(()), "epochs": st.integers(4, 90)}
            return st.builds(kind, **given) | st.builds(kind, **given | drops)
        if kind is Placement:  # hosts that share the devices evenly
            alone, shared = {"hosts": st.just(())}, {"hosts": st.just(("one", "two"))}
            even = {"devices": st.integers(1, 512).map(lambda half: 2 * half)}
            return st.builds(kind, **fields | alone) | st.builds(kind, **fields | shared | even)
        if kind is Budget:
            fields["heartbeat_timeout_s"] = st.floats(2.0, 1e6)
        if kind is CheckpointSettings:
            fields["checkpoints"] = st.just("/tmp")
            planned, fixed = {"every_steps": st.none()}, {"fault_every_s": st.none()}
            resumed = {"resume": st.just(True), "reshard": st.booleans()}
            anew = {"reshard": st.just(False)}
            return st.one_of(
                *(
                    st.builds(kind, **fields | a | b)
                    for a in (planned, fixed)
                    for b in (resumed, anew)
                )
            )
        if kind is InferPrecision:
            fields["accuracy"] = st.floats(0.01, 1.0)
        if kind is InferLoad:  # only a server has a rate and a limit
            fields["percentile"] = st.floats(50, 99.9)
            rated = {"scenario": st.just("server"), "requests_per_s": st.floats(0.1, 1e6)}
            rated |= {"latency_limit_s": st.floats(1e-3, 10)}
            bare = {"scenario": st.sampled_from(("single-stream", "multi-stream", "offline"))}
            bare |= {"requests_per_s": st.none(), "latency_limit_s": st.none()}
            return st.builds(kind, **fields | rated) | st.builds(kind, **fields | bare)
        if kind is Ceiling:
            own = {"matrix_product": "shape", "disk_read": "folder", "device_to_host": "pinned"}
            others = {"shape": st.none(), "folder": st.none(), "pinned": st.just(True)}
            return st.one_of(
                st.builds(
                    kind,
                    operation=st.just(operation),
                    size=st.none() if name == "shape" else fields["size"],
                    **{**others, name: st.just("/tmp") if name == "folder" else fields[name]},
                )
                for operation, name in own.items()
            )
        if kind is Collective:  # there is a size, and only what reduces has a reduction
            fields["sizes_bytes"] = st.lists(st.integers(1, 99), min_size=1, max_size=3).map(tuple)
            others = {**fields, "reduction": st.just("sum")}
            reducing = {**fields, "collective": st.sampled_from(("all-reduce", "reduce"))}
            return st.builds(kind, **others) | st.builds(kind, **reducing)
        if kind is not ProgramSettings:
            return st.builds(kind, **fields)
        layers = st.just(("fc1=fp32", "conv*=bf16"))  # of mixed precision alone, as is the scale
        plain = {**fields, "precision_of": st.just(()), "loss_scale": st.none()}
        mixed = {**fields, "precision": st.just("fp16"), "precision_of": layers}
        return st.builds(kind, **plain) | st.builds(kind, **mixed)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(instances, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return st.lists(instances(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(instances, arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(st.text(max_size=5), instances(arguments[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    raise AssertionError(f"no values of {kind} are known")


@pytest.mark.parametrize("noun", NOUNS, ids=lambda n: n.__name__)
@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_noun_survives_json(noun, data):
    value = data.draw(instances(noun))
    for defaults in (True, False):
        text = json.dumps(to_plain(value, defaults=defaults))
        assert from_plain(noun, json.loads(text)) == value


def test_the_nouns_are_all_here():
    names = {noun.__name__ for noun in NOUNS}
    assert {"RunSpec", "RunRecord", "Machine", "Answer", "ExperimentRun", "Series", "Cost"} <= names
    assert all(noun.__dataclass_params__.frozen for noun in NOUNS)
    assert {n for n in model.__all__ if isinstance(getattr(model, n), type)} >= names


def test_defaults_are_left_out_but_a_kind_is_kept():
    work = TrainSteps(network="vgg16", batch_per_device=4)
    assert to_plain(RunSpec(work=work), defaults=False) == {
        "work": {"network": "vgg16", "batch_per_device": 4, "kind": "train_steps"}
    }
    assert to_plain(RunSpec(work=work))["budget"]["steps"] == 20


def test_what_is_missing_takes_its_default():
    assert from_plain(Budget, {"steps": 3}) == Budget(steps=3)
    assert from_plain(Cost, {}) == Cost()


def test_canonical_json_has_one_spelling():
    assert canonical_json({"b": (1, 2), "a": Status.OK}) == '{"a":"ok","b":[1,2]}'
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    assert len(digest(1)) == 16
    assert digest(1, length=12) == digest(1)[:12]
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(float("nan"))


@pytest.mark.parametrize(
    ("kind", "plain", "message"),
    [
        (Budget, {"stepz": 1}, r"Budget: unknown field 'stepz'; known: steps, seconds"),
        (Budget, {"steps": "3"}, r"Budget\.steps: '3' is not int"),
        (Budget, {"steps": True}, r"Budget\.steps: True is not int"),
        (Budget, {"steps": 2.5}, r"Budget\.steps: 2\.5 is not int"),
        (Budget, {"seconds": "2"}, r"Budget\.seconds: '2' is not float"),
        (Budget, [], r"Budget: \[\] is not a table"),
        (
            RunSpec,
            {"work": {"kind": "dance"}},
            r"RunSpec\.work: unknown kind 'dance'; known: train",
        ),
        (
            RunSpec,
            {"work": {"kind": "ceiling"}, "program": {"precision": "fp7"}},
            r"RunSpec\.program\.precision: 'fp7' is not one of 'fp64', 'fp32'",
        ),
        (Series, {"name": "w", "times_s": 3}, r"Series\.times_s: 3 is not a list"),
        (Series, {"name": "w", "times_s": ["x"]}, r"Series\.times_s\[0\]: 'x' is not float"),
        (Series, {"name": "w", "times_s": [0.0]}, r"w: 1 times for 0 values"),
        (Outcome, {"status": "fine"}, r"Outcome\.status: 'fine' is not one of ok, oom"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(kind, plain, message):
    with pytest.raises(ValueError, match=message):
        from_plain(kind, plain)


def test_what_is_no_data_has_no_plain_form():
    with pytest.raises(TypeError, match=r"^object\b"):
        to_plain({"x": object()})


def test_a_whole_number_has_one_spelling_and_so_one_id():
    as_integer = TrainSteps(network="a", batch_per_device=8, learning_rate=1)
    as_float = TrainSteps(network="a", batch_per_device=8, learning_rate=1.0)
    assert digest(as_integer) == digest(as_float)
    assert canonical_json(from_plain(TrainSteps, to_plain(as_integer))) == canonical_json(as_float)


def test_what_is_no_table_is_refused_by_field():
    with pytest.raises(ValueError, match=r"Outcome\.facts"):
        from_plain(Outcome, {"status": "ok", "facts": 3})
