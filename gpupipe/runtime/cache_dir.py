"""The folder for files that gpupipe can create again, such as indexes and downloads."""

from __future__ import annotations

import os
from pathlib import Path

from gpupipe.runtime.home_dir import expand_user


def cache_dir() -> Path:
    """Return gpupipe's cache folder, which may not exist yet.

    Returns:
        `$GPUPIPE_CACHE` if it is set, else `$XDG_CACHE_HOME/gpupipe`, else `~/.cache/gpupipe`.
    """
    override = os.environ.get("GPUPIPE_CACHE")
    if override:
        return expand_user(override)
    return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "gpupipe"
