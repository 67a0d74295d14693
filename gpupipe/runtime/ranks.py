"""Which rank this process is, of how many, and how many share its machine: asked of
torch.distributed, else of the launcher's environment.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. Open MPI's mpirun and Slurm's srun
have variables of their own. Those of srun count only in a job step: the batch script has some of
them too, and is one process however many tasks the job has.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gpupipe.errors import DeviceError

_TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_told: ContextVar[int] = ContextVar("ranks on this machine", default=1)


def rank_and_world() -> tuple[int, int]:
    """(rank, world size): of torch.distributed where it is initialised, else RANK and WORLD_SIZE,
    else (0, 1).

    Warns where mpirun or srun started several processes and neither is there: they may work apart,
    or be ranks that load too early. Raises DeviceError where the environment contradicts itself.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    if world is None:
        _warn_of_unknown_ranks()
    if world is None or (world == 1 and rank is None):
        return 0, 1
    if rank is None or rank >= world:
        said = "RANK is not set" if rank is None else f"RANK={rank}"
        raise DeviceError(
            f"WORLD_SIZE={world} is set, but {said}: start with torchrun, or set "
            f"loader.shard={{rank: R, world_size: {world}}}"
        )
    return rank, world


def _warn_of_unknown_ranks() -> None:
    launched = [("mpirun", _number("OMPI_COMM_WORLD_RANK"), _number("OMPI_COMM_WORLD_SIZE"))]
    launched += (
        [("srun", _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS"))] if _in_step() else []
    )
    for launcher, rank, size in launched:
        if rank is not None and size is not None and size > 1:
            warnings.warn(
                f"{launcher} started {size} processes, of which this is number {rank}, and "
                "each loads every sample: torch.distributed is not initialised, "
                "and RANK and WORLD_SIZE are not set. Call init_process_group() before "
                f"load(), or set loader.shard={{rank: {rank}, world_size: {size}}}; "
                "{rank: 0, world_size: 1} where the processes work apart",
                stacklevel=2,
            )
            return


def local_rank() -> int | None:
    """The number of this process on its machine: LOCAL_RANK, else mpirun's, else srun's; None where
    there is none. Raises DeviceError.
    """
    for name in (
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        *(["SLURM_LOCALID"] if _in_step() else []),
    ):
        found = _number(name)
        if found is not None:
            return found
    return None


def ranks_on_machine() -> int:
    """How many ranks share this machine: LOCAL_WORLD_SIZE, else what mpirun or srun says, else 1;
    or more, if it was told so. Raises DeviceError.
    """
    said = (
        _number("LOCAL_WORLD_SIZE")
        or _number("OMPI_COMM_WORLD_LOCAL_SIZE")
        or (_tasks_here() if _in_step() else None)
    )
    return max(_told.get(), said or 1)


@contextmanager
def told_ranks_on_machine(count: int) -> Iterator[None]:
    """Inside, at least that many ranks share this machine: for a trainer that starts them itself,
    and sets no variable.
    """
    token = _told.set(count)
    try:
        yield
    finally:
        _told.reset(token)


def cores_of_job() -> int | None:
    """The cores that Slurm gave the job on this machine, for all of its tasks here; None elsewhere.

    Raises DeviceError.
    """
    return _number("SLURM_CPUS_ON_NODE") if _in_step() else None


def _in_step() -> bool:
    """Whether srun started this process, or one that it comes from."""
    return any(name in os.environ for name in ("SLURM_STEP_ID", "SLURM_STEPID"))


def _tasks_here() -> int | None:
    """Tasks of the job step on this machine."""
    name = next((n for n in _TASKS_PER_NODE if os.environ.get(n)), None)
    return (
        None
        if name is None
        else tasks_of_node(name, os.environ[name], _number("SLURM_NODEID") or 0)
    )


def tasks_of_node(name: str, text: str, node: int) -> int:
    """How many of a step's tasks run on node `node`: text is "4", or "4(x2),3" for 4, 4 and 3, the
    value of `name`. Raises DeviceError.
    """
    parts = [_TASKS.fullmatch(part.strip()) for part in text.split(",")]
    if not all(parts):
        raise DeviceError(
            f"{name}={text} in the environment is not understood (it should be like "
            "4(x2),3): set loader.threads to a number"
        )
    counts = [int(m[1]) for m in parts if m for _ in range(int(m[2] or 1))]
    return counts[min(node, len(counts) - 1)]


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise DeviceError(f"{name}={text} in the environment is not a whole number")
    return int(text)
