"""Which rank this process is, of how many: asked of torch.distributed, else of what torchrun puts into the environment."""

from __future__ import annotations

import os

from gpupipe.errors import DeviceError


def rank_and_world() -> tuple[int, int]:
    """(rank, world size): of torch.distributed where it is initialised, else RANK and WORLD_SIZE, else (0, 1).

    Raises DeviceError where the environment contradicts itself.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    if world is None or (world == 1 and rank is None):
        return 0, 1
    if rank is None or rank >= world:
        said = "RANK is not set" if rank is None else f"RANK={rank}"
        raise DeviceError(f"WORLD_SIZE={world} is set, but {said}: start with torchrun, or set loader.shard={{rank: R, world_size: {world}}}")
    return rank, world


def local_rank() -> int | None:
    """The number of this process on its machine, LOCAL_RANK, or None where there is none. Raises DeviceError."""
    return _number("LOCAL_RANK")


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise DeviceError(f"{name}={text} in the environment is not a whole number")
    return int(text)
