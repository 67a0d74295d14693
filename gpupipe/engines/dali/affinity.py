"""loader.set_affinity: which cores DALI binds its CPU threads to.

DALI takes the cores from DALI_AFFINITY_MASK, which lists one core number for each thread. Without
the mask it asks NVML for the cores near the GPU. Without a mask and a GPU it binds nothing, since
it does not query NVML then (nvml.cc of DALI 2.4). The threads of the GPU's image decoder are bound
in any case.
"""

from __future__ import annotations

import os
import re

from gpupipe.errors import DeviceError

_MASK = "DALI_AFFINITY_MASK"


def check_affinity(threads: int, device_id: int | None) -> None:
    """Raise DeviceError if DALI cannot bind its threads to cores.

    Args:
        threads: How many CPU threads DALI runs.
        device_id: The GPU's number, or None for the CPU.
    """
    mask = os.environ.get(_MASK)
    if mask is None:
        if device_id is None:
            raise DeviceError(
                "loader.set_affinity=true binds DALI's threads to the cores near a GPU, "
                "and this runs on the CPU: "
                f"set {_MASK} to the numbers of {threads} cores, as in 0,1, or leave out "
                "set_affinity"
            )
        return
    if not re.fullmatch(r"\d+(,\d+)*", mask):
        raise DeviceError(
            f"{_MASK}={mask!r} should be numbers of cores with commas between them, as in 0,1"
        )
    numbers = mask.split(",")
    if len(numbers) < threads:
        raise DeviceError(
            f"{_MASK}={mask} has {len(numbers)} cores, and DALI runs {threads} threads: "
            f"name one for each, or set loader.threads={len(numbers)}"
        )
    usable = os.sched_getaffinity(0)
    away = [n for n in numbers[:threads] if int(n) not in usable]
    if away:
        raise DeviceError(
            f"{_MASK}={mask} names core {away[0]}, which this process may not use: it may "
            f"use {', '.join(map(str, sorted(usable)))}"
        )
