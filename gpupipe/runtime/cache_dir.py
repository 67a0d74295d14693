"""The folder for files that gpupipe can create again, such as indexes and downloads."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return gpupipe's cache folder, which may not exist yet.

    Returns:
        `$GPUPIPE_CACHE` if it is set, else `$XDG_CACHE_HOME/gpupipe`, else `~/.cache/gpupipe`.
    """
    override = os.environ.get("GPUPIPE_CACHE")
    if override:
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gpupipe"
