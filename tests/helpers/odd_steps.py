"""Packages with a step that is not as it should be, and how it fails."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from helpers.loaders import loading
from helpers.plugin import install

ENGINES: list[dict[str, Any]] = [
    {"engine": "dali"},
    {"engine": "dataloader", "workers": 0},
    {"engine": "dataloader", "workers": 1},
    {"engine": "cpu"},
]
HEAD = """
import numpy as np
from dataclasses import replace
from gpupipe.dataset.source import Source
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import SampleIncompatibleError, Step
"""
GOOD = {
    "num_uniforms": "    num_uniforms = 1",
    "sample": "    def sample(self, u):\n        return {'strength': u}",
    "infer_spec": "    def infer_spec(self, given):\n        return check_decoded(given)",
    "lower": "    def lower(self, image, p):\n        image.apply('same', lambda pixels: pixels)",
    "torch": "    def torch(self, image, p):\n        return image",
}
"""What a step does that changes nothing."""
_numbers = itertools.count()

Plugin = Callable[..., str]


def installer(folder: Path, patch: pytest.MonkeyPatch) -> Plugin:
    """Installs packages with one step, some methods of which are given; returns its name."""

    def made(**methods: str) -> str:
        name = f"plugin_{next(_numbers)}"
        body = "\n".join((GOOD | methods).values())
        install(folder, name, f"{HEAD}\nclass Odd(Step):\n{body}\n", **{name: "Odd"})
        patch.syspath_prepend(str(folder))
        return name

    return made


load_quickly = loading(ids=False, batch_size=4, shuffle=False, threads=1)


def load(root: Path, step: str, *more: Any, **options: Any) -> gpupipe.Loader:
    return load_quickly(root, ["decode", step, *more], **options)


def failure(root: Path, step: str, *more: Any, **options: Any) -> gpupipe.StepError:
    with pytest.raises(gpupipe.StepError) as caught, load(root, step, *more, **options) as loader:
        list(loader)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(f"config: pipeline.1: step '{step}' ({step} 1.0, ")
    assert f"{step}.py): " in said, "the file"
    return caught.value
