"""Which steps the decoded cache keeps the results of, and which settings are refused."""

from typing import Any

import pytest

from gpupipe.config import Config, read
from gpupipe.decoded_cache.decoded_cache import find_prefixes
from gpupipe.errors import ConfigError

CACHE = {"where": "memory", "max_bytes": "1MB"}


def config(pipeline: Any, **data: Any) -> Config:
    source = {"source": "folder", "root": "/nowhere", "cache_decoded": CACHE, **data}
    return read({"data": source, "pipeline": pipeline})


def kept(pipeline: Any, **data: Any) -> dict[str, list[str]]:
    """The names of the steps, by field."""
    found = find_prefixes(config(pipeline, **data).pipeline)
    return {name: [entry.name for entry in found[name].entries] for name in found}


FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


@pytest.mark.parametrize(
    ("pipeline", "steps"),
    [
        (["decode"], ["decode"]),
        (["decode", {"random_resized_crop": {"size": 224}}], ["decode"]),
        (
            ["decode", {"resize": {"size": 256}}, {"random_resized_crop": {"size": 224}}],
            ["decode", "resize"],
        ),
        (
            ["decode", {"resize": {"size": 256}}, {"center_crop": {"size": 224}}, FLOATS],
            ["decode", "resize", "center_crop"],
        ),
        (["decode", "random_horizontal_flip", {"resize": {"size": 256}}], ["decode"]),
        (["decode", FLOATS, {"resize": {"size": 256}}], ["decode"]),
        (
            {"steps": ["decode"], "views": {"a": {"steps": [{"resize": {"size": 9}}]}}},
            ["decode"],
        ),
    ],
    ids=str,
)
def test_the_prefix_ends_before_the_first_draw_and_the_first_float(
    pipeline: Any, steps: list[str]
) -> None:
    assert kept(pipeline) == {"image": steps}


def test_a_step_with_a_schedule_is_not_kept() -> None:
    size = {"value": 64, "until": 2, "then": 96}
    pipeline = ["decode", {"resize": {"size": [128, 128]}}, {"resize": {"size": size}}]
    assert kept(pipeline) == {"image": ["decode", "resize"]}


def test_every_field_of_image_files_has_a_prefix() -> None:
    data = {"source": "webdataset", "shards": "a.tar", "fields": {"image": "jpg", "mask": "png"}}
    pipeline = ["decode", {"decode": {"on": "mask", "mode": "gray"}}, {"resize": {"size": 9}}]
    checked = read({"data": {**data, "masks": ["mask"]}, "pipeline": pipeline})
    found = find_prefixes(checked.pipeline)
    names = {name: [entry.name for entry in found[name].entries] for name in found}
    assert names == {"image": ["decode", "resize"], "mask": ["decode"]}


def test_pixels_of_16_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache_decoded: it keeps pixels of uint8.*uint16"):
        config([{"decode": {"dtype": "uint16"}}])


def test_arrays_are_refused(tmp_path: Any) -> None:
    import numpy as np

    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "x.npy", np.zeros((2, 3), np.float32))
    with pytest.raises(ConfigError, match=r"cache_decoded.*arrays, which need no decoding"):
        read(
            {
                "data": {"source": "numpy", "root": tmp_path, "cache_decoded": CACHE},
                "pipeline": [{"to_dtype": {"dtype": "float32"}}],
            }
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "memry", "max_bytes": "1GB"}, "memory"),
        ({"where": "memory"}, "max_bytes"),
        ({"where": "memory", "max_bytes": "10kB"}, "at least 1MB"),
        ({"where": "memory", "max_bytes": "8 apples"}, "max_bytes"),
        ({"where": "memory", "max_byte": "8GB"}, "did you mean 'max_bytes'"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(["decode"], cache_decoded=options)


def test_sizes_are_read_as_elsewhere() -> None:
    checked = config(["decode"], cache_decoded={"where": "disk", "max_bytes": "8GB"})
    assert checked.source.cache_decoded is not None
    assert checked.source.cache_decoded.max_bytes == 8_000_000_000
