"""Packages that only some commands need: those of the extras compare, fetch..."""

from __future__ import annotations

from importlib.util import find_spec

from gpupipe.errors import GpupipeError
from gpupipe.runtime.installation import install_command


def require_extra(
    extra: str, modules: tuple[str, ...], purpose: str, error: type[GpupipeError] = GpupipeError
) -> None:
    """Raise an error that says what to install, if a package of an extra is missing.

    Args:
        extra: The name of the extra in setup.cfg.
        modules: The modules that its packages provide.
        purpose: The beginning of the message: what needs them.
        error: The class of the error.
    """
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise error(
            f"{purpose} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: run {install_command(extra)}"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
