"""A stand-in for the CUDA runtime of a machine with several GPUs: which device each thread is on,
and which GPUs have a context of this process.

torch's own Python code runs on it: torch.cuda.stream, torch.cuda.device, DataLoader's pinning
thread. What it does is CUDA's, as torch 2.11 and CUDA 12 and 13 do it: the current device of a new
thread is GPU 0, cudaSetDevice makes a context, and a call that asks makes none.
"""

import threading
from typing import Any

import pytest
import torch


class FakeCuda:
    """Stands in for the runtime while `patch` lasts.

    Attributes:
        contexts: The GPUs that have a context.
        error: Raised by each call that waits for a GPU; None if they work.
        waits: Number of the GPU of each such call, in order.
        initialisations: How many calls initialised the driver, after which a fork is of no use.
    """

    def __init__(self, patch: pytest.MonkeyPatch, gpus: int = 2) -> None:
        self.gpus, self.contexts, self.waits = gpus, set[int](), list[int]()
        self.error: Exception | None = None
        self.initialisations = 0
        self._of_thread = threading.local()
        runtime = {
            "_cuda_getDevice": lambda: self.device,
            "_cuda_setDevice": self.set_device,
            "_cuda_getDeviceCount": self._count_by_driver,
            "_cuda_getCurrentStream": self._current_stream,
            "_cuda_setStream": self._set_stream,
            "_cuda_synchronize": lambda: self.wait(self.device),
        }
        for name, function in runtime.items():
            patch.setattr(torch._C, name, function)
        patch.setattr(torch.cuda, "_exchange_device", self._exchange)
        patch.setattr(torch.cuda, "_maybe_exchange_device", self._maybe_exchange)
        patch.setattr(torch.cuda, "_lazy_init", self._initialise)
        patch.setattr(torch.cuda, "is_available", lambda: self._count_by_driver() > 0)
        patch.setattr(torch.cuda, "Stream", self._stream)
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "current_accelerator", _current_accelerator)
        patch.setattr(torch.accelerator, "current_device_index", lambda: self.device)
        patch.setattr(torch.accelerator, "set_device_index", self.set_device)

    @property
    def device(self) -> int:
        """The current device of this thread, as torch sees it."""
        target: int | None = getattr(self._of_thread, "target", None)
        return self._real if target is None else target

    @property
    def _real(self) -> int:
        """The current device of this thread, as CUDA sees it."""
        return getattr(self._of_thread, "real", 0)

    def set_device(self, number: int) -> None:
        """c10::cuda::SetDevice: calls cudaSetDevice where CUDA's device is another one."""
        self._of_thread.target = None
        if number != self._real:
            self._of_thread.real = number
            self.contexts.add(number)

    def allocate_page_locked(self) -> None:
        """Memory for the GPUs that have a context, else for the current one, which gets one."""
        if not self.contexts:
            self.contexts.add(self.device)

    def wait(self, number: int) -> None:
        """Wait for GPU `number`, or fail as one that is broken."""
        self.waits.append(number)
        if self.error is not None:
            raise self.error

    def _initialise(self) -> None:
        self.initialisations += 1

    def _count_by_driver(self) -> int:
        self._initialise()
        return self.gpus

    def _exchange(self, number: int) -> int:
        before = self.device
        if number >= 0:
            self.set_device(number)
            self.contexts.add(number)
        return before

    def _maybe_exchange(self, number: int) -> int:
        """c10::cuda::MaybeExchangeDevice: a GPU without a context becomes the current one for torch
        alone.
        """
        before = self.device
        if number in self.contexts:
            self.set_device(number)
        elif number >= 0:
            self._of_thread.target = number
        return before

    def _stream(self, device: Any = None, **place: int) -> "FakeStream":
        if place:
            return FakeStream(self, place["device_index"], place["stream_id"])
        with torch.cuda.device(device):
            return FakeStream(self, self.device, 7)

    def _current_stream(self, number: int) -> tuple[int, int, int]:
        return getattr(self._of_thread, f"stream{number}", 0), number, 1

    def _set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        if device_index != self.device:
            self.set_device(device_index)
        setattr(self._of_thread, f"stream{device_index}", stream_id)


def _current_accelerator(check_available: bool = False) -> torch.device | None:
    """FakeTensorMode asks with `check_available`, and would make a real tensor on the GPU."""
    return None if check_available else torch.device("cuda")


class FakeStream:
    """A stream of a FakeCuda."""

    device_type = 1

    def __init__(self, cuda: FakeCuda, device_index: int, stream_id: int) -> None:
        self._cuda, self.device_index, self.stream_id = cuda, device_index, stream_id
        self.device = torch.device("cuda", device_index)

    def record_event(self) -> "FakeEvent":
        return FakeEvent()

    def wait_event(self, event: "FakeEvent") -> None:
        """Nothing is queued."""

    def synchronize(self) -> None:
        self._cuda.wait(self.device_index)


class FakeEvent:
    """An event, before which nothing is queued."""

    def query(self) -> bool:
        return True
