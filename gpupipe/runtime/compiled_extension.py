"""Finds the optional extensions `gpupipe._kernels` and `gpupipe._jpeg`, built at installation.

A C++ compiler builds them; `_jpeg` also needs libjpeg-turbo. The environment variable
GPUPIPE_KERNELS switches both: `off` runs the libraries' kernels instead, `on` raises EngineError
where an extension was not built. `compute_crc32s` works with or without them.
"""

from __future__ import annotations

import importlib
import os
import warnings
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from gpupipe.errors import EngineError
from gpupipe.runtime.installation import rebuild_command

VARIABLE = "GPUPIPE_KERNELS"
_NEEDS = {
    "_kernels": "a C++ compiler",
    "_jpeg": "a C++ compiler and libjpeg-turbo 2.1 or newer with its headers",
}
_ABI = 1
"""The version of the extensions' interface that this Python code calls: kAbi in native/task.h."""


def find_extension(name: Literal["_kernels", "_jpeg"] = "_kernels") -> Any:
    """Return the module `gpupipe.NAME`; None if it is off, not built, or of another version.

    Raises:
        EngineError: GPUPIPE_KERNELS is `on` and the extension is missing or of another version, or
            the variable is neither `on` nor `off`.
    """
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", "on", "off"):
        raise EngineError(f"{VARIABLE}={setting} is neither on nor off: unset it, or write one")
    if setting == "off":
        return None
    try:
        extension = importlib.import_module(f"gpupipe.{name}")
    except ImportError as e:
        if setting == "on":
            raise EngineError(
                f"{VARIABLE}=on, but gpupipe.{name} cannot be imported: {e}; install "
                f"{_NEEDS[name]}, then run {rebuild_command()}, or unset the variable"
            ) from e
        return None
    if getattr(extension, "ABI", None) == _ABI:
        return extension
    other = f"gpupipe.{name} was built for another version of gpupipe: run {rebuild_command()}"
    if setting == "on":
        raise EngineError(f"{VARIABLE}=on, but {other}, or unset the variable")
    warnings.warn(f"{other}; until then it is not used", stacklevel=2)
    return None


def compute_crc32s(buffers: Sequence[Any]) -> list[int]:
    """Return the CRC-32 of each buffer, as zlib.crc32 does; `_kernels` needs no GIL for it."""
    extension = _find_kernels()
    if extension is not None:
        return extension.compute_crc32s(buffers)  # type: ignore[no-any-return]
    return [zlib.crc32(buffer) for buffer in buffers]


@cache
def _find_kernels() -> Any:
    """Return `_kernels`, or None; look only once, because reads of a batch compute checksums."""
    return find_extension()
