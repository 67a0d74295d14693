"""The home directory, for paths that begin with ~."""

from __future__ import annotations

import os
from pathlib import Path


def expand_user(path: str | Path) -> Path:
    """Expand ~ and ~USER at the beginning of a path, as a shell does.

    An empty HOME counts as unset, so that ~ does not become the root folder. Then the user database
    says where the home directory is. A path whose home directory cannot be found stays as it is.
    """
    text = os.fspath(path)
    is_own = text == "~" or text.startswith("~/")
    if is_own and os.environ.get("HOME") == "":
        text = _home_in_user_database() + text[1:]
    return Path(os.path.expanduser(text))  # noqa: PTH111  # Path.expanduser raises for no user


def _home_in_user_database() -> str:
    """Return the home directory that the system knows; "~" if it knows none."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError):  # no such database, or the user is not in it
        return "~"
