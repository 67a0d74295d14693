"""gpupipe turns one YAML file into batches of images, with NVIDIA DALI or on CPU threads.

Examples:
    >>> import gpupipe
    >>> for batch in gpupipe.load("configs/lfw.yaml"):
    ...     batch["image"], batch["label"]

Start reading in opening.py: `load` returns a `Loader`, which is in loader.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpupipe.albumentations_adapter.adapter import from_albumentations
    from gpupipe.annotations.ragged import Ragged
    from gpupipe.bench.grid import show
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
    from gpupipe.loader import Loader
    from gpupipe.monitor import Monitor
    from gpupipe.opening import load
    from gpupipe.remote_loader import ServerDataStream, connect
    from gpupipe.server.start import start_server
    from gpupipe.torchvision_adapter.adapter import from_torchvision
    from gpupipe.ultralytics_adapter.adapter import from_ultralytics

__version__ = "0.1.0"

_MODULES = {
    "load": "gpupipe.opening",
    "Loader": "gpupipe.loader",
    "Monitor": "gpupipe.monitor",
    "Ragged": "gpupipe.annotations.ragged",
    "connect": "gpupipe.remote_loader",
    "ServerDataStream": "gpupipe.remote_loader",
    "from_albumentations": "gpupipe.albumentations_adapter.adapter",
    "from_ultralytics": "gpupipe.ultralytics_adapter.adapter",
    "from_torchvision": "gpupipe.torchvision_adapter.adapter",
    "show": "gpupipe.bench.grid",
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
    "Ragged",
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
    "from_albumentations",
    "from_torchvision",
    "from_ultralytics",
    "load",
    "show",
    "start_server",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import gpupipe` loads neither torch nor DALI."""
    if name not in __all__:
        raise AttributeError(f"module 'gpupipe' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES.get(name, "gpupipe.errors")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
