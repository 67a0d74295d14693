from typing import Any

import pytest

from gpupipe import config
from gpupipe.steps.resize import RandomResizedCrop, Resize
from helpers.config_texts import DATA, INLINE, mistakes, read


def sizes(name: str, *overrides: str) -> list[Any]:
    """The `size` of each step of a shipped config, after overrides."""
    steps = [entry.step for entry in config.read(name, overrides).pipeline.entries]
    return [step.size for step in steps if hasattr(step, "size")]


def test_image_size_scales_the_sizes_of_a_shipped_config() -> None:
    assert sizes("imagenet_train", "image_size=64") == [(64, 64)]
    assert sizes("imagenet_eval", "image_size=112") == [128, (112, 112)]
    assert sizes("imagenet_eval", "image_size=224") == sizes("imagenet_eval") == [256, (224, 224)]
    assert set(sizes("segmentation_train", "image_size=240")) == {(240, 240)}
    assert config.read("imagenet_eval", image_size=112).pipeline.output_spec.shape[1:] == (112, 112)


def test_views_keep_their_proportion() -> None:
    assert sizes("dino_v2", "image_size=112") == [(112, 112)] * 2 + [(48, 48)] * 8
    own = [{"resize": {"size": 90}}, {"center_crop": {"size": 900}}]
    data = {"source": "folder", "root": "/x"}
    tiny = config.read({"data": data, "pipeline": ["decode", *own]}, image_size=1).pipeline
    assert [getattr(e.step, "size", None) for e in tiny.entries[1:]] == [1, (1, 1)], "no side is 0"


def test_the_numbers_of_a_schedule_are_scaled_and_its_epochs_are_not() -> None:
    pipeline = config.read("progressive_resizing", ["image_size=96"]).pipeline
    shapes = {epoch: pipeline.at_epoch(epoch).output_spec.shape[1:] for epoch in (0, 70, 71)}
    assert shapes == {0: (80, 80), 70: (80, 80), 71: (96, 96)}


def test_own_steps_are_scaled_too_and_later_overrides_win() -> None:
    own = DATA + "pipeline: [decode, {resize: {size: [50, 100], max_size: null}}]\n"
    assert read(own, "image_size=10").pipeline.entries[1].step == Resize(size=(5, 10))
    changed = read(
        DATA + "pipeline: imagenet_train\n",
        "image_size=64",
        "pipeline.1.random_resized_crop.size=32",
    )
    assert changed.pipeline.entries[1].step == RandomResizedCrop(size=(32, 32))


@pytest.mark.parametrize("value", ["0", "65536", "1.5", "big", "true"])
def test_a_wrong_image_size(value: str) -> None:
    (problem,) = mistakes(INLINE, f"image_size={value}")
    assert problem.startswith(f"'image_size={value}': image_size is ")
    assert "the side of an image in pixels, 1 to 65535" in problem


def test_a_pipeline_without_sizes() -> None:
    assert mistakes(INLINE, "image_size=64") == [
        "'image_size=64': image_size: no step of the pipeline has a size to scale"
    ]
    assert mistakes(INLINE, "imagesize=64") == [
        "'imagesize=64': imagesize: unknown key; did you mean 'image_size'?"
    ]
