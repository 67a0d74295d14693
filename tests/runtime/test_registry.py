"""Classes by name, of a package and of plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.runtime.registry import Registry
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
