"""The CPU engine: one process, a pool of threads, and batch memory that is used again.

    engine             takes plans and yields batches; each plan becomes a batch in flight
    batch_in_flight    a list of stages:
      read     all threads    `samples`: files, arrays, or what the decoded cache has of them
      lower    one thread     `lowering`: each step calls primitives on the `tracer`, which keeps
                              them as `ops`; rules group these into a `program` of kernels
      run      all threads    `samples`: the programs, sample by sample, or several samples in one
                              call, as tasks
      deliver  one thread     the batch, and its copy to a GPU if there is one: `gpu_copier`

All threads of a pool share the samples of a stage. The last kernel of a program writes a sample
into its slot in the batch: see `delivery`.

To add a kernel, write a dataclass in `ops` if the primitive is new, the function that runs it on
one sample, and a rule beside it: in `kernels` (the reference), `opencv_kernels`, `opencv_colors`
(if OpenCV is installed), or `compiled_kernels` (of the extension `gpupipe._kernels`).
The registry of engines imports this package by name. Start reading in engine.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupipe.runtime.registry import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import Engine


def _load() -> type[Engine]:
    from gpupipe.engines.cpu.engine import CpuEngine

    return CpuEngine


REGISTRATION = Registration("the CPU engine", _load, auto_priority={"cpu": 30, "gpu": 15})
