"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpupipe


def test_names() -> None:
    assert gpupipe.__all__ == [
        "ConfigError",
        "DataError",
        "DeviceError",
        "EngineError",
        "FetchError",
        "GpupipeError",
        "Loader",
        "SampleError",
        "ShapeError",
        "StateError",
        "TooManyBadError",
        "load",
    ]
    assert all(getattr(gpupipe, name).__name__ == name for name in gpupipe.__all__)
    assert set(gpupipe.__all__) <= set(dir(gpupipe))
    with pytest.raises(AttributeError, match="laod"):
        _ = gpupipe.laod  # type: ignore[attr-defined]


def test_every_error_is_a_gpupipe_error() -> None:
    errors = [getattr(gpupipe, n) for n in gpupipe.__all__ if n.endswith("Error")]
    assert len(errors) == 10
    assert all(issubclass(e, gpupipe.GpupipeError) for e in errors)
    assert issubclass(gpupipe.ConfigError, ValueError)


@pytest.mark.parametrize("code", ["import gpupipe", "import gpupipe.cli", "import sys; sys.argv = ['gpupipe', '--help']; import gpupipe.cli"])
def test_nothing_heavy_is_imported_before_it_is_used(code: str) -> None:
    heavy = "('torch', 'nvidia.dali', 'numpy', 'pydantic', 'omegaconf', 'rich', 'pooch')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print([m for m in {heavy} if m in sys.modules])"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
