"""A sample of a data set's contents, by which a state recognises its data."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.dataset.index import Index
from gpupipe.loading.content_sample import find_difference, sample_content
from gpupipe.sources.folder import Folder


def write(root: Path, count: int) -> None:
    for n in range(count):
        file = root / "a" / f"{n:05}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"%d" % n * (1 + n % 3))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, 40)
    return tmp_path


def index_of(root: Path) -> Index:
    return Folder(root=root).index()


def test_it_holds_sizes_of_all_few_rows_and_hashes_of_some(root: Path) -> None:
    index = index_of(root)
    sample = sample_content(index)
    assert sample["sizes"] == [file.stat().st_size for file in sorted((root / "a").iterdir())]
    assert len(sample["hashes"]) == 20, "every second of 40: no more than 32"
    assert len(set(sample["hashes"])) == 20
    assert find_difference(sample, sample_content(index), index) == ""


def test_of_many_rows_every_rank_looks_at_the_same(tmp_path: Path) -> None:
    write(tmp_path, 3000)
    one, other = (sample_content(index_of(tmp_path)) for _ in range(2))
    assert one == other
    assert 700 < len(one["sizes"]) <= 1000
    assert len(one["hashes"]) <= 32


def test_a_difference_is_named_with_the_first_sample(root: Path) -> None:
    index = index_of(root)
    before = sample_content(index)
    (root / "a" / "00003.jpg").write_bytes(b"longer than it was")
    said = find_difference(before, sample_content(index), index)
    assert "a/00003.jpg had 1 bytes, and has 18 now; of 40 samples that were compared, 1" in said


def test_other_content_of_the_same_size_is_seen_in_rows_that_are_hashed(root: Path) -> None:
    index = index_of(root)
    before = sample_content(index)
    (root / "a" / "00000.jpg").write_bytes(b"x")
    (root / "a" / "00004.jpg").write_bytes(b"xx")
    said = find_difference(before, sample_content(index), index)
    assert "a/00000.jpg has the size that it had, but other content; of 20 samples" in said
    assert said.endswith("2 differ")


def test_what_is_not_known_on_either_side_is_no_difference(root: Path) -> None:
    index = index_of(root)
    before = sample_content(index)
    (root / "a" / "00000.jpg").unlink()
    now = sample_content(index)
    assert (now["sizes"][0], now["hashes"][0]) == (None, None)
    assert find_difference(before, now, index) == ""
    for odd in ({}, {"sizes": "many"}, {"sizes": [1]}):
        assert find_difference(odd, now, index) == ""
