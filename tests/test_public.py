"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
        "Monitor",
        "SampleError",
        "ServerDataStream",
        "ServerError",
        "ShapeError",
        "StandInWarning",
        "StateError",
        "StepError",
        "TooManyBadError",
        "UsageError",
        "connect",
        "load",
        "start_server",
    ]
    assert all(getattr(gpupipe, name).__name__ == name for name in gpupipe.__all__)
    assert set(gpupipe.__all__) <= set(dir(gpupipe))
    with pytest.raises(AttributeError, match="laod"):
        _ = gpupipe.laod  # type: ignore[attr-defined]


def test_every_error_is_a_gpupipe_error() -> None:
    errors = [getattr(gpupipe, n) for n in gpupipe.__all__ if n.endswith("Error")]
    assert len(errors) == 13
    assert all(issubclass(e, gpupipe.GpupipeError) for e in errors)
    assert issubclass(gpupipe.ConfigError, ValueError)


@pytest.mark.parametrize(
    "code",
    [
        "import gpupipe",
        "import gpupipe.cli.app",
        "import sys; sys.argv = ['gpupipe', '--help']; import gpupipe.cli.app",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(code: str) -> None:
    heavy = "('torch', 'nvidia.dali', 'numpy', 'pydantic', 'omegaconf', 'rich', 'pooch')"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{code}; import sys; print([m for m in {heavy} if m in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


WITHOUT_DALI = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "nvidia.dali" or name.startswith("nvidia.dali."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv = ["gpupipe", *sys.argv[1:]]
from gpupipe.cli.app import main
main()
"""


@pytest.mark.parametrize("command", ["run", "check"])
def test_without_dali_the_message_says_what_to_install(command: str, faces: Path) -> None:
    """The import system is told that DALI is absent, as it is on other systems than Linux."""
    arguments = [command, "lfw", f"data.root={faces}", "engine=dali"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DALI, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install nvidia-dali-cuda120" in done.stderr
    assert "Traceback" not in done.stderr
