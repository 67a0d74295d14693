"""Native programs: all operations on a field, for a whole batch, in one object of the extension.

    once a batch       create_native(program, views) -> Stage, if each kernel has a stage
    a part of a batch  run_native(stage, rows, contents) -> the rows that it cannot do

A Stage holds the parameters of one operation for all samples. It is a C++ object in a capsule: see
native/stage.h. A program of stages runs on a sample without the GIL and without Python objects. The
samples that it cannot do, such as damaged files, run one by one with the kernels' `run`, which
raise the errors.
"""

from collections.abc import Sequence

from gpupipe.engines.cpu.program import Group, Program, Stage
from gpupipe.runtime.installation import find_extension

_extension = find_extension()


def create_program(groups: Sequence[Group]) -> Stage | None:
    """Return the stage that runs all groups; None if a kernel has no stage for this batch."""
    stages = _create_stages(groups)
    return None if stages is None else Stage(_extension.program(stages))


def create_native(groups: Sequence[Group], views: Sequence[Program]) -> Stage | None:
    """Return the stage that runs groups, and then each view on their result.

    Args:
        groups: Kernels, each with its operations. Without views, they end with a delivery.
        views: The programs of views, which end with a delivery.

    Returns:
        The stage; None if a kernel has no stage for this batch.
    """
    if not all(_have_stages(part) for part in (groups, *(view.groups for view in views))):
        return None
    stages = _create_stages(groups)
    branches = [create_program(view.groups) for view in views]
    if stages is None or not all(branches):
        return None
    if branches:
        stages = (*stages, Stage(_extension.fork_stage(tuple(branches))))
    return Stage(_extension.program(stages))


def run_native(stage: Stage, rows: Sequence[int], contents: Sequence[object]) -> list[int]:
    """Run a stage on several samples in one call without the GIL, one after the other.

    Args:
        stage: A native program.
        rows: The row of each sample in the batch.
        contents: The file or the pixels of each sample.

    Returns:
        The positions in `rows` of the samples that the stage cannot do.
    """
    failed: list[int] = _extension.run_program(stage, rows, contents)
    return failed


def _have_stages(groups: Sequence[Group]) -> bool:
    return _extension is not None and all(kernel.stage is not None for kernel, _ in groups)


def _create_stages(groups: Sequence[Group]) -> tuple[Stage, ...] | None:
    """Return the stage of each group; None if one has none for this batch."""
    if not _have_stages(groups):
        return None
    stages = [kernel.stage() for kernel, _ in groups if kernel.stage is not None]
    return tuple(stage for stage in stages if stage) if all(stages) else None
