"""Where gpupipe keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$GPUPIPE_CACHE, else $XDG_CACHE_HOME/gpupipe, else ~/.cache/gpupipe."""
    own = os.environ.get("GPUPIPE_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gpupipe"
