"""The CPU engine: one process, a pool of threads, and batch memory that is used again.

    engine             takes plans and yields batches; starts a batch in flight for each plan
    batch_in_flight    runs four stages for each batch:
      read     all threads    `sample_reader` reads files, arrays, or decoded images from the cache
      lower    one thread     `lowering`: each step calls primitives on the `tracer`, which records
                              them as `ops`; rules with `patterns` group these into a `program`
      run      all threads    `samples` runs the programs, one sample at a time, or several samples
                              in one call without the GIL
      deliver  one thread     the batch is complete; `engine` copies it to a GPU if there is one

The threads of the pool share the samples of a stage: see `threads`. The last kernel of a program
writes a sample into its slot in the batch: see `delivery` and `output_buffer`.

To add a kernel, write a function that runs the operation on one sample, and a rule beside it. They
belong in `kernels` (the reference), `opencv_kernels`, `opencv_levels`, `opencv_colors` (if OpenCV
is installed), or `compiled_kernels` and `color_stages` (of the extension `gpupipe._kernels`). A new
primitive also needs a dataclass in `ops`.
The registry of engines imports this package by name. Start reading in engine.py.
"""

from typing import TYPE_CHECKING

from gpupipe.runtime.registry import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import Engine


def _load() -> "type[Engine]":
    from gpupipe.engines.cpu.engine import CpuEngine

    return CpuEngine


REGISTRATION = Registration("the CPU engine", _load, auto_priority={"cpu": 30, "gpu": 15})
