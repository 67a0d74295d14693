"""tests/gpu runs where the packages of the extras are missing: a machine with a GPU has often
pytest alone.
"""

import configparser
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from helpers.full_product import IS_FULL

REPOSITORY = Path(__file__).parents[1]
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"{{name}} is not installed, says the test", name=name)

sys.meta_path.insert(0, Blocker())
"""


def optional_modules() -> set[str]:
    """The modules that the extras bring, and that gpupipe, torch and pytest do not require."""
    extras = configparser.ConfigParser()
    extras.read(REPOSITORY / "setup.cfg")
    lines = [
        line
        for value in extras["options.extras_require"].values()
        for line in value.splitlines()
        if line
    ]
    names = {re.split(r"[\s\[>=;]", line)[0].lower() for line in lines} - {
        "pytest",
        "fsspec",
        *hard_requirements(extras),
    }
    names = {
        name for name in names if not name.startswith("nvidia-dali")
    }  # an extra, but nothing runs on a GPU without
    # packages_distributions() of Python 3.10 knows only packages with a top_level.txt
    modules = {
        file.parts[0].partition(".")[0]
        for package in distributions()
        if package.metadata["Name"].lower() in names
        for file in package.files or ()
        if file.suffix in (".py", ".so") and file.parts[0] != ".."
    }
    some_install_their_tests = {"tests"}
    return (modules - some_install_their_tests) | {"pytorch_lightning", "tensorflow", "mxnet"}


def hard_requirements(extras: configparser.ConfigParser) -> set[str]:
    lines = extras["options"]["install_requires"].splitlines()
    return {re.split(r"[\s\[>=;]", line)[0].lower() for line in lines if line}


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process that has none of the optional modules, and sees no GPU."""
    (folder / "sitecustomize.py").write_text(BLOCKER.format(blocked=optional_modules()))
    own = {
        "PYTHONPATH": f"{folder}:{REPOSITORY}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | own
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def test_optional_modules_are_those_of_the_extras() -> None:
    found = optional_modules()
    assert {
        "hypothesis",
        "lightning",
        "pyarrow",
        "zmq",
        "msgspec",
        "moto",
        "pytest_timeout",
        "xdist",
    } <= found
    assert not {"torch", "torchvision", "numpy", "pytest", "nvidia", "pydantic", "PIL"} & found


@pytest.mark.parametrize(
    "words", [["-m", "gpu"], ["tests/gpu", "-m", "gpu"]][: 2 if IS_FULL else 1], ids=" ".join
)
def test_the_gpu_tests_are_collected_without_optional_packages(
    tmp_path: Path, words: list[str]
) -> None:
    done = run_pytest(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d\d skipped, \d\d+ deselected in", done.stdout)
    assert not re.search(r"\d+ (passed|failed|error)", done.stdout)
    reasons = {
        line.rpartition(": needs ")[2]
        for line in done.stdout.splitlines()
        if line.startswith("SKIPPED") and ": needs " in line
    }
    assert reasons == {
        "an NVIDIA GPU: run `make test`, or `pytest -m gpu`, on a machine that has one"
    }
    assert "pip install lightning" in done.stdout
    assert "pip install pyzmq" in done.stdout


def test_tests_of_a_gpu_lie_in_their_folder_alone() -> None:
    marked = [
        p
        for p in (REPOSITORY / "tests").rglob("*.py")
        if re.search(r"pytest\.mark\.gpu\b", p.read_text(encoding="utf-8"))
    ]
    outside = [p for p in marked if p.parent != REPOSITORY / "tests" / "gpu"]
    assert outside == [REPOSITORY / "tests" / "conftest.py"]
