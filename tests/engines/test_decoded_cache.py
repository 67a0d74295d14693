"""The decoded cache on every engine: the same pixels to the bit, with and without."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.decoded_caches import DISK, MEMORY, are_equal, counters, epochs_of
from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414  # a fixture
from helpers.full_product import IS_FULL
from helpers.loaders import load

FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
PIPELINES: dict[str, list[Any]] = {
    "train": [
        "decode",
        {"resize": {"size": 128}},
        {"random_resized_crop": {"size": 96}},
        "random_horizontal_flip",
        FLOATS,
    ],
    "eval": ["decode", {"resize": {"size": 128}}, {"center_crop": {"size": 96}}, FLOATS],
    "crop": ["decode", {"random_resized_crop": {"size": 96}}, FLOATS],
    "affine": [
        "decode",
        {"resize": {"size": [120, 100]}},
        {"random_affine": {"degrees": 10, "interpolation": "bilinear"}},
        {"color_jitter": {"brightness": 0.4, "contrast": 0.4}},
    ],
    "window": ["decode", {"resize": {"size": 128}}, {"random_crop": {"size": 96}}],
    "all": ["decode", {"resize": {"size": [60, 90]}}],
}
ENGINES: dict[str, dict[str, Any]] = {
    "cpu": {"engine": "cpu", "threads": 2},
    "dali": {"engine": "dali", "threads": 2},
    "no workers": {"engine": "dataloader", "workers": 0},
    "workers": {"engine": "dataloader", "workers": 2},
    "not forked": {
        "engine": "dataloader",
        "workers": 1,
        "multiprocessing_context": "spawn" if IS_FULL else "forkserver",
    },
}
COUNT = 12
"""Of `few_photos`."""
QUICK = ("cpu", "dali", "no workers")


def open_loader(root: Path, engine: str, pipeline: str, cache: Any, **options: Any) -> Any:
    data = {} if cache is None else {"cache_decoded": cache}
    settings = ENGINES[engine] | {"batch_size": 8} | options
    return load(root, PIPELINES[pipeline], data=data, **settings)


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("engine", [e for e in ENGINES if e in QUICK])
def test_pixels_are_the_same_to_the_bit(few_photos: Path, engine: str, pipeline: str) -> None:
    plain = epochs_of(open_loader(few_photos, engine, pipeline, None), 2)
    assert are_equal(epochs_of(open_loader(few_photos, engine, pipeline, MEMORY), 2), plain)
    assert counters().records == COUNT
    assert are_equal(epochs_of(open_loader(few_photos, engine, pipeline, MEMORY), 2), plain)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("engine", [e for e in ENGINES if e not in QUICK])
@pytest.mark.parametrize("cache", [MEMORY, DISK], ids=str)
def test_workers_share_it(few_photos: Path, engine: str, cache: Any) -> None:
    plain = epochs_of(open_loader(few_photos, "no workers", "train", None), 2)
    assert are_equal(epochs_of(open_loader(few_photos, engine, "train", cache), 2), plain)
    assert counters(cache["where"]).records == COUNT


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "not forked"])
def test_a_cache_for_a_part_of_the_data(few_photos: Path, engine: str) -> None:
    """Batches are of samples that are in the cache, and of others."""
    cache = {"where": "memory", "max_bytes": "1MB"}
    plain = epochs_of(open_loader(few_photos, engine, "crop", None), 3)
    assert are_equal(epochs_of(open_loader(few_photos, engine, "crop", cache), 3), plain)
    assert 0 < counters().records < COUNT


@pytest.mark.parametrize("engine", [e for e in ENGINES if e in QUICK])
def test_a_broken_file_is_skipped_alone(faces: Path, tmp_path: Path, engine: str) -> None:
    root = Path(shutil.copytree(faces, tmp_path / "faces"))
    for path in sorted(root.glob("*/*"))[:30:10]:
        path.write_bytes(path.read_bytes()[:200])
    loader = open_loader(root, engine, "train", MEMORY, on_error="skip", max_bad=0.5)
    plain = epochs_of(open_loader(root, engine, "train", None, on_error="skip", max_bad=0.5), 2)
    epochs = epochs_of(loader, 2)
    assert [sum(len(batch["id"]) for batch in epoch) for epoch in epochs] == [57, 57]
    assert len(loader.engine.quarantine) == 3
    assert are_equal(epochs, plain)


def test_ranks_share_it(few_photos: Path) -> None:
    """Each rank fills its part, and later uses what others filled."""
    for rank in range(2):
        shard = {"rank": rank, "world_size": 2}
        epochs_of(open_loader(few_photos, "cpu", "train", MEMORY, shard=shard), 1)
    assert counters().records == COUNT
    plain = epochs_of(open_loader(few_photos, "cpu", "train", None), 1)
    assert are_equal(epochs_of(open_loader(few_photos, "cpu", "train", MEMORY), 1), plain)


def test_batches_are_the_users(few_photos: Path) -> None:
    """What a user does to a batch changes neither the cache nor later batches."""
    for engine in [e for e in ENGINES if e != "not forked"]:
        options = {"shuffle": False, "memory_format": "channels_last"}
        plain = epochs_of(open_loader(few_photos, engine, "all", None, **options), 1)
        with open_loader(few_photos, engine, "all", MEMORY, **options) as loader:
            for _ in range(3):
                for batch in loader:
                    batch["image"].zero_()
            images = [batch["image"].clone() for batch in loader]
        assert all(torch.equal(a, b["image"]) for a, b in zip(images, plain[0], strict=True))
