"""The drawn faces: as many as asked, of LFW's shape and size on disk, and the same every time."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpupipe.runtime.progress import ignore_progress
from gpupipe.sources.helpers.dataset_catalog import is_stand_in, make_stand_in


def images(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.jpg"))


def test_as_many_as_asked_in_folders_of_one_to_nine(faces: Path) -> None:
    assert len(images(faces)) == 60
    sizes = [len(list(folder.iterdir())) for folder in faces.iterdir() if folder.is_dir()]
    assert sum(sizes) == 60
    assert min(sizes) >= 1
    assert max(sizes) <= 9
    assert len(set(sizes)) > 3, "as in LFW, people have different numbers of images"
    assert {p.parent.name for p in images(faces)} == {
        p.name.rpartition("_")[0] for p in images(faces)
    }


@pytest.mark.parametrize("count", [1, 7, 51])
def test_any_number(tmp_path: Path, count: int) -> None:
    make_stand_in(tmp_path / "made", count, ignore_progress)
    assert len(images(tmp_path / "made")) == count
    assert all(
        list(folder.iterdir()) for folder in (tmp_path / "made").iterdir() if folder.is_dir()
    ), "no empty class"


def test_jpegs_of_lfws_shape_and_size_on_disk(faces: Path) -> None:
    for path in images(faces):
        with Image.open(path) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (250, 250), "RGB")
    mean = np.mean([p.stat().st_size for p in images(faces)]) / 1000
    assert 11 < mean < 18, f"LFW's images have 14 KB on average, these {mean:.1f}"


def test_the_same_pixels_in_two_runs(faces: Path, tmp_path: Path) -> None:
    make_stand_in(tmp_path / "again", 60, ignore_progress)
    assert [p.relative_to(tmp_path / "again") for p in images(tmp_path / "again")] == [
        p.relative_to(faces) for p in images(faces)
    ]
    for one, other in zip(images(faces), images(tmp_path / "again"), strict=True):
        assert np.array_equal(np.asarray(Image.open(one)), np.asarray(Image.open(other))), one


def test_a_smaller_set_begins_as_a_larger_one(faces: Path, tmp_path: Path) -> None:
    """So that runs on 50 and on 2000 stand-ins can be compared: image n does not depend on how many
    there are.
    """
    make_stand_in(tmp_path / "fewer", 20, ignore_progress)
    shared = [p.relative_to(tmp_path / "fewer") for p in images(tmp_path / "fewer")][:10]
    assert all((tmp_path / "fewer" / p).read_bytes() == (faces / p).read_bytes() for p in shared)


def test_no_two_images_are_the_same(faces: Path) -> None:
    assert len({p.read_bytes() for p in images(faces)}) == 60


def test_images_of_a_person_are_more_alike_than_those_of_two(faces: Path) -> None:
    """A label means something: the people's colours tell them apart."""
    by_person: dict[str, list[np.ndarray]] = {}
    for path in images(faces):
        middle = np.asarray(Image.open(path), np.float64)[100:150, 100:150].mean((0, 1))
        by_person.setdefault(path.parent.name, []).append(middle)
    several = [np.array(v) for v in by_person.values() if len(v) > 2]
    within = np.mean([v.std(0) for v in several])
    between = np.std([v.mean(0) for v in several], axis=0).mean()
    assert between > 2 * within, (between, within)


def test_progress_and_the_marker(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    make_stand_in(tmp_path / "made", 120, lambda *what: seen.append(what))
    assert seen == [("making stand-in images", n, 120) for n in (50, 100, 120)]
    assert is_stand_in(tmp_path / "made")
    assert not is_stand_in(tmp_path)
    (marker,) = [p for p in (tmp_path / "made").iterdir() if p.is_file()]
    assert marker.name.startswith("."), "no source takes it for data"
    assert json.loads(marker.read_text())["images"] == 120
