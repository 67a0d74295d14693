"""Samples that fail in the DataLoader engine cost only themselves."""

from pathlib import Path

import pytest
import torch

import gpupipe
from helpers.dataloader_engine import BAD, break_, load


@pytest.mark.parametrize("decoder", ["torchvision", "pil"])
@pytest.mark.parametrize("kind", BAD)
def test_raise_names_the_sample_and_the_reason(
    twelve_files: list[Path], kind: str, decoder: str
) -> None:
    with load(twelve_files[0].parents[1], batch_size=4, shuffle=False, decoder=decoder) as loader:
        break_(twelve_files[5], kind)
        iterator = iter(loader)
        assert next(iterator)["id"].tolist() == [0, 1, 2, 3]
        with pytest.raises(gpupipe.SampleError, match=BAD[kind][1]) as caught:
            next(iterator)
        assert caught.value.path == str(twelve_files[5])


def test_skip_leaves_out_the_bad_alone_and_lists_them_once(
    twelve_files: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    with load(
        twelve_files[0].parents[1],
        batch_size=4,
        shuffle=False,
        on_error="skip",
        max_bad=0.5,
        quarantine=file,
    ) as loader:
        for place, kind in zip((0, 4, 5, 11), BAD, strict=True):
            break_(twelve_files[place], kind)
        for _ in range(2):
            assert [b["id"].tolist() for b in loader] == [[1, 2, 3], [6, 7], [8, 9, 10]]
        assert len(loader.engine.quarantine) == len(BAD) == len(file.read_text().splitlines())


def test_a_batch_of_bad_samples_alone_is_left_out(twelve_files: list[Path]) -> None:
    with load(
        twelve_files[0].parents[1], batch_size=4, shuffle=False, on_error="skip", max_bad=0.5
    ) as loader:
        for file in twelve_files[4:8]:
            break_(file, "text")
        for _ in range(2):
            assert [b["id"].tolist() for b in loader] == [[0, 1, 2, 3], [8, 9, 10, 11]]


def test_images_of_different_sizes_are_named(photos: Path) -> None:
    with (
        load(photos, ["decode"], batch_size=47) as loader,
        pytest.raises(gpupipe.ShapeError) as error,
    ):
        list(loader)
    assert str(error.value).count(".jpg is ") == 2


def test_the_trainers_threads_come_back_after_an_error(twelve_files: list[Path]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with load(twelve_files[0].parents[1], batch_size=4, workers=0) as loader:
            break_(twelve_files[5], "text")
            with pytest.raises(gpupipe.SampleError):
                list(loader)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
