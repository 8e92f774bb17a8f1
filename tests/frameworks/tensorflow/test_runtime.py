"""TensorFlow's settings of a process for a GPU, as far as a machine without one shows them."""

from types import SimpleNamespace

import pytest

tf = pytest.importorskip("tensorflow")

from cubemesh.frameworks.contract.program import NotInstalled
from cubemesh.frameworks.tensorflow import runtime
from cubemesh.frameworks.tensorflow.network import TensorFlowFunction
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.schema.spec import Placement, ProgramSettings, RunSpec
from cubemesh.schema.work import TrainSteps
from cubemesh.worker.validation import check_supported

GPUS = [SimpleNamespace(name=f"/physical_device:GPU:{i}", device_type="GPU") for i in range(2)]


@pytest.fixture
def two_gpus(monkeypatch):
    """Calls that reach TensorFlow's configuration of a process with two GPUs."""
    calls = {}
    config = tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: GPUS)
    monkeypatch.setattr(config, "set_visible_devices", lambda found, kind: calls.update(see=found))
    monkeypatch.setattr(
        config.experimental, "set_memory_growth", lambda gpu, on: calls.update(grows=(gpu, on))
    )
    monkeypatch.setattr(
        config.experimental, "get_device_details", lambda gpu: {"compute_capability": (9, 0)}
    )
    for pool in ("intra", "inter"):
        name = f"set_{pool}_op_parallelism_threads"
        monkeypatch.setattr(config.threading, name, lambda n, pool=pool: calls.update({pool: n}))
    return calls


def test_a_gpu_is_the_only_one_that_the_process_sees(two_gpus):
    runtime.prepare("cuda:1", 3)
    assert two_gpus == {"see": [GPUS[1]], "grows": (GPUS[1], True), "intra": 3, "inter": 1}


def test_a_process_for_the_cpu_sees_no_gpu(two_gpus):
    runtime.prepare("cpu", 2)
    assert two_gpus == {"see": [], "intra": 2, "inter": 1}


def test_gpus_are_offered_by_index(two_gpus):
    able = runtime.capabilities()
    assert able.devices == ("cuda:0", "cuda:1", "cpu")
    assert able.precisions["cuda"] == {"fp64", "fp32", "tf32", "bf16", "fp16"}
    assert able.precisions["cpu"] == {"fp64", "fp32", "bf16", "fp16"}
    assert (able.hint, able.lacking) == ("", frozenset())


def test_before_ampere_there_is_no_tf32_or_bf16(two_gpus, monkeypatch):
    details = {"compute_capability": (7, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert runtime.capabilities().precisions["cuda"] == {"fp64", "fp32", "fp16"}


def test_a_build_without_cuda_names_what_to_install(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: False)
    able = runtime.capabilities()
    spec = RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=4),
        program=ProgramSettings(framework="tensorflow", layout="nhwc"),
        placement=Placement(device="cuda"),
    )
    with pytest.raises(NotInstalled, match=r"without CUDA.*tensorflow\[and-cuda\]"):
        check_supported(spec, able)
    assert able.devices == ("cpu",)


@pytest.mark.parametrize(
    ("with_cuda", "has_driver", "words"),
    [(False, False, "without CUDA"), (True, True, "driver is loaded"), (True, False, "")],
)
def test_what_to_install_depends_on_what_is_there(with_cuda, has_driver, words):
    hint = runtime.gpu_hint(with_cuda, has_driver)
    assert words in hint
    assert bool(words) == bool(hint)


def test_tf32_is_switched_on_for_tf32_only():
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    for precision in ("tf32", "fp32", "tf32", "bf16"):
        runtime.use_precision(precision)
        assert enabled() == (precision == "tf32")


@pytest.mark.parametrize(("on_gpu", "convolutions"), [(False, 4), (True, 1)])
def test_a_grouped_convolution_is_one_operation_on_a_gpu(on_gpu, convolutions):
    net = NetworkBuilder("grouped")
    x = net.conv(net.input("image", (4, 8, 8)), 8, kernel=3, padding=1, groups=4)
    net.classify(net.linear(net.flatten(x), 10))
    function = TensorFlowFunction(
        net.build(), "nhwc", runtime.NUMERICS["fp32"], compiled=False, on_gpu=on_gpu
    )
    images = tf.TensorSpec([2, 8, 8, 4], tf.float32)
    graph = tf.function(function.scores, autograph=False).get_concrete_function(images).graph
    found = [operation.type for operation in graph.get_operations()].count("Conv2D")
    assert found == convolutions


def test_the_cpu_has_no_count_and_nothing_queued():
    runtime.reset_peak_memory("cpu")
    runtime.synchronize("cpu")
    assert runtime.peak_memory_bytes("cpu") is None
