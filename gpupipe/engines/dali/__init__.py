"""The DALI engine: one DALI pipeline turns plans into batches, on a GPU or a CPU.

`engine` has a diagram of the start-up, in the order `field_readers`, `lowering`, `reader`, `graph`,
`built_pipeline`. `operators` turns the primitives that steps call into DALI operators. `files`
checks image files before DALI decodes them. The registry of engines imports this package by name.
Start reading in engine.py.
"""

from typing import TYPE_CHECKING, Any

from gpupipe.errors import DeviceError
from gpupipe.runtime.registry import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import Engine


def _load() -> "type[Engine]":
    try:
        from gpupipe.engines.dali.engine import DaliEngine
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith("nvidia"):
            raise
        install = (
            "on Linux: pip install nvidia-dali-cuda120, or nvidia-dali-cuda130 for CUDA 13, but "
            "not both"
        )
        raise DeviceError(
            f"NVIDIA DALI is not installed ({install}); 'gpupipe doctor' tells more"
        ) from e
    return DaliEngine


def _try_operator(*arguments: Any) -> Any:
    from gpupipe.engines.dali.operators.trial import try_operator

    return try_operator(*arguments)


REGISTRATION = Registration(
    "DALI", _load, auto_priority={"gpu": 20, "cpu": 20}, try_operator=_try_operator
)
