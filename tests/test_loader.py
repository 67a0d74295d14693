"""What a Loader promises its user, on stand-in images."""

from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from helpers.loaders import loading

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


load = loading(device="auto", ids=False, batch_size=16)


def test_a_batch(faces: Path) -> None:
    with load(faces, ["decode", FLOATS]) as loader:
        batches = list(loader)
        assert len(batches) == len(loader) == 4
        first = batches[0]
        assert first.keys() == {"image", "label"}
        assert (first["image"].dtype, first["image"].shape) == (torch.float32, (16, 3, 250, 250))
        assert (first["label"].dtype, first["label"].shape) == (torch.int64, (16,))
        assert first["image"].device == first["label"].device == torch.device("cpu")
        assert first["image"].is_contiguous()
        assert 0 <= first["image"].min() < 0.2
        assert 0.8 < first["image"].max() <= 1
        assert [len(b["label"]) for b in batches] == [16, 16, 16, 12]


def test_labels_are_the_numbers_of_the_sorted_class_names(faces: Path) -> None:
    with load(faces, ids=True) as loader:
        for batch in loader:
            for id, label in zip(batch["id"].tolist(), batch["label"].tolist(), strict=True):
                assert (
                    Path(loader.index.location(id)).parent.name
                    == sorted(p.name for p in faces.iterdir() if p.is_dir())[label]
                )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "uint8"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_dtype_and_memory_format_change_no_value(
    faces: Path, dtype: str, memory_format: str
) -> None:
    steps = [] if dtype == "uint8" else [FLOATS]
    with load(faces, ["decode", *steps]) as loader:
        plain = next(iter(loader))["image"]
    with load(faces, ["decode", *steps], dtype=dtype, memory_format=memory_format) as loader:
        image = next(iter(loader))["image"]
    assert image.dtype == getattr(torch, dtype)
    assert image.is_contiguous(memory_format=FORMATS[memory_format])
    assert image.shape == plain.shape
    tolerance = {"float16": 2**-11, "bfloat16": 2**-8}.get(dtype, 0)
    assert float((image.float() - plain.float()).abs().max()) <= tolerance


def test_tuples(faces: Path) -> None:
    with load(faces, ["decode", FLOATS], format="tuple") as loader:
        image, label = next(iter(loader))
        assert (len(image), len(label)) == (16, 16)
        loader.as_tuple = False
        assert next(iter(loader)).keys() == {"image", "label"}


def test_sizes_of_the_last_batch(faces: Path) -> None:
    def sizes(last_batch: str) -> list[int]:
        with load(faces, last_batch=last_batch) as loader:
            found = [len(b["label"]) for b in loader]
            assert len(found) == len(loader)
            return found

    assert sizes("partial") == [16, 16, 16, 12]
    assert sizes("drop") == [16, 16, 16]
    assert sizes("pad") == [16, 16, 16, 16]


def test_every_iter_is_a_new_epoch_and_breaking_off_costs_nothing(faces: Path) -> None:
    with load(faces, ids=True, prefetch=3) as loader:
        whole = [[b["id"].tolist() for b in loader] for _ in range(3)]
    assert whole[0] != whole[1] != whole[2]
    with load(faces, ids=True, prefetch=3) as loader:
        for batch in loader:
            assert batch["id"].tolist() == whole[0][0]
            break
        assert [b["id"].tolist() for b in loader] == whole[1]
        iter(loader)
        assert loader.sampler.epoch == 2, "an iteration begins with its first batch"
        iterator = iter(loader)
        loader.sampler.set_epoch(1)
        assert [b["id"].tolist() for b in iterator] == whole[1], (
            "as Lightning does it: iter() first, set_epoch() then"
        )
        assert loader.sampler.epoch == 2


def test_an_older_iterator_does_not_go_on_silently(faces: Path) -> None:
    with load(faces) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        next(new)
        with pytest.raises(gpupipe.GpupipeError, match="newer iter"):
            next(old)
        assert len(list(new)) == 3


def test_batches_that_are_held_stay_what_they_were(faces: Path) -> None:
    with load(faces, ["decode", FLOATS], batch_size=2, prefetch=6, ids=True) as loader:
        held = list(loader)
        sums = {
            int(i): float(x.double().sum())
            for b in held
            for i, x in zip(b["id"], b["image"], strict=True)
        }
        for _ in range(2):
            again = {
                int(i): float(x.double().sum())
                for b in loader
                for i, x in zip(b["id"], b["image"], strict=True)
            }
            assert again == sums
        assert {
            int(i): float(x.double().sum())
            for b in held
            for i, x in zip(b["id"], b["image"], strict=True)
        } == sums


def test_fewer_batches_than_prefetch(faces: Path) -> None:
    with load(faces, batch_size=60, prefetch=8, ids=True) as loader:
        for _ in range(3):
            assert [sorted(b["id"].tolist()) for b in loader] == [list(range(60))]


def test_closed_twice_and_in_mid_epoch(faces: Path) -> None:
    loader = load(faces)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(gpupipe.GpupipeError, match=r"ended by .* close\(\)"):
        next(iterator)
    with pytest.raises(gpupipe.GpupipeError, match="this loader is closed"):
        iter(loader)


def test_a_gpu_that_is_not_there_is_said_so(faces: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(gpupipe.DeviceError, match=r"loader\.device=cpu"):
        load(faces, device="gpu")


def test_too_few_samples_for_the_ranks(faces: Path) -> None:
    with pytest.raises(gpupipe.ConfigError, match="60 samples cannot give each of 61 ranks one"):
        load(faces, shard={"rank": 0, "world_size": 61})


def test_images_of_different_sizes_name_two_samples_and_the_steps_that_help(photos: Path) -> None:
    with load(photos, batch_size=47) as loader, pytest.raises(gpupipe.ShapeError) as error:
        list(loader)
    said = str(error.value)
    assert said.count(".jpg is ") == 2
    assert "random_resized_crop" in said


def test_between_iter_and_the_first_batch_the_state_is_the_beginning_of_that_epoch(
    faces: Path,
) -> None:
    with load(faces) as loader:
        list(loader)
        iterator = iter(loader)
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
        next(iterator)
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 16)
        list(iterator)
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (2, 0)


@pytest.mark.parametrize(
    "options",
    [{"engine": "dali"}, {"engine": "cpu"}, {"engine": "dataloader", "workers": 0}],
    ids=["dali", "cpu", "dataloader"],
)
def test_a_state_behind_a_first_batch_that_failed_is_the_beginning_of_that_epoch(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "0.jpg").write_bytes(b"no JPEG")
    with load(tmp_path, **options) as loader:
        loader.sampler.set_epoch(3)
        with pytest.raises(gpupipe.SampleError):
            next(iter(loader))
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (3, 0)
