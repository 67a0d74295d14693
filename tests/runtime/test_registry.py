"""Classes by name, of a package and of plugins."""

import os
import shutil
from pathlib import Path

import pytest

from gpupipe.pipeline.step import Step
from gpupipe.runtime.registry import STEP_GROUP, Registry, find_packages, find_plugin
from helpers import forked_python
from helpers.plugin import install

STEPS: Registry[object] = Registry("step", "gpupipe.steps", "gpupipe.pipeline.step.Step")


def test_a_module_defines_the_class() -> None:
    assert STEPS.find("random_resized_crop").__name__ == "RandomResizedCrop"
    assert STEPS.base.__name__ == "Step"
    assert "decode" in STEPS.builtin_names
    assert not any(name.startswith("_") for name in STEPS.builtin_names)


def test_a_folder_with_a_registration_says_what_to_import() -> None:
    engines: Registry[object] = Registry("engine", "gpupipe.engines", object, are_folders=True)
    assert engines.find("cpu").__name__ == "CpuEngine"
    assert "base" not in engines.builtin_names, "a file"


def test_an_unknown_name_is_told_with_the_nearest_or_with_advice() -> None:
    with pytest.raises(LookupError, match="unknown step 'decod'; did you mean 'decode'"):
        STEPS.find("decod")
    advised = Registry("step", "gpupipe.steps", object, advise=lambda name: f"not {name}")
    with pytest.raises(LookupError, match="not decod"):
        advised.find("decod")


def test_classes_of_plugins_are_found_by_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = "from gpupipe.pipeline.step import Step\nclass Dim(Step):\n    pass\nOdd = int"
    install(tmp_path, "dim_package", module, dim="Dim", odd="Odd")
    assert {"dim", "decode"} <= set(STEPS.names())
    assert STEPS.find("dim").__name__ == "Dim"
    with pytest.raises(LookupError, match="a class that is no Step"):
        STEPS.find("odd")


MODULE = '''
import numpy as np
from gpupipe.dataset.index import build
from gpupipe.dataset.source import Source
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Step


class Invert(Step):
    """255 - x."""

    def infer_spec(self, given):
        return check_decoded(given)

    def lower(self, image, p):
        from nvidia.dali import types
        image.apply("invert", lambda pixels: pixels ^ types.Constant(np.uint8(255)))

    def torch(self, image, p):
        return 255 - image


class OnlyTorch(Step):
    """Has no lowering onto primitives."""


class TwoFiles(Source):
    root: str

    def index(self, progress=None):
        return build(self.root, ["a.jpg", "b.jpg"], np.array([0, 1]), ["a", "b"])
'''


@pytest.fixture
def site(tmp_path: Path, faces: Path) -> Path:
    """A folder as pip would leave it: a module with its entry points, and two images."""
    install(
        tmp_path,
        "other_package",
        MODULE,
        invert="Invert",
        only_torch="OnlyTorch",
        source_two_files="TwoFiles",
    )
    for name, file in zip("ab", sorted(faces.glob("*/*.jpg")), strict=False):
        (tmp_path / f"{name}.jpg").write_bytes(file.read_bytes())
    return tmp_path


def python(site: Path, code: str) -> str:
    paths = os.pathsep.join([str(site), str(Path(__file__).parents[1])])
    done = forked_python.run(["-c", code], env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_step_and_a_source_of_a_plugin_run_and_agree(site: Path) -> None:
    code = f"""
import gpupipe
from helpers.reference import by_id, operators, reference
data = {{"source": "two_files", "root": {str(site)!r}}}
config = {{"data": data, "pipeline": ["decode", "invert", "random_horizontal_flip"]}}
with gpupipe.load(config, batch_size=2, ids=True) as loader:
    images = by_id(loader)
    same = all((images[i] == reference(loader, 0, i)).all() for i in images)
    print(len(images), same, operators(loader)[1][2])
"""
    assert python(site, code) == "2 True ('invert',)"


def test_plugins_are_suggested_for_a_typo(site: Path) -> None:
    code = """
import gpupipe
try:
    gpupipe.load({"data": {"source": "two_file"}, "pipeline": ["decode", "invrt"]})
except gpupipe.ConfigError as e:
    print(e)
"""
    said = python(site, code)
    assert "did you mean 'two_files'" in said
    assert "did you mean 'invert'" in said


def test_a_step_without_a_dali_lowering_says_so(site: Path) -> None:
    code = f"""
import gpupipe
try:
    data = {{"source": "two_files", "root": {str(site)!r}}}
    gpupipe.load({{"data": data, "pipeline": ["decode", "only_torch"]}})
except gpupipe.EngineError as e:
    print(e)
"""
    assert "OnlyTorch has no lowering onto primitives" in python(site, code)


def test_what_is_installed_and_removed_meanwhile_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a folder that has been on sys.path before."""
    monkeypatch.syspath_prepend(tmp_path)
    assert "late" not in find_packages(STEP_GROUP)
    install(tmp_path, "late_package", "Late = int", late="Late")
    assert find_packages(STEP_GROUP)["late"] == "the package late_package 1.0"
    with pytest.raises(LookupError, match="a class that is no Step"):
        find_plugin(STEP_GROUP, "late", Step)
    shutil.rmtree(tmp_path / "late_package-1.0.dist-info")
    assert find_plugin(STEP_GROUP, "late", Step) is None
