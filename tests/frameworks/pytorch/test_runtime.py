import os

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import ReportsPrecision
from cubemesh.frameworks.pytorch import runtime
from cubemesh.networks.zoo.translator import translator
from cubemesh.schema.spec import ProgramSettings
from script_server import run_code

REFUSED = """
import os, resource, sys
import numpy as np
import torch
from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch import build, is_out_of_memory, preload
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import TrainSteps
from cubemesh.parallel.strategy import NoSync

preload()
for case in sys.argv[1:]:
    if os.fork() == 0:
        break
    if os.wait()[1]:
        sys.exit(f"{case} failed")
else:
    sys.exit()
batch, room, precision = case.split("-")
batch, room = int(batch), int(room)
network = networks.build("little-cnn", 32, 10)
program = build(
    BuildRequest(
        network=network,
        work=TrainSteps(network="little-cnn", batch_per_device=batch),
        placement=Placement(),
        program=ProgramSettings(precision=precision),
        sync=NoSync(),
        device="cpu",
        threads=2,
    )
)
program.load(network.draw(0))
small = Batch(images=np.zeros((2, 3, 32, 32), np.float32), labels=np.zeros(2, np.int64))
program.train_step(program.place(small))
data_bytes = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + room, resource.RLIM_INFINITY))
try:
    images = np.zeros((batch, 3, 32, 32), np.float32)
    placed = program.place(Batch(images=images, labels=np.zeros(batch, np.int64)))
    for _ in range(2):
        program.train_step(placed)
except Exception as error:
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(case, is_out_of_memory(error), type(error).__name__, str(error).replace("\\n", " "))
else:
    print(case, "fits")
"""
"""One fork for each case: minibatch, room in bytes and precision."""


def test_real_refusals_of_memory_are_recognized():
    cases = (f"4096-{40 << 20}-fp32", f"2048-{200 << 20}-bf16")
    printed = run_code(REFUSED, *cases)
    recognized = dict(line.split(maxsplit=1) for line in printed.splitlines())
    assert recognized.keys() == set(cases)
    assert all(words.startswith("True ") for words in recognized.values()), recognized


@pytest.mark.parametrize(
    "words",
    [
        "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)",
        "[enforce fail at alloc_cpu.cpp:75] data. DefaultCPUAllocator: not enough memory: you "
        "tried to allocate 1024 bytes.",
        "std::bad_alloc",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA out of memory. Tried to allocate 20.00 MiB.",
        "could not create a primitive",
    ],
)
def test_known_refusals_are_recognized(words):
    assert runtime.is_out_of_memory(RuntimeError(words))


def test_other_errors_are_not_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not runtime.is_out_of_memory(caught.value)
    assert not runtime.is_out_of_memory(KeyError("out of memory"))
    unsupported = "could not create a primitive descriptor for a convolution forward propagation"
    assert not runtime.is_out_of_memory(RuntimeError(unsupported))


def test_an_impossible_array_is_refused_and_recognized():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert runtime.is_out_of_memory(caught.value)


@pytest.fixture
def _keep_settings():
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])


@pytest.mark.usefixtures("_keep_settings")
def test_a_run_sets_threads_and_the_precision_of_products():
    runtime.prepare("cpu", "tf32", 1)
    assert torch.get_num_threads() == 1
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32
    runtime.prepare("cpu", "fp32", 2)
    assert torch.get_num_threads() == 2
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32


def test_cudnn_times_its_algorithms_unless_a_run_is_deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    runtime.prepare("cpu", "fp32", 1)
    assert torch.backends.cudnn.benchmark
    runtime.prepare("cpu", "fp32", 1, deterministic=True)
    assert not torch.backends.cudnn.benchmark
    runtime.prepare("cpu", "fp32", 1)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_cpu_is_last_and_offers_no_tf32():
    able = runtime.capabilities()
    assert able.devices[-1] == "cpu"
    assert able.precisions["cpu"] == {"fp64", "fp32", "bf16", "fp16"}


def test_denormal_numbers_count_as_zero_in_every_thread() -> None:
    program = """
import torch
from cubemesh.frameworks.pytorch import runtime

runtime.prepare("cpu", "fp32", 2)
print(int(torch.count_nonzero(torch.full((1 << 20,), 1e-20) * 1e-20)))
"""
    assert int(run_code(program)) == 0


@pytest.mark.parametrize(
    ("decode_location", "set_before", "set_after"),
    [("device", None, "32"), ("device", "8", "8"), ("host", None, None)],
)
def test_decoding_on_the_device_raises_the_number_of_hardware_queues(
    decode_location, set_before, set_after, monkeypatch
):
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    monkeypatch.setattr(os, "environ", {} if set_before is None else {name: set_before})
    runtime.setup_process(ProgramSettings(decode_location=decode_location))
    assert os.environ.get(name) == set_after


def test_lstms_on_a_gpu_under_bf16_are_reported_to_run_in_fp16(make_request):
    reporting = {
        name
        for name in ("pytorch", "pytorch-compiled", "pytorch-captured")
        if isinstance(entry(name).load(), ReportsPrecision)
    }
    assert reporting == {"pytorch", "pytorch-captured"}, "compiled, an LSTM is decomposed"
    small = translator(sequence_length=4, vocabulary=32, hidden=8)
    message = runtime.other_precision(make_request(small, precision="bf16", device="cuda:0"))
    for name in ("encoder.lstm", "decoder.lstm", "fp16"):
        assert name in message
    for case in ({"precision": "fp16"}, {"precision": "fp32"}):
        assert runtime.other_precision(make_request(small, device="cuda:0", **case)) == ""
    assert runtime.other_precision(make_request(small, precision="bf16")) == "", "a CPU has bf16"
    assert runtime.other_precision(make_request(precision="bf16", device="cuda:0")) == ""
