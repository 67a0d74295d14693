"""The public names, and what importing them costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpupipe
from gpupipe.runtime.installation import install_command
from helpers import forked_python


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
        "Ragged",
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
        "from_albumentations",
        "from_torchvision",
        "from_ultralytics",
        "load",
        "show",
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


HEAVY = (
    "torch",
    "torchvision",
    "nvidia.dali",
    "numpy",
    "pydantic",
    "omegaconf",
    "rich",
    "PIL",
    "pooch",
    "requests",
    "matplotlib",
    "jinja2",
    "fsspec",
    "zmq",
    "msgspec",
)


@pytest.mark.parametrize(
    "code",
    [
        "import gpupipe",
        "import gpupipe.cli.app",
        "from gpupipe.cli.app import main; main(['--help'], standalone_mode=False)",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(code: str) -> None:
    report = f"import sys; print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {report}"], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def run_without(module: str, *commands: list[str]) -> list[tuple[int, str]]:
    """Run commands of gpupipe in a Python whose import system says that a module is absent.

    Returns:
        The exit code of each, and what it wrote to standard error.
    """
    words = ["-c", WITHOUT_A_MODULE, module, json.dumps(commands)]
    done = forked_python.run(words, has_torch_alone=True)
    assert done.returncode == 0, done.stderr
    *errors, rest = done.stderr.split("\0")
    assert not rest
    return [(int(code), text) for code, text in zip(errors[1::2], errors[::2], strict=True)]


WITHOUT_A_MODULE = """
import json
import sys

_, module, commands = sys.argv

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == module or name.startswith(module + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv[0] = "gpupipe"
from gpupipe.cli.app import main
for command in json.loads(commands):
    try:
        main(command)
    except SystemExit as e:
        print(end=f"\\0{e.code}\\0", file=sys.stderr)
"""


def test_compare_with_ray_says_what_to_install_without_it() -> None:
    ((code, text),) = run_without("ray", ["compare", "lfw", "--ray"])
    assert code == 1
    assert install_command("ray") in text


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_a_report_without_its_packages_says_what_to_install(
    module: str, faces: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    command = ["compare", "lfw", f"data.root={faces}", "--out", str(out)]
    ((code, text),) = run_without(module, command)
    assert code == 1
    assert f"needs {module}, which is not installed" in text
    assert install_command("compare") in text
    assert not out.exists()


def test_a_download_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_DATA", str(tmp_path))
    for code, text in run_without("pooch", ["run", "lfw"], ["fetch", "lfw"]):
        assert code == 1, text
        assert "downloading lfw needs pooch, which is not installed" in text
        assert install_command("fetch") in text


def test_without_dali_the_message_says_what_to_install(faces: Path) -> None:
    """The import system is told that DALI is absent, as it is on other systems than Linux."""
    words = ["lfw", f"data.root={faces}", "engine=dali"]
    for code, text in run_without("nvidia.dali", ["run", *words], ["check", *words]):
        assert code == 1
        assert "pip install nvidia-dali-cuda120" in text
        assert "Traceback" not in text
