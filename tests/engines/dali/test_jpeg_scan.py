"""JPEGs whose compressed data look damaged do not reach a GPU's decoder; others do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpupipe.engines.dali.jpeg_scan import looks_damaged
from helpers.cut_jpegs import jpeg, kinds, tails
from helpers.damaged_scans import DAMAGES, damaged, outcome


@pytest.mark.parametrize(("name", "data"), [*kinds()], ids=[name for name, _ in kinds()])
def test_whole_jpegs_do_not_look_damaged(name: str, data: bytes) -> None:
    assert not looks_damaged(data)
    assert not any(looks_damaged(data + tail) for _, tail in tails())


def test_photographs_do_not_look_damaged(photos: Path) -> None:
    assert not [p for p in photos.glob("*/*.jpg") if looks_damaged(p.read_bytes())]


def test_a_piece_of_zeros_is_found() -> None:
    files = [damaged("zeroed", jpeg(size=(256, 256), seed=n), n) for n in range(40)]
    assert all(map(looks_damaged, files))


@pytest.mark.parametrize("damage", ["removed", "swapped"])
def test_what_disturbs_restart_markers_is_found(damage: str) -> None:
    found = Counter(
        looks_damaged(damaged(damage, jpeg(size=(256, 256), seed=n, restart_marker_blocks=1), n))
        for n in range(40)
    )
    assert found[True] >= 30, "a piece may have a multiple of 8 intervals"


@pytest.mark.parametrize("marker", [0x01, 0x55, 0xC0, 0xD8])
def test_a_marker_that_has_no_place_in_a_scan_is_found(marker: int) -> None:
    data = jpeg()
    at = data.rindex(b"\xff\x00") if b"\xff\x00" in data else len(data) - 20
    assert looks_damaged(data[:at] + bytes([0xFF, marker]) + data[at + 2 :])


def test_an_end_that_is_missing_is_found() -> None:
    assert looks_damaged(jpeg()[:-2])


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_end_no_process_and_touch_no_neighbour(tmp_path: Path, damage: str) -> None:
    """On DALI's CPU back end; tests/gpu/test_damaged_scans.py is the same on a GPU."""
    found = outcome(damage, "cpu", 0.0, tmp_path)
    assert found["status"] == 0, found
    assert (found["good"], found["levels_off"]) == (24, 0)
    assert found["delivered"] + found["listed"] == 24
