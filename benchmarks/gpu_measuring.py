"""What a contestant of benchmarks/gpu.py costs: rates, GPU memory, and what NVML says meanwhile."""

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import measuring
from gpu_contestants import Contestant

Readers = Mapping[str, Callable[[], float]]


class Sampler:
    """A context: asks each reader again and again, in a thread."""

    def __init__(self, readers: Readers, seconds: float = 0.05) -> None:
        """seconds: between two looks."""
        self._readers, self._seconds = readers, seconds
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def means(self, since: float) -> dict[str, float]:
        """The mean of each reader since that time of time.perf_counter(); empty without a
        sample.
        """
        recent = [values for when, values in self._samples if when >= since]
        if not recent:
            return {}
        return {name: statistics.fmean(values[name] for values in recent) for name in self._readers}

    def _run(self) -> None:
        while not self._done.wait(self._seconds if self._readers else None):
            values = {name: read() for name, read in self._readers.items()}
            self._samples.append((time.perf_counter(), values))


@contextmanager
def gpu_readers(number: int) -> Iterator[Readers]:
    """Readers of GPU `number` as CUDA counts: watts, and shares of time, 0 to 1.

    What the card or the driver does not tell is left out.
    """
    from gpupipe.runtime import devices

    with devices.nvml_session() as library:
        if library is None:
            yield {}
            return
        handle = devices.handle_of(library, number)
        asked: dict[str, Callable[[], float]] = {
            "power_watts": lambda: library.nvmlDeviceGetPowerUsage(handle) / 1000,
            "gpu_utilisation": lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "jpeg_utilisation": lambda: library.nvmlDeviceGetJpgUtilization(handle)[0] / 100,
            "video_decoder_utilisation": lambda: (
                library.nvmlDeviceGetDecoderUtilization(handle)[0] / 100
            ),
        }
        yield {
            name: read
            for name, read in asked.items()
            if devices.query_nvml(library, None, read) is not None
        }


def measure(
    contestant: Contestant, device: str, seconds: float, warm_seconds: float
) -> dict[str, Any]:
    """What measuring.measure returns, and on a GPU: `gpu`, what NVML said in the measured passes;
    peak_gpu_mib, the most that the GPU held beyond the bare CUDA context, looked at in the warm-up.
    """
    if device == "cpu":
        found = measuring.measure(contestant.build, contestant.size, seconds, warm_seconds)
        contestant.close()
        return found
    import torch

    torch.cuda.init()
    before = _used_mib()
    watched = _Watched(contestant.build)
    with gpu_readers(0) as readers, Sampler(readers) as sampler:
        found = measuring.measure(
            watched.build, contestant.size, seconds, warm_seconds, torch.cuda.synchronize
        )
        found["gpu"] = sampler.means(time.perf_counter() - found["seconds"])
    contestant.close()
    return found | {"peak_gpu_mib": watched.peak - before}


def release_memory(device: str) -> None:
    """Give back what a contestant that is gone has left: DALI keeps a pool."""
    from nvidia.dali import backend

    gc.collect()
    if device == "gpu":
        backend.ReleaseUnusedMemory()


def _used_mib() -> float:
    import torch

    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


class _Watched:
    """Batches, of which the first pass looks at the GPU's memory after each."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build, self._batches, self.peak = build, None, 0.0

    def build(self) -> "_Watched":
        self._batches = self._build()
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches) if self.peak else self._watching()

    def _watching(self) -> Iterator[Any]:
        for batch in self._batches:
            self.peak = max(self.peak, _used_mib())
            yield batch
