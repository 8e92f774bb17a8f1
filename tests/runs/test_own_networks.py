"""Networks of a user: where their code may run, what a run of one stores, what a broken one is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import cubemesh
from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import apply
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import stored_result
from cubemesh.experiments.session import resolve, run_names
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.own_module import DescriptionRequest
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.validation import check_layers
from cubemesh.networks import build, build_for, entry, own_networks, rate_unit
from cubemesh.networks.assembly import Assembly
from cubemesh.networks.graph_text import to_text
from cubemesh.networks.opaque import Opaque
from cubemesh.networks.zoo.littlecnn import little_cnn
from cubemesh.runs import Executor, Silent
from cubemesh.runs import own_networks as descriptions
from cubemesh.runs.own_networks import describe_named
from cubemesh.schema import Status
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.schema.serialization import to_plain
from cubemesh.store import Store
from cubemesh.user_code import locate

MODULES = Path(__file__).parent.parent / "support" / "own_modules.py"
NULL = ["framework=null", "script=step=0.002,per_sample=0.0001", "batch_sizes=4"]


def own_network(digest: str = "1", **more: str) -> OwnNetwork:
    """The description of a graph, as if a file `mine.py` had it."""
    text = to_text(little_cnn(16, 7), {"conv1.weight": (0.0, 0.1)})
    return OwnNetwork(source="/folder/mine.py:Net", digest=digest, graph=text, **more)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A store and its one answer, about a graph, a broken module and one that runs as it is."""
    folder = tmp_path_factory.mktemp("own")
    broken = own_network(fault="broken.py:Net: building it raised Oh: no.")
    own = [
        own_network(),
        replace(broken, source="/broken.py:Net"),
        replace(own_network(untraced="it has a gate"), source="/gated.py:Net"),
    ]
    lines = [*NULL, f"networks={','.join(one.name for one in own)}"]
    with pytest.MonkeyPatch.context() as patch, Store.open(str(folder / "s.sqlite")) as store:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # no other runner's lock is in the way
        with own_networks.named(own):
            (result,) = run_names(["minibatch"], lines, scale=None, store=store, observer=Silent())
        yield store, result


def record_of(answered, name: str):
    """The run of a network."""
    return next(r for r in answered[1].records if getattr(r.spec.work, "network", "") == name)


def test_a_named_network_is_one_of_the_table_while_its_command_runs():
    with own_networks.named([own_network()]):
        assert entry("elsewhere/mine.py:Net").sizes == {"image_size": 16, "classes": 7}
        assert build("mine.py:Net").draw(0)["conv1.weight"].std() == pytest.approx(0.1, rel=0.2)
        assert rate_unit("mine.py:Net") == "images/s"
        with pytest.raises(
            UsageError, match=r"classes=9: mine.py:Net was described with classes=7"
        ):
            build("mine.py:Net", classes=9)
    with pytest.raises(UsageError, match="runs only where a command names it"):
        build("mine.py:Net")


def test_two_files_of_one_name_are_refused():
    other = replace(own_network("2"), source="/other/mine.py:Net")
    with (
        pytest.raises(UsageError, match="have the same name"),
        own_networks.named([own_network(), other]),
    ):
        pass


def test_its_runs_are_stored_with_its_description_and_read_without_it(answered):
    store, result = answered
    record = record_of(answered, "mine.py:Net")
    assert record.ok, record.outcome
    assert record.spec.work.own_network == own_network()
    assert build_for(record.spec.work).targets[0].classes == 7
    again = stored_result(EXPERIMENTS["minibatch"], result.experiment_run, store)
    assert [f.code for f in again.answer.findings] == [f.code for f in result.answer.findings]
    assert store.record(record.run_id).spec == record.spec


def test_a_changed_file_is_another_run(answered):
    record = record_of(answered, "mine.py:Net")
    changed = replace(record.spec, work=replace(record.spec.work, own_network=own_network("2")))
    assert changed.spec_id != record.spec.spec_id
    assert changed.workload_id != record.spec.workload_id


def test_a_broken_network_is_an_outcome_in_one_sentence(answered):
    outcome = record_of(answered, "broken.py:Net").outcome
    assert outcome.status is Status.CRASHED
    assert outcome.message == "broken.py:Net: building it raised Oh: no."
    assert "traceback" not in outcome.facts


def test_what_runs_as_it_is_has_a_warning_that_says_why(answered):
    warnings = record_of(answered, "gated.py:Net").warnings
    (cause,) = (w.cause for w in warnings if w.code == "no-graph")
    assert cause == "gated.py:Net runs as it is: it has a gate."


def test_frameworks_without_modules_refuse_one_layer_with_the_reason():
    network = as_one_layer(untraced="it has a gate")
    with pytest.raises(Unsupported, match=r"jax cannot run mine.py:Net: .*it has a gate"):
        check_layers(network, (), "jax")


def as_one_layer(**more: str):
    """The network of a module that has no graph."""
    net = Assembly("mine.py:Net")
    image = net.input("image", (3, 4, 4))
    net.classify(net.add_layer(Opaque(output=(2,)), image, name="module"))
    return own_networks.network_of(replace(own_network(**more), graph=to_text(net.build(), {})))


@pytest.mark.parametrize("setting", ["networks=mine.py:Net", "networks=package.module:build"])
def test_a_queue_and_a_page_name_no_code(setting):
    """Both resolve settings so; only `run`, `train` and `tune` describe what they name."""
    with pytest.raises(UsageError, match="runs only where a command names it"):
        resolve(["minibatch"], [setting], None)


def test_a_spec_of_a_store_runs_no_code(tmp_path, small_machine, null_spec):
    spec = null_spec()
    spec = replace(spec, work=replace(spec.work, own_network=own_network()))
    with (
        Store.open(str(tmp_path / "s.sqlite")) as store,
        Executor(store, machine=small_machine) as executor,
    ):
        with pytest.raises(UsageError, match="runs only where a command names it"):
            executor.run([spec])
        with own_networks.named([own_network("2")]), pytest.raises(UsageError, match="not as this"):
            executor.run([spec])
        assert store.records() == []


def test_a_spec_gets_the_description_of_the_network_that_it_names(null_spec):
    spec = replace(null_spec(), work=replace(null_spec().work, network="mine.py:Net"))
    with own_networks.named([own_network()]):
        assert apply(spec, {}).work.own_network == own_network()
    assert apply(spec, {}).work.own_network is None


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("none.py:Net", {}, "there is no file"),
        ("a b:Net", {}, "neither a file that ends in .py nor"),
        (f"{MODULES}:a-b", {}, "does not name an object"),
        (f"{MODULES}:Net", {"input_shape": "big"}, "write CHANNELSxHEIGHTxWIDTH"),
        (f"{MODULES}:Net", {"input_shape": "3x0x4"}, "each size is 1 or more"),
        (f"{MODULES}:Net", {"input_shape": "0:5"}, "each size is 1 or more"),
        (f"{MODULES}:Net", {"input_shape": "784"}, "not an input that data has"),
        (f"{MODULES}:Net", {"sequence_length": "12"}, "not an input that data has"),
    ],
)
def test_a_wrong_name_or_input_is_refused_before_anything_is_imported(name, settings, words):
    with pytest.raises(UsageError, match=words):
        describe_named([name], settings)


def test_an_input_shape_needs_an_own_network():
    with pytest.raises(UsageError, match="is the input of a network of your own"):
        resolve(["minibatch"], ["networks=little-cnn", "input_shape=3x8x8"], None)
    with pytest.raises(UsageError, match="is the input of a network of your own"):
        cubemesh.network_layers("little-cnn", input_shape="3x8x8")


@pytest.mark.skipif(not FRAMEWORKS["pytorch"].installed, reason="PyTorch is not installed")
def test_a_description_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(descriptions, "LIMIT_S", 0.01)
    (own,) = describe_named([f"{MODULES}:loops"], {"input_shape": "3x8x8"})
    assert "took longer than 0.01 s" in own.fault
    with own_networks.named([own]):
        assert build("own_modules.py:loops").inputs[0].shape == (3, 8, 8)


def test_code_that_ends_its_process_is_a_fault(tmp_path):
    """A program takes the place of the Python, so that none has to import PyTorch."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho bye.\nexit 3\n")
    program.chmod(0o700)
    named = locate(f"{MODULES}:Net", "networks")
    asked = DescriptionRequest(named=named, input_shape=(3, 8, 8))
    own = descriptions._describe(asked, [str(program)])
    assert own.fault == (
        "own_modules.py:Net: its code ended the process (exit code 3) after it printed: bye."
    )


def scripted(folder, name: str, line: str) -> str:
    """A Python that is a script; it gets the file of the request and that of the result."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o700)
    return str(program)


def test_another_python_is_asked_where_a_package_is_missing(tmp_path):
    lacks = replace(own_network(), fault="Net: importing it raised ModuleNotFoundError: No flax.")
    found = replace(own_network(), framework="jax", untraced="a Flax module")
    for name, own in (("lacks", lacks), ("found", found)):
        (tmp_path / name).write_text(json.dumps(to_plain(own)))
    # The arguments are -P -m cubemesh.worker describe REQUEST RESULT.
    first, second, never = (
        scripted(tmp_path, f"{name}.sh", f'cp {tmp_path}/{name} "$6"')
        for name in ("lacks", "found", "none")
    )
    named = locate(f"{MODULES}:Net", "networks")
    asked = DescriptionRequest(named=named, input_shape=(3, 8, 8))
    assert descriptions._describe(asked, [first, second, never]) == found
    assert descriptions._describe(asked, [first, first]) == lacks
    assert descriptions._describe(asked, [second, never]) == found


def test_a_file_without_code_has_its_own_input(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"")
    name = f"{tmp_path}/net.onnx"
    request, pythons = descriptions._asked(name, {"sequence_length": "7"})
    assert (request.input_shape, request.sequence_length, pythons) == (None, 7, [None])
    request, _ = descriptions._asked(name, {"input_shape": "5:11"})
    assert (request.input_shape, request.vocabulary) == ((5,), 11)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "net.onnx",
            "net.onnx is an ONNX file, which PyTorch traces, and PyTorch is not installed",
        ),
        ("./gpt2", "is a configuration of Hugging Face, whose models are PyTorch's, and"),
        ("mine.py:Net", "is a module of PyTorch, Flax or Keras, and PyTorch is not installed"),
    ],
)
def test_without_a_framework_one_sentence_says_what_to_install(name, words, monkeypatch):
    monkeypatch.setattr(type(FRAMEWORKS["jax"]), "installed", False)
    with pytest.raises(UsageError, match=f"{words}.*pip install 'cubemesh.torch.'"):
        describe_named([name], {})


@pytest.mark.parametrize("name", ["/folder/net.onnx", "/folder/gpt2/"])
def test_files_and_folders_are_own_networks_that_a_queue_does_not_name(name):
    own = replace(own_network(), source=name)
    with own_networks.named([own]):
        assert entry(name).sizes == {"image_size": 16, "classes": 7}
        assert build(own.name).name == own.name
    with pytest.raises(UsageError, match="runs only where a command names it"):
        resolve(["minibatch"], [f"networks={name}"], None)
    with pytest.raises(UsageError, match="runs only where a command names it"):
        build(own.name)
