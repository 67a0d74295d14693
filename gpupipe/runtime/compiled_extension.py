"""Finds the optional extension `gpupipe._kernels`, which a C++ compiler builds at installation.

The environment variable GPUPIPE_KERNELS switches it: `off` runs the libraries' kernels instead,
`on` raises EngineError where the extension was not built.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from gpupipe.errors import EngineError

VARIABLE = "GPUPIPE_KERNELS"


def find_extension() -> Any:
    """Return the module `gpupipe._kernels`; None if it is off or was not built.

    Raises:
        EngineError: GPUPIPE_KERNELS is `on` and there is no extension, or it has another value.
    """
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", "on", "off"):
        raise EngineError(f"{VARIABLE}={setting} is neither on nor off: unset it, or write one")
    if setting == "off":
        return None
    try:
        return importlib.import_module("gpupipe._kernels")
    except ImportError as e:
        if setting == "on":
            raise EngineError(
                f"{VARIABLE}=on, but gpupipe._kernels cannot be imported: {e}; install a C++ "
                "compiler and reinstall gpupipe, or unset the variable"
            ) from e
        return None
