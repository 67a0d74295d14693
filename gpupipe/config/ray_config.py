"""RayConfig: the settings under `loader.ray:`, for batches that a Ray cluster makes."""

from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field

from gpupipe.schema.field_types import WHOLE, is_number, is_whole, should_be

_MAX_WORKERS = 10_000


def _is_count(value: Any) -> bool:
    return is_whole(value) and 1 <= value <= _MAX_WORKERS


def _read_workers(value: Any) -> Any:
    if value == "auto" or _is_count(value):
        return value
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_count, value)):
        if value[0] > value[1]:
            raise should_be(f"[{value[1]}, {value[0]}]: the smaller number comes first")
        return tuple(value)
    raise should_be(
        f"auto, a whole number from 1 to {_MAX_WORKERS:,}, or the smallest and the largest number "
        "of workers, such as [1, 4]"
    )


def _read_gpus(value: Any) -> Any:
    if not is_number(value) or value < 0 or (value > 1 and value != int(value)):
        raise should_be("0, a share of a GPU up to 1, or a whole number of GPUs")
    return float(value)


class RayConfig(pydantic.BaseModel):
    """The settings of `engine: ray`: which workers make the batches, and where.

    Attributes:
        workers: Workers of each trainer: a number from 1 to 10,000, `auto`, or [min, max]. `auto`
            takes as many as this rank's share of the cluster's free CPUs can hold. [min, max]
            starts the smaller number, adds workers while the trainer waits for data in over 5 % of
            its time, and removes them while it waits in under 1 %.
        cpus: CPUs of each worker, 1 to 1024. Ray places a worker on a node that has them free, and
            the worker's engine runs as many threads.
        gpus: GPUs of each worker. 0 makes the batches on the worker's CPUs; a share such as 0.25
            lets four workers use one GPU.
        address: Address of the cluster: `auto`, or HOST:PORT of its head node. `auto` takes the
            cluster that this process uses, else the one that RAY_ADDRESS or this machine has; if
            none runs, it starts a Ray on this machine.
        placement: On which nodes the workers are: `spread`, `pack` or `local_first`. `spread` takes
            all nodes, `pack` takes few, and `local_first` fills the trainer's own node first.
        engine: What makes the batches in a worker: `dali`, `cpu`, `dataloader` or `auto`. If `gpus`
            is 0, `auto` takes cpu. If not, it takes dali where DALI is installed on the workers,
            and dataloader where it is not.
        ship: What a worker sends: `uint8` or `batch`. With `uint8`, the trainer's device runs the
            last steps, if they can take whole uint8 batches, as to_dtype and normalize can. With
            `batch`, or if there are no such steps, the worker runs all steps.
        wait: Seconds to wait until the cluster has placed the workers, above 0.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    workers: Annotated[Literal["auto"] | int | tuple[int, int], BeforeValidator(_read_workers)] = (
        "auto"
    )
    cpus: Annotated[int, Field(ge=1, le=1024), WHOLE] = 2
    gpus: Annotated[float, BeforeValidator(_read_gpus)] = 0.0
    address: Annotated[str, Field(min_length=1)] = "auto"
    placement: Literal["spread", "pack", "local_first"] = "spread"
    engine: Literal["auto", "dali", "cpu", "dataloader"] = "auto"
    ship: Literal["uint8", "batch"] = "uint8"
    wait: Annotated[float, Field(gt=0)] = 60.0
