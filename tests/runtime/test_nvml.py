"""What is asked of NVIDIA's driver, and of which GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpupipe.bench.machine import Utilisation
from gpupipe.bench.measure import gpu_of
from gpupipe.runtime import nvml
from gpupipe.runtime.devices import gpu_count


class Library:
    """NVML on a machine without a driver has no answers: this one knows GPUs and parts of them by
    their UUID, as NVML does.
    """

    class NVMLError(Exception):
        """What NVML raises."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.known:
            raise self.NVMLError("NVML_ERROR_NOT_FOUND")
        return f"handle of {uuid}"


@pytest.mark.parametrize(
    ("known", "uuid", "handle"),
    [
        (["GPU-ab", "GPU-cd"], "cd", "handle of GPU-cd"),
        (["GPU-ab", "MIG-cd"], "cd", "handle of MIG-cd"),
        (["GPU-ab"], "GPU-ab", "handle of GPU-ab"),
        (["MIG-ab"], "MIG-ab", "handle of MIG-ab"),
    ],
)
def test_a_gpu_and_a_part_of_one_are_found_by_uuid(
    known: list[str], uuid: str, handle: str
) -> None:
    assert nvml.handle_of_uuid(Library(*known), uuid) == handle


def test_a_gpu_that_nvml_does_not_know_is_nvmls_error() -> None:
    with pytest.raises(Library.NVMLError):
        nvml.handle_of_uuid(Library("GPU-ab"), "cd")


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_without_a_driver_nothing_answers() -> None:
    with nvml.session() as library:
        assert library is None
    assert nvml.find_driver() is None
    with Utilisation("gpu:0") as busy:
        pass
    assert busy.mean is None


@pytest.mark.parametrize(("device", "number"), [("cpu", None), ("gpu:0", 0), ("gpu:3", 3)])
def test_what_is_synchronised_and_measured_is_the_loaders_gpu(
    device: str, number: int | None
) -> None:
    loader: Any = SimpleNamespace(engine=SimpleNamespace(device=device))
    assert gpu_of(loader) == number
