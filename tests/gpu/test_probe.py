"""What the probe says of a GPU, and which loaders ask it."""

import json
from pathlib import Path

import pytest

from gpupipe.runtime.capability_probe import (
    can_decode_regions,
    installed_codec_fault,
    jpeg_engines,
    probe,
    region_key,
)
from helpers.loaders import loading
from helpers.reference import emitted


def test_a_gpu_answers() -> None:
    outcome = probe(0)
    assert outcome.pipeline and outcome.decode
    assert outcome.region or outcome.reason
    engines = jpeg_engines(0)
    assert engines.number is not None, engines.reason
    assert (engines.number > 0) == (engines.cores > 0)


def test_the_whole_matrix_gets_as_far_as_whole_images() -> None:
    """What becomes of parts of images depends on the GPU and on nvImageCodec; it is told, and never
    ends this process.
    """
    outcome = probe(0, even_if_broken=True)
    assert outcome.pipeline and outcome.decode, outcome.reason
    assert outcome.region == (outcome.reason == "")
    print(f"parts of images: {'right' if outcome.region else outcome.reason}")


load = loading(device="gpu", ids=False, batch_size=16)


def test_only_a_pipeline_that_cuts_asks(cache: Path, faces: Path) -> None:
    can_decode_regions.cache_clear()
    with load(faces, "affine"):
        assert not (cache / "region-decode.json").exists()
    with load(faces, "imagenet_train") as loader:
        assert next(iter(loader))["image"].shape[-2:] == (224, 224)
        operators = emitted(loader)
    kept = cache / "region-decode.json"
    if installed_codec_fault():
        assert not kept.exists()
        assert "decoders.image" in operators
        return
    ((key, entry),) = json.loads(kept.read_text()).items()
    assert key == region_key(0)
    assert ("decoders.image_slice" in operators) is entry["region"]


def test_the_key_names_the_driver() -> None:
    key = region_key(0)
    assert "driver of unknown version" not in key
    assert "driver unknown" not in key


@pytest.mark.parametrize("number", [0])
def test_the_answer_is_the_probes(cache: Path, number: int) -> None:
    can_decode_regions.cache_clear()
    assert can_decode_regions(number) is probe(number).region
