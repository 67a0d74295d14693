"""gpupipe: one YAML file for image loading, on DALI's GPU and CPU back ends.

import gpupipe

for batch in gpupipe.load("configs/lfw.yaml"):
    batch["image"], batch["label"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpupipe.errors import (
        ConfigError,
        DataError,
        DeviceError,
        EngineError,
        FetchError,
        GpupipeError,
        SampleError,
        ServerError,
        ShapeError,
        StandInWarning,
        StateError,
        StepError,
        TooManyBadError,
        UsageError,
    )
    from gpupipe.loader import Loader, load
    from gpupipe.monitor import Monitor
    from gpupipe.remote_loader import ServerDataStream, connect
    from gpupipe.server.start import start_server

__version__ = "0.1.0"

_HOMES = {
    "load": "gpupipe.loader",
    "Loader": "gpupipe.loader",
    "Monitor": "gpupipe.monitor",
    "connect": "gpupipe.remote_loader",
    "ServerDataStream": "gpupipe.remote_loader",
    "start_server": "gpupipe.server.start",
}

__all__ = [
    "ConfigError",
    "DataError",
    "DeviceError",
    "EngineError",
    "FetchError",
    "GpupipeError",
    "Loader",
    "Monitor",
    "SampleError",
    "ServerDataStream",
    "ServerError",
    "ShapeError",
    "StandInWarning",
    "StateError",
    "StepError",
    "TooManyBadError",
    "UsageError",
    "connect",
    "load",
    "start_server",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import gpupipe` itself imports neither torch nor
    DALI.
    """
    if name not in __all__:
        raise AttributeError(f"module 'gpupipe' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "gpupipe.errors")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
