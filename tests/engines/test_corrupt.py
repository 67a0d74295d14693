"""Broken samples under on_error: raise: named, with the reason; and what is no error."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.file_columns import FileColumn
from gpupipe.engines.bad_samples import describe_damage
from helpers.corrupt_images import BAD, IRREGULAR, change, epoch, ids, load, sample
from helpers.image_files import encoded


@pytest.mark.parametrize("kind", BAD | IRREGULAR)
def test_raise_names_the_sample_and_the_reason(
    few: Path, pictures: list[Image.Image], kind: str, cache: Path
) -> None:
    write, reason = (BAD | IRREGULAR)[kind]
    bad = sample(few, 4)
    with load(few, batch_size=2, shuffle=False) as loader:
        write(bad, pictures[4])
        for _ in range(2):
            delivered: list[int] = []
            with pytest.raises(
                gpupipe.SampleError, match=reason.removeprefix("^").removesuffix("$")
            ) as caught:
                delivered.extend(i for batch in loader for i in batch["id"].tolist())
            assert caught.value.path == str(bad)
            assert str(caught.value).startswith(f"{bad}: ")
            assert "set loader.on_error=skip" in str(caught.value)
            assert "\n" not in str(caught.value)
        mend(bad, pictures[4])
        assert ids(epoch(loader)) == [0, 1, 2, 3, 4, 5], "the loader can be used again"
    assert len(loader.engine.quarantine) == 0
    assert not (cache / "quarantine").exists()


@pytest.mark.parametrize("kind", BAD | IRREGULAR)
def test_skip_writes_the_same_reason(
    few: Path, pictures: list[Image.Image], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write, reason = (BAD | IRREGULAR)[kind]
    file = tmp_path_factory.mktemp("quarantine") / "bad.jsonl"
    with load(few, batch_size=4, on_error="skip", max_bad=0.5, quarantine=file) as loader:
        write(sample(few, 4), pictures[4])
        assert sorted(ids(epoch(loader))) == [0, 1, 2, 3, 5]
    (record,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert re.search(reason, record["reason"]), record["reason"]


def mend(path: Path, image: Image.Image) -> None:
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    image.save(path, quality=85)


def test_batches_before_the_bad_one_arrive_first(few: Path) -> None:
    with load(few, batch_size=2, shuffle=False, prefetch=3) as loader:
        sample(few, 5).write_bytes(b"")
        iterator = iter(loader)
        assert next(iterator)["id"].tolist() == [0, 1]
        assert next(iterator)["id"].tolist() == [2, 3]
        with pytest.raises(gpupipe.SampleError):
            next(iterator)


def test_the_first_bad_sample_of_a_batch_is_named(few: Path) -> None:
    with load(few, batch_size=6, shuffle=False) as loader:
        for n in (2, 4):
            sample(few, n).write_bytes(b"")
        with pytest.raises(gpupipe.SampleError) as caught:
            epoch(loader)
    assert caught.value.path == str(sample(few, 2))


def test_a_good_image_that_the_pipeline_cannot_take_has_dalis_reason(
    few: Path, pictures: list[Image.Image]
) -> None:
    """The bytes behind its end are no crime, and so not named as the cause."""
    sample(few, 3).write_bytes(encoded(pictures[3].crop((0, 0, 40, 40)), "JPEG") + bytes(500))
    with (
        load(few, ["decode", {"random_crop": {"size": 64}}], batch_size=6) as loader,
        pytest.raises(gpupipe.SampleError) as caught,
    ):
        epoch(loader)
    assert caught.value.path == str(sample(few, 3))
    assert caught.value.reason.startswith(
        "cannot be decoded or transformed: the crop needs at least 64x64 pixels, but the image has"
    )


def test_bytes_behind_the_end_are_no_harm(few: Path, pictures: list[Image.Image]) -> None:
    with load(few, batch_size=6, shuffle=False) as loader:
        before = epoch(loader)[0]["image"]
        change(loader)
        with sample(few, 3).open("ab") as f:
            f.write(bytes(500))
        column = FileColumn("/", StringArray.from_strings([str(sample(few, 3))]))
        assert describe_damage(column, 0), "it looks cut off, and still it is delivered"
        assert torch.equal(epoch(loader)[0]["image"], before)


def test_a_jpeg_that_lacks_only_its_end_marker_is_delivered_right_or_refused(
    few: Path, pictures: list[Image.Image]
) -> None:
    """Which of the two is up to how far DALI's decoder reads ahead."""
    with load(few, batch_size=6, shuffle=False, on_error="skip", max_bad=0.5) as loader:
        before = epoch(loader)[0]["image"]
        change(loader)
        sample(few, 3).write_bytes(sample(few, 3).read_bytes()[:-2])
        batch = epoch(loader)[0]
        assert len(loader.engine.quarantine) == 6 - len(batch["id"])
        assert torch.equal(batch["image"], before[batch["id"]])


def test_a_flipped_byte_is_delivered_as_garbage(few: Path, pictures: list[Image.Image]) -> None:
    """JPEG has no checksum: what decodes is delivered.

    Documented, so that nobody relies on it being noticed.
    """
    with load(few, batch_size=6, shuffle=False) as loader:
        before = epoch(loader)[0]["image"]
        change(loader)
        data = bytearray(sample(few, 3).read_bytes())
        data[len(data) // 2] ^= 0x55
        sample(few, 3).write_bytes(data)
        after = epoch(loader)[0]["image"]
    assert not torch.equal(after[3], before[3])
    others = [0, 1, 2, 4, 5]
    assert torch.equal(after[others], before[others])


def test_a_file_cut_off_below_the_window_that_is_decoded_is_delivered_right(
    few: Path, pictures: list[Image.Image]
) -> None:
    """Only the window is decoded, so whether a file that was cut off is noticed can depend on the
    draw. The pixels are right.
    """
    with load(
        few,
        ["decode", {"resize": {"size": 48}}, {"center_crop": {"size": 10}}],
        batch_size=6,
        shuffle=False,
    ) as loader:
        before = epoch(loader)[0]["image"]
        change(loader)
        data = sample(few, 3).read_bytes()
        sample(few, 3).write_bytes(data[: len(data) * 95 // 100])
        assert torch.equal(epoch(loader)[0]["image"], before)
    with (
        load(few, batch_size=6, shuffle=False) as loader,
        pytest.raises(gpupipe.SampleError, match="cut off"),
    ):
        epoch(loader)


def test_images_that_differ_in_size_are_named_with_their_sizes_and_a_remedy(unequal: Path) -> None:
    with load(unequal, batch_size=6, shuffle=False) as loader:
        for _ in range(2):
            with pytest.raises(gpupipe.ShapeError) as caught:
                epoch(loader)
        said = str(caught.value)
        assert f"{sample(unequal, 0)} is 96x96" in said
        assert f"{sample(unequal, 4)} is 70x50" in said
        assert "resize" in said
        assert "center_crop" in said


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_difference_in_size_is_never_skipped(unequal: Path, on_error: str) -> None:
    with load(unequal, batch_size=3, shuffle=False, on_error=on_error) as loader:
        iterator = iter(loader)
        assert next(iterator)["id"].tolist() == [0, 1, 2]
        with pytest.raises(gpupipe.ShapeError):
            next(iterator)


def test_a_difference_in_size_beside_a_bad_sample(unequal: Path) -> None:
    with load(unequal, batch_size=6, shuffle=False, on_error="skip", max_bad=0.5) as loader:
        sample(unequal, 1).unlink()
        with pytest.raises(gpupipe.ShapeError, match=f"{sample(unequal, 4)} is 70x50"):
            epoch(loader)
        assert len(loader.engine.quarantine) == 1


def test_batches_of_equal_size_may_differ_from_each_other(unequal: Path) -> None:
    with load(unequal, batch_size=1, shuffle=False) as loader:
        assert [tuple(b["image"].shape[2:]) for b in loader] == [(96, 96)] * 4 + [
            (70, 50),
            (96, 96),
        ]


def test_a_step_that_makes_sizes_equal_is_the_remedy(unequal: Path) -> None:
    with load(unequal, ["decode", {"resize": {"size": [64, 48]}}], batch_size=6) as loader:
        assert [tuple(b["image"].shape) for b in loader] == [(6, 3, 64, 48)]
