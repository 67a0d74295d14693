"""Images that are long and thin pass every engine: no engine has a limit that the others lack."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from helpers.loaders import load

SIZES = [(1, 16384), (3, 65500), (16384, 1)]
PIPELINES: list[list[Any]] = [
    # 65,500x3 becomes up to 1,375,500x63: more than the extension takes
    ["decode", {"random_resize": {"min_size": 60, "max_size": 64}}, {"center_crop": {"size": 8}}],
    [
        "decode",
        {"random_shortest_size": {"min_size": 8, "max_size": 64}},
        {"resize": {"size": [8, 8]}},
    ],
    ["decode", {"random_resized_crop": {"size": 1}}],
]


@pytest.fixture(scope="module")
def long_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("long")
    (root / "a").mkdir()
    rng = np.random.default_rng(0)
    for n, size in enumerate(SIZES):
        image = Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8))
        image.save(root / "a" / f"{n}.{'png' if n == 1 else 'jpg'}")
    return root


@pytest.mark.parametrize("pipeline", PIPELINES, ids=["beyond 2**20", "max_size", "one pixel"])
def test_long_images_pass_every_engine(long_images: Path, pipeline: list[Any]) -> None:
    images = {}
    for engine in ("dataloader", "cpu", "dali"):
        options = {"engine": engine, "workers": 0, "threads": 1, "shuffle": False, "batch_size": 1}
        with load(long_images, pipeline, **options) as loader:
            images[engine] = np.concatenate([batch["image"].numpy() for batch in loader]) * 1.0
    assert len(images["dali"]) == len(SIZES)
    assert images["cpu"].std() > 0.5
    assert np.abs(images["cpu"] - images["dataloader"]).max() <= 1
    assert np.abs(images["dali"] - images["dataloader"]).mean() <= 6  # its filter differs


def test_a_side_beyond_the_extension_is_named(tmp_path: Path) -> None:
    pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
    (tmp_path / "a").mkdir()
    Image.new("RGB", (1_100_000, 1)).save(tmp_path / "a" / "0.png")
    with (
        load(
            tmp_path, ["decode", {"resize": {"size": [8, 8]}}], engine="cpu", batch_size=1
        ) as loader,
        pytest.raises(gpupipe.SampleError, match=r"0\.png.*1,100,000 pixels.*engine: dataloader"),
    ):
        list(loader)
