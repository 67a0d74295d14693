"""Steps inside containers work only on the samples that need them."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema.document import Document
from helpers.arrays import ENGINES
from helpers.loaders import load
from helpers.plugin import install
from helpers.reference import by_id, differences

FLIP = {"random_horizontal_flip": {"p": 1}}


def pipeline(*steps: Any) -> Pipeline:
    return build_pipeline("p", Document("p", ["decode", *steps]))


COUNTING = """
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Step
from nvidia.dali import fn

calls = []


class Window(Step):
    '''Cut 50x50 pixels from the corner; an image that is smaller is an error.'''

    def infer_spec(self, input_spec):
        return check_decoded(input_spec).with_size((50, 50))

    def lower(self, image, p):
        def make(pixels):
            window = {"start": [0, 0], "shape": [50, 50], "axes": [0, 1]}
            return fn.slice(pixels, out_of_bounds_policy="error", **window)
        image.apply("slice", make, size=[50.0, 50.0])

    def torch(self, image, p):
        calls.append(tuple(image.shape[1:]))
        assert min(image.shape[1:]) >= 50
        return image[:, :50, :50]
"""
COUNT = 24


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of a step `window` that counts its calls."""
    (tmp_path / "plugin").mkdir()
    folder = install(tmp_path / "plugin", "counting_step", COUNTING, window="Window")
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("counting_step")
    del sys.modules["counting_step"]


def images(root: Path, large: Any) -> Path:
    """Images of 60x70 where `large` is true, else of 30x20."""
    (root / "class").mkdir(parents=True)
    for n, is_large in enumerate(large):
        size = (60, 70) if is_large else (30, 20)
        Image.new("RGB", size, (n, 2 * n, 3)).save(root / "class" / f"{n:02d}.png")
    return root


CONTAINERS: dict[str, tuple[Any, str, int]] = {
    "random_apply": ({"random_apply": {"transforms": ["window"]}}, "runs", 1),
    "random_choice": ({"random_choice": {"transforms": [FLIP, "window", "identity"]}}, "choice", 1),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_step_works_only_on_the_samples_that_need_it(
    tmp_path: Path, counting: Any, name: str, engine: str
) -> None:
    """All others are too small for it: it fails on them, in DALI its operator does."""
    container, key, value = CONTAINERS[name]
    ids = np.arange(COUNT, dtype=np.int64)
    takes = pipeline(container).entries[1].parameters(0, 0, ids)[key] == value
    assert 3 < takes.sum() < COUNT - 3
    last = {"resize": {"size": [9, 9]}}
    options = {"batch_size": 8, "seed": 0, **ENGINES[engine]}
    root = images(tmp_path / "right", takes)
    with load(root, ["decode", container, last], **options) as loader:
        made = by_id(loader)
    assert len(made) == COUNT
    if engine == "dataloader":
        assert counting.calls == [(70, 60)] * int(takes.sum())
    wrong = images(tmp_path / "wrong", ~takes)
    with (
        load(wrong, ["decode", container, last], **options) as loader,
        pytest.raises(gpupipe.GpupipeError),
    ):
        list(loader)


def test_both_engines_agree_on_a_step_without_primitives(tmp_path: Path, counting: Any) -> None:
    container, key, value = CONTAINERS["random_apply"]
    ids = np.arange(COUNT, dtype=np.int64)
    takes = pipeline(container).entries[1].parameters(0, 0, ids)[key] == value
    root = images(tmp_path / "right", takes)
    found = differences(root, container, {"center_crop": {"size": 40}}, batch_size=8, seed=0)
    assert max(d.most for d in found) == 0
