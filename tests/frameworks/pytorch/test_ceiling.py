import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.ceiling_search import REST_S, try_out
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch import build_ceiling
from cubemesh.frameworks.pytorch.ceiling import TorchConvolution, TorchCopy, TorchMatrixProduct
from cubemesh.machines.catalogue import find
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("fp64", torch.float64),
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_a_product_is_computed_in_the_precision_of_the_settings(precision, dtype):
    program = build_ceiling(Ceiling(size=48), ProgramSettings(precision=precision), "cpu", 2)
    assert isinstance(program, TorchMatrixProduct)
    program.call()
    assert program._c.dtype == dtype
    expected = (program._a.double() @ program._b.double()).numpy()
    assert program._c.double().numpy() == pytest.approx(expected, rel=0.02, abs=0.2)
    assert program._a.double().std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("size", [1, 1000, (3 << 20) + 7])
def test_a_copy_moves_every_byte(size):
    program = build_ceiling(Ceiling(operation="copy", size=size), ProgramSettings(), "cpu", 2)
    assert isinstance(program, TorchCopy)
    program.call()
    assert torch.equal(program._source, program._target)
    assert program._source.numel() == size
    assert program.work_per_call == 2 * size


def test_without_a_size_one_is_found():
    program = build_ceiling(Ceiling(), ProgramSettings(), "cpu", 2)
    assert program.work_per_call >= 2 * 512**3


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_has_the_shape_of_its_work(transposed):
    program = TorchMatrixProduct((3, 5, 7), torch.float64, "cpu", transposed)
    program.call()
    assert program.work_per_call == 2 * 3 * 5 * 7
    assert program._a.shape == (3, 7)
    assert program._b.is_contiguous() is not transposed
    assert torch.allclose(program._c, program._a @ program._b)
    assert ("transposed" in program.what) is transposed
    asked = build_ceiling(Ceiling(shape=(3, 5, 7)), ProgramSettings(), "cpu", 1)
    assert asked.shape == (3, 5, 7)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_convolution_is_counted_directly(channels_last):
    program = TorchConvolution(2, 4, 5, torch.float32, "cpu", channels_last)
    program.call()
    assert program.work_per_call == 2 * (2 * 4 * 5 * 5) * (4 * 9)
    order = torch.channels_last if channels_last else torch.contiguous_format
    assert program._images.is_contiguous(memory_format=order)
    asked = build_ceiling(Ceiling(operation="convolution", size=1), ProgramSettings(), "cpu", 1)
    assert (asked.batch, asked.extent) == (1, (256, 14))


def test_a_cpu_has_no_link_to_itself():
    with pytest.raises(Unsupported, match="host_to_device"):
        build_ceiling(Ceiling(operation="host_to_device"), ProgramSettings(), "cpu", 1)


def on_gpu(test):
    reason = "PyTorch finds no GPU here"
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason=reason)(test))


@on_gpu
@pytest.mark.parametrize("operation", ["host_to_device", "device_to_host"])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_transfer_crosses_the_link(operation, pinned):
    work = Ceiling(operation=operation, pinned=pinned, size=1 << 20)
    program = build_ceiling(work, ProgramSettings(), "cuda:0", 1)
    program.call()
    program.synchronize()
    host, there = program._source, program._target
    if operation == "device_to_host":
        host, there = there, host
    assert (host.is_cuda, there.is_cuda) == (False, True)
    assert host.is_pinned() is pinned
    assert torch.equal(host, there.cpu())
    assert program.work_per_call == 1 << 20


@on_gpu
@pytest.mark.parametrize("operation", ["matrix_product", "copy"])
def test_rates_are_of_the_size_of_the_datasheet(operation):
    sheet = find(torch.cuda.get_device_name())
    if sheet is None:
        pytest.skip("the catalogue does not know this GPU")
    peak, copied = sheet.peak("bf16"), sheet.figures["memory_bytes_per_s"].value
    most = peak.flops_per_s if operation == "matrix_product" else copied
    program = build_ceiling(
        Ceiling(operation=operation), ProgramSettings(precision="bf16"), "cuda:0", 1
    )
    assert most / 4 < try_out(program, REST_S).rate_per_s <= most, program.what
