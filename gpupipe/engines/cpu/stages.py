"""Native programs: all operations on a field, for a whole batch, in one object of the extension.

    once a batch       create_native(program, views) -> Stage, if each kernel has a stage
                       create_run(stage, contents, files, positions) -> Run
    a part of a batch  run_native(run, rows) -> the rows that it cannot do

A Stage holds the parameters of one operation for all samples. It is a C++ object in a capsule: see
native/stage.h. A program of stages runs on a sample without the GIL and without Python objects. The
samples that it cannot do, such as damaged files, run one by one with the kernels' `run`, which
raise the errors.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.reading import FileSet
from gpupipe.engines.cpu.program import Group, Stage, ViewProgram
from gpupipe.runtime.installation import find_extension

_extension = find_extension()


def create_program(groups: Sequence[Group]) -> Stage | None:
    """Return the stage that runs all groups; None if a kernel has no stage for this batch."""
    stages = _create_stages(groups)
    return None if stages is None else Stage(_extension.program(stages))


def create_native(groups: Sequence[Group], views: Sequence[ViewProgram]) -> Stage | None:
    """Return the stage that runs groups, and then each view on their result.

    Args:
        groups: Kernels, each with its operations. Without views, they end with a delivery.
        views: The programs of views, which end with a delivery.

    Returns:
        The stage; None if a kernel has no stage for this batch.
    """
    every = groups, *(view.program.groups for view in views)
    if not all(_have_stages(part) for part in every):
        return None
    stages, *branches = map(_create_stages, every)
    if stages is None or None in branches:
        return None
    if branches:
        pairs = zip(views, branches, strict=True)
        forks = tuple((_extension.program(stages), view.num_views) for view, stages in pairs)
        stages = (*stages, Stage(_extension.fork_stage(forks)))
    return Stage(_extension.program(stages))


class Run(Protocol):
    """A native program on all samples of a batch."""

    def run(self, begin: int, end: int) -> list[int]:
        """Run it on rows `begin` to `end` - 1 without the GIL; return those it cannot do."""

    def cancel(self) -> None:
        """Run no further row, in no thread."""


def create_run(
    stage: Stage,
    contents: Sequence[object],
    files: FileSet | None,
    positions: NDArray[np.int64] | None,
) -> Run:
    """Return the run of a stage.

    Args:
        stage: A native program.
        contents: The file or the pixels of each sample; None for those in `files`.
        files: Files that were read.
        positions: The position in `files` of each sample, int64 (B,); None for 0 to B - 1.
    """
    run: Run = _extension.create_run(stage, contents, files, positions)
    return run


def run_native(run: Run, rows: range) -> list[int]:
    """Run a native program on successive samples; return the rows that it cannot do."""
    return run.run(rows.start, rows.stop)


def _have_stages(groups: Sequence[Group]) -> bool:
    return _extension is not None and all(kernel.stage is not None for kernel, _ in groups)


def _create_stages(groups: Sequence[Group]) -> tuple[Stage, ...] | None:
    """Return the stage of each group; None if one has none for this batch."""
    if not _have_stages(groups):
        return None
    stages = [kernel.stage() for kernel, _ in groups if kernel.stage is not None]
    return tuple(stage for stage in stages if stage) if all(stages) else None
