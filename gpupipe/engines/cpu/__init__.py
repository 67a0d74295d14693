"""The CPU engine: one process, a pool of threads, and batch memory that is used again.

`engine` takes plans and yields batches. Each batch in flight is a `batch_job`, which reads files,
lowers the steps for the whole batch, and runs them on its samples on the pool of `threads`.
`lowering` decides per step between primitives and `Step.torch`. `recorder` implements the
primitives: it records their calls in a `program`. `kernels` holds the table of the functions that
run groups of calls; `opencv_kernels` and `opencv_colors` add faster ones if OpenCV is installed,
and `compiled_kernels` those of the extension `gpupipe._kernels` if it is built. `erasing` lets
kernels that deliver also erase. `preparation` prepares samples with kernels of the extension, and
`sample_runner` runs several of them in one call. `delivery` writes samples to their places in the
memory of a batch, which comes from `gpupipe.engines.batch_memory`.
The registry of engines imports this package by name. Start reading in engine.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupipe.runtime.engine_registration import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import Engine


def _load() -> type[Engine]:
    from gpupipe.engines.cpu.engine import CpuEngine

    return CpuEngine


REGISTRATION = Registration("the CPU engine", _load, auto_priority={"cpu": 30, "gpu": 15})
