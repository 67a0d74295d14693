"""Finds this process's rank, how many ranks share its machine, and how many cores it may use.

torch.distributed answers first, then the launcher's environment variables, then Ray Train. torchrun
and Ray's TorchTrainer set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. Ray's other trainers
set none of them; their context has the ranks, but only inside a worker function. Open MPI's mpirun
and Slurm's srun have variables of their own. srun's variables count only inside a job step: Slurm
also sets some of them in the batch script, which is one process for any number of tasks.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from gpupipe.errors import DeviceError

_TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")
_TASKS_PATTERN = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_min_ranks: ContextVar[int] = ContextVar("ranks on this machine", default=1)


def rank_and_world() -> tuple[int, int]:
    """Return (rank, world size); (0, 1) without distributed training.

    Uses torch.distributed if it is initialised, else RANK and WORLD_SIZE, else Ray Train's context
    in a worker function. Without any of these, warns if mpirun or srun started several processes:
    they may be independent, or may call load() before init_process_group().

    Raises:
        DeviceError: The environment variables contradict each other.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    if world is None:
        if (context := _ray_train_context()) is not None:
            return context.get_world_rank(), context.get_world_size()
        _warn_of_unknown_ranks()
        return 0, 1
    if world == 1 and rank is None:
        return 0, 1
    if rank is None or rank >= world:
        rank_text = "RANK is not set" if rank is None else f"RANK={rank}"
        raise DeviceError(
            f"WORLD_SIZE={world} is set, but {rank_text}: start with torchrun, or set "
            f"loader.shard={{rank: R, world_size: {world}}}"
        )
    return rank, world


def _ray_train_context() -> Any | None:
    """Return Ray Train's context in one of its worker functions; None elsewhere."""
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        return train.get_context()
    except (RuntimeError, DeprecationWarning):  # the driver; a trial of Ray Tune
        return None


def _warn_of_unknown_ranks() -> None:
    variables = {"mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")}
    if _in_step():
        variables["srun"] = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    for launcher, names in variables.items():
        rank, size = map(_number, names)
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
    """Return the rank of this process on its machine, or None if no launcher sets it.

    Reads LOCAL_RANK, else mpirun's variable, else srun's, else Ray Train's context.

    Raises:
        DeviceError: A variable is not a whole number.
    """
    slurm = ["SLURM_LOCALID"] if _in_step() else []
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", *slurm):
        if (number := _number(name)) is not None:
            return number
    context = _ray_train_context()
    return None if context is None else int(context.get_local_rank())


def ranks_on_machine() -> int:
    """Return how many ranks share this machine.

    Reads LOCAL_WORLD_SIZE, else mpirun's or srun's variable, else Ray Train's context, else assumes
    1. Inside `assume_ranks_on_machine(n)` the result is at least n.

    Raises:
        DeviceError: A variable is malformed.
    """
    count = _number("LOCAL_WORLD_SIZE") or _number("OMPI_COMM_WORLD_LOCAL_SIZE") or _tasks_here()
    if not count and (context := _ray_train_context()) is not None:
        count = int(context.get_local_world_size())
    return max(_min_ranks.get(), count or 1)


@contextmanager
def assume_ranks_on_machine(count: int) -> Iterator[None]:
    """Assume at least `count` ranks on this machine inside the `with` block.

    Trainers that start ranks themselves, and set no environment variable, need this.
    """
    token = _min_ranks.set(count)
    try:
        yield
    finally:
        _min_ranks.reset(token)


def _in_step() -> bool:
    """Return whether srun started this process or one of its ancestors."""
    return any(name in os.environ for name in ("SLURM_STEP_ID", "SLURM_STEPID"))


def _tasks_here() -> int | None:
    """Return the number of this job step's tasks on this machine; None if it is unknown."""
    name = next(filter(os.environ.get, _TASKS_PER_NODE), None) if _in_step() else None
    if name is None:
        return None
    return tasks_of_node(name, os.environ[name], _number("SLURM_NODEID") or 0)


def tasks_of_node(name: str, text: str, node: int) -> int:
    """Return how many tasks of a job step run on a node.

    Args:
        name: Environment variable that holds `text`, for the error message.
        text: Tasks of each node in Slurm's notation: "4", or "4(x2),3" for 4, 4 and 3.
        node: Number of the node in the job step, from 0.

    Raises:
        DeviceError: `text` is malformed.
    """
    parts = [_TASKS_PATTERN.fullmatch(part.strip()) for part in text.split(",")]
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


def cores() -> int:
    """Return the number of cores that this process may run on, at least 1.

    That is the size of its CPU affinity, or its control group's CPU quota if the quota is less.
    """
    allowed = len(allowed_cores())
    return max(1, min(allowed, _quota() or allowed))


def allowed_cores() -> list[int]:
    """Return the numbers of the cores in the CPU affinity of this process, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_of_rank() -> int:
    """Return the number of cores that this rank should use, at least 1.

    That is an equal share of the launcher's cores, and never more than `cores()`, which counts the
    cores that this process is bound to. Under Slurm the launcher's cores are those of the job on
    this machine, otherwise those of the parent process.

    If a launcher with 32 cores binds each of 4 ranks to 8 cores of its own, each rank uses all 8.
    If the launcher and its 4 ranks are all bound to the same 8 cores, each rank uses 2.

    Raises:
        DeviceError: An environment variable of the launcher is malformed.
    """
    ranks = ranks_on_machine()
    if ranks == 1:
        return cores()
    launcher = (_number("SLURM_CPUS_ON_NODE") if _in_step() else None) or _cores_of_parent()
    return share(cores(), min(launcher, _quota() or launcher), ranks)


def share(own: int, launcher: int, ranks: int) -> int:
    """Return how many cores each of `ranks` ranks on a machine should use, at least 1.

    Args:
        own: Cores that this rank may run on.
        launcher: Cores that the launcher may run on.
        ranks: Number of ranks that share the launcher's cores.
    """
    return max(1, min(own, launcher // ranks))


def _cores_of_parent() -> int:
    """Return how many cores the parent may run on; if unknown, how many this process may run on."""
    parent = os.getppid()
    try:
        return len(os.sched_getaffinity(parent or os.getpid()))
    except (AttributeError, OSError):
        return cores()


def _quota() -> int | None:
    """Return the CPU quota of the control group in whole cores; None if it has no quota.

    Reads the file of control groups version 2, else the files of version 1.
    """
    quota, period = (
        _read_cgroup("cpu.max")
        or (*_read_cgroup("cpu/cpu.cfs_quota_us"), *_read_cgroup("cpu/cpu.cfs_period_us"))
        or ("max", "1")
    )
    return None if quota in ("max", "-1") else max(1, int(quota) // int(period))


def _read_cgroup(name: str) -> tuple[str, ...]:
    try:
        return tuple(Path("/sys/fs/cgroup", name).read_text(encoding="ascii").split())
    except OSError:
        return ()
