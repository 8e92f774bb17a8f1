"""The networks written by hand that the benchmarks time against, and weights put into them."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session")
def handwritten():
    path = Path(__file__).parents[3] / "benchmarks" / "handwritten.py"
    spec = importlib.util.spec_from_file_location("handwritten", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def set_weights():
    """Copy a graph's weights into a handwritten module, in order."""

    def set_them(module, network, weights, dtype=torch.float64):
        module.to(dtype)
        running = [b for n, b in module.named_buffers() if "num_batches" not in n]
        with torch.no_grad():
            own = [*zip(module.parameters(), network.parameters, strict=True)]
            own += [*zip(running, network.state, strict=True)]
            for array, name in own:
                array.copy_(torch.from_numpy(weights[name]))
        return module

    return set_them
