"""Imports torchvision for the pipelines that need it: that takes a second and 110 MiB."""

from __future__ import annotations

from gpupipe.errors import EngineError


def import_torchvision() -> None:
    """Import the part of torchvision that steps call, before the threads of an engine call it.

    Raises:
        EngineError: The import fails: the torchvision that is installed belongs to another torch.
    """
    try:
        import torchvision.transforms.v2.functional  # noqa: F401
    except (ImportError, OSError, RuntimeError, AttributeError) as e:
        raise EngineError(
            f"torchvision cannot be imported ({e}): it may belong to another version of torch. "
            "Install the two together: pip install --force-reinstall torch torchvision"
        ) from e
