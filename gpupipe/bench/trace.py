"""Records a trace of training on a loader, for Perfetto and chrome://tracing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpupipe.bench.measure import describe_loader, gpu_of, iter_endlessly, synchronise
from gpupipe.bench.training import Train
from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.loader import Loader, create_loader
from gpupipe.runtime import tracing

_WARM_UP_STEPS = 2
_LEAST_STEPS = 3


def record_training(
    config: Config, index: Index, train: Callable[[Loader], Train] | None, seconds: float
) -> dict[str, Any]:
    """Train for some seconds, at least three steps, and return the trace.

    On a GPU every span is also an NVTX range of the same name, for Nsight Systems.

    Args:
        config: The config to load.
        index: Its samples.
        train: Returns the training step for a loader; None: steps that do nothing.
        seconds: How long to record.

    Returns:
        The trace, in Chrome's trace format, as plain JSON. `otherData` says what was traced.

    Raises:
        GpupipeError: As load().
    """
    with create_loader(config, index) as loader:
        step: Train = train(loader) if train else lambda batch: None
        stream = iter_endlessly(loader)
        for _ in range(_WARM_UP_STEPS):
            step(next(stream))
        synchronise(loader)
        with tracing.record(_find_ranges(loader)) as recorder:
            started, number = time.perf_counter(), 0
            while number < _LEAST_STEPS or time.perf_counter() - started < seconds:
                batch = next(stream)
                with tracing.span("step", "trainer", step=number):
                    step(batch)
                number += 1
            synchronise(loader)
        stream.close()  # type: ignore[attr-defined]
        return recorder.as_json(**describe_loader(loader), steps=number)


def _find_ranges(loader: Loader) -> tracing.Ranges | None:
    """Return what marks NVTX ranges, if the loader is on a GPU."""
    if gpu_of(loader) is None:
        return None
    import torch

    ranges: Any = torch.cuda.nvtx
    return ranges  # type: ignore[no-any-return]
