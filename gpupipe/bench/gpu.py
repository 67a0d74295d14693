"""How busy a GPU is, asked of NVML while something runs."""

from __future__ import annotations

import statistics
import threading
from types import TracebackType

from gpupipe.runtime import nvml

_SECONDS_BETWEEN_LOOKS = 0.1


class Utilisation:
    """A context: `mean` is then the mean share of time, 0 to 1, in which the GPU ran a kernel; None
    on a CPU, or where NVML cannot tell.
    """

    def __init__(self, device: str) -> None:
        """device: "cpu" or "gpu:N"."""
        self.mean: float | None = None
        self._number = int(device.partition(":")[2] or 0) if device != "cpu" else None
        self._seen: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Utilisation:
        if self._number is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._number is not None:
            self._thread.join()
        self.mean = statistics.fmean(self._seen) if self._seen else None

    def _look(self) -> None:
        with nvml.session() as library:
            if library is None or self._number is None:
                return
            try:
                handle = nvml.handle_of(library, self._number)
                while not self._done.wait(_SECONDS_BETWEEN_LOOKS):
                    self._seen.append(library.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
            except library.NVMLError:
                return
