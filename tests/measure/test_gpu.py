import ctypes

import pytest

from cubemesh.measure.gpu import GpuReader, open_gpu


class Library:
    """Answers as NVML does, with return codes; arguments come as ctypes passes them."""

    def __init__(self, *, starts: int = 0, knows: int = 0, tells: int = 0) -> None:
        self.codes = starts, knows, tells
        self.asked: list[bytes] = []

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.codes[0]

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:  # noqa: N802
        self.asked.append(uuid)
        return self.codes[1]

    def nvmlDeviceGetUtilizationRates(self, handle: object, read: object) -> int:  # noqa: N802
        where = ctypes.cast(read, ctypes.POINTER(ctypes.c_uint))
        where[0], where[1] = 93, 41
        return self.codes[2]


def test_the_share_of_time_with_work() -> None:
    library = Library()
    assert GpuReader(library, "GPU-1").percent() == 93.0  # type: ignore[arg-type]
    assert library.asked == [b"GPU-1"]


@pytest.mark.parametrize("codes", [{"starts": 9}, {"knows": 6}, {"tells": 3}])
def test_what_does_not_answer_has_no_reading(codes: dict[str, int]) -> None:
    assert GpuReader(Library(**codes), "GPU-1").percent() is None  # type: ignore[arg-type]


def test_no_gpu_no_reader() -> None:
    assert open_gpu(None) is None
