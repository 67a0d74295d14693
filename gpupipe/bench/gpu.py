"""Samples the utilisation of a GPU through NVML while something runs."""

from __future__ import annotations

import statistics
import threading

from gpupipe.runtime import nvml

_SECONDS_BETWEEN_LOOKS = 0.1


class Utilisation:
    """A context manager that measures how busy a GPU is.

    Attributes:
        mean: After the context, the mean share of time in which the GPU ran a kernel, 0 to 1. None
            on a CPU, or if NVML has no answer.
    """

    def __init__(self, device: str) -> None:
        """Measure `device`, "cpu" or "gpu:N"."""
        self.mean: float | None = None
        self._number = int(device.partition(":")[2] or 0) if device != "cpu" else None
        self._shares: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Utilisation:
        if self._number is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._number is not None:
            self._thread.join()
        self.mean = statistics.fmean(self._shares) if self._shares else None

    def _look(self) -> None:
        with nvml.session() as library:
            if library is None or self._number is None:
                return
            try:
                handle = nvml.handle_of(library, self._number)
                while not self._done.wait(_SECONDS_BETWEEN_LOOKS):
                    self._shares.append(library.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
            except library.NVMLError:
                return
