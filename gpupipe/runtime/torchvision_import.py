"""The import of torchvision, which takes a second and 100 MiB: only pipelines that need it pay."""

from __future__ import annotations

from gpupipe.errors import EngineError


def import_torchvision() -> None:
    """Import what steps use of torchvision, before threads that make samples do.

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
