"""Arrays as they are stored: what the engines deliver, hold and refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.formats.npy import DTYPES
from helpers.arrays import COUNT, ENGINES, both, delivered, exactly, numbers, saved


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_without_steps_are_those_of_the_file(tmp_path: Path, dtype: str) -> None:
    stored = numbers(dtype, (COUNT, 3, 4, 5))
    for engine in ENGINES:
        found = delivered(saved(tmp_path, stored), [], engine)
        assert {t.dtype for t in found.values()} == {getattr(torch, dtype)}
        assert all(np.array_equal(found[i].numpy(), stored[i]) for i in range(COUNT))


@pytest.mark.parametrize("shape", [(), (2, 3, 2, 3, 2, 3)], ids=str)
def test_arrays_of_no_axis_and_of_many_go_through(tmp_path: Path, shape: tuple[int, ...]) -> None:
    stored = numbers("float32", (COUNT, *shape))
    for engine in ENGINES:
        found = delivered(saved(tmp_path, stored), [{"to_dtype": {"dtype": "float64"}}], engine)
        assert all(
            np.array_equal(found[i].numpy(), stored[i].astype(np.float64)) for i in range(COUNT)
        )


def test_what_the_loader_delivers_has_its_dtype(tmp_path: Path) -> None:
    stored = numbers("float64", (COUNT, 4))
    for dtype in ("float16", "bfloat16", "float32"):
        for engine in ENGINES:
            found = delivered(saved(tmp_path, stored), [], engine, dtype=dtype)
            assert all(
                torch.equal(found[i], torch.from_numpy(stored[i]).float().to(getattr(torch, dtype)))
                for i in range(COUNT)
            )


def test_arrays_of_different_shapes(tmp_path: Path) -> None:
    for i in range(COUNT):
        np.save(tmp_path / f"{i}.npy", numbers("float32", (2, 9 + i, 14 - i), i))
    data = {"source": "numpy", "files": str(tmp_path / "*.npy")}
    exactly(
        both(data, [{"random_crop": {"size": 12, "pad_if_needed": True}}, "random_horizontal_flip"])
    )
    with pytest.raises(
        gpupipe.ShapeError,
        match=r"'array' of a batch differ in shape: .*\d\.npy is 2x.*, .*\d\.npy is 2x",
    ):
        delivered(data, [], "dali")
    with pytest.raises(
        gpupipe.SampleError,
        match=r"\d\.npy: the crop needs at least 12x12 pixels, but the image has \d+x\d+: .*"
        r"resize first.*; set loader",
    ):
        delivered(
            data, [{"random_crop": {"size": 12}}], "dali", shuffle=False, batch_size=1, seed=1
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_that_are_held_keep_their_numbers(tmp_path: Path, engine: str) -> None:
    """Nothing is copied on the way into DALI: what comes out must not be what the next batches are
    made in.
    """
    stored = numbers("float32", (64, 3, 32, 32))
    data = saved(tmp_path, stored)
    for steps in ([], [{"center_crop": {"size": 32}}]):
        with gpupipe.load(
            {"data": data, "pipeline": steps},
            device="cpu",
            batch_size=4,
            ids=True,
            prefetch=8,
            **ENGINES[engine],
        ) as loader:
            held = [batch for _ in range(3) for batch in loader]
        assert len(held) == 48
        assert all(
            np.array_equal(batch["array"].numpy(), stored[batch["id"].numpy()]) for batch in held
        )


def test_a_file_that_is_cut_off_after_it_was_indexed_is_skipped_and_named(tmp_path: Path) -> None:
    for i in range(COUNT):
        np.save(tmp_path / f"{i}.npy", numbers("float32", (2, 300), i))
    data = {"source": "numpy", "files": str(tmp_path / "*.npy")}
    for engine, options in ENGINES.items():
        with gpupipe.load(
            {"data": data, "pipeline": []},
            device="cpu",
            batch_size=2,
            ids=True,
            on_error="skip",
            max_bad=0.5,
            **options,
        ) as loader:
            (tmp_path / "3.npy").write_bytes((tmp_path / "3.npy").read_bytes()[:-100])
            found = sorted(int(i) for batch in loader for i in batch["id"])
            assert found == [0, 1, 2, 4], engine
            assert (
                "3.npy ends 100 bytes before the sample does"
                in loader.engine.quarantine.file.read_text()
            )
        np.save(tmp_path / "3.npy", numbers("float32", (2, 300), 3))


def test_an_image_file_takes_other_dtypes_too(tmp_path: Path) -> None:
    """As a mask does that becomes int64 for the loss."""
    from PIL import Image

    (tmp_path / "a").mkdir()
    pixels = numbers("uint8", (9, 12, 3))
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
    data = {"source": "folder", "root": str(tmp_path), "field": "image"}
    steps: list[Any] = [
        "decode",
        {"to_dtype": {"dtype": "int64"}},
        {"center_crop": {"size": [5, 6]}},
    ]
    for engine, options in ENGINES.items():
        for layout in ("contiguous", "channels_last"):
            config = {"data": {k: v for k, v in data.items() if k != "field"}, "pipeline": steps}
            with gpupipe.load(config, device="cpu", memory_format=layout, **options) as loader:
                (batch,) = loader
            assert batch["image"].dtype == torch.int64, engine
            assert np.array_equal(batch["image"][0].numpy(), pixels[2:7, 3:9].transpose(2, 0, 1))
