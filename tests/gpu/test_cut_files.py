"""JPEGs that were cut off, on a GPU: none comes out as garbage, and no neighbour is touched."""

import itertools
from pathlib import Path

import pytest

import gpupipe
from helpers.cut_jpegs import jpeg, tails
from helpers.loaders import loading
from helpers.reference import by_id

COUNT = 64
BAD = {0: 50, 17: 90, 31: 99, 32: 0, 63: 99}
"""By id, the percent of the file that is left; of 0 a text takes its place."""


load = loading(device="gpu", shuffle=False, hw_decoder_load=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """64 good files of 256x256, of which most have something after their end."""
    (tmp_path / "one").mkdir()
    following = itertools.cycle([b"", *(tail for _, tail in tails())])
    for n in range(COUNT):
        path(tmp_path, n).write_bytes(jpeg(size=(256, 256), seed=n) + next(following))
    return tmp_path


def path(folder: Path, n: int) -> Path:
    return folder / "one" / f"{n:02}.jpg"


def damage(folder: Path, bad: dict[int, int]) -> None:
    for n, percent in bad.items():
        whole = jpeg(size=(256, 256), seed=n)
        path(folder, n).write_bytes(
            whole[: len(whole) * percent // 100] if percent else b"not a JPEG at all"
        )


@pytest.mark.parametrize("hw_decoder_load", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("batch_size", [1, COUNT])
def test_cut_off_files_are_left_out_and_their_neighbours_are_not_touched(
    folder: Path, batch_size: int, hw_decoder_load: float
) -> None:
    options = {"batch_size": batch_size, "hw_decoder_load": hw_decoder_load}
    with load(folder, **options) as loader:
        expected = by_id(loader)
    assert sorted(expected) == list(range(COUNT)), "bytes after the end are no harm"
    damage(folder, BAD)
    with load(folder, **options, on_error="skip", max_bad=0.5) as loader:
        for _ in range(2):
            found = by_id(loader)
            assert sorted(found) == [n for n in range(COUNT) if n not in BAD]
            differences = {n: int((found[n].int() - expected[n].int()).abs().max()) for n in found}
            # Between 0 and 1, which decoder takes a file depends on the batch.
            assert max(differences.values()) <= (3 if 0 < hw_decoder_load < 1 else 0), differences
        assert len(loader.engine.quarantine) == len(BAD)


@pytest.mark.parametrize("percent", [50, 90, 99])
@pytest.mark.parametrize("batch_size", [1, COUNT])
def test_a_cut_off_file_is_named(folder: Path, batch_size: int, percent: int) -> None:
    damage(folder, {20: percent})
    with load(folder, batch_size=batch_size) as loader:
        delivered: list[int] = []
        with pytest.raises(
            gpupipe.SampleError, match="a JPEG that was cut off: its end is missing"
        ) as caught:
            delivered.extend(i for batch in loader for i in batch["id"].tolist())
    assert caught.value.path == str(path(folder, 20))
    assert delivered == list(range(20) if batch_size == 1 else [])


def test_a_batch_of_nothing_but_cut_off_files_is_left_out(folder: Path) -> None:
    damage(folder, dict.fromkeys(range(16), 99))
    with load(folder, batch_size=16, on_error="skip", max_bad=0.5) as loader:
        assert [b["id"].tolist() for b in loader] == [list(range(n, n + 16)) for n in (16, 32, 48)]
