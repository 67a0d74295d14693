"""JPEGs without an end are noticed before a decoder sees them; files with something after their end
are good. JPEGs whose compressed data look damaged do not reach a GPU's decoder.
"""

import io
import itertools
import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import gpupipe
from gpupipe import config
from gpupipe.engines.dali.files import (
    TAIL_BYTES,
    CutOffError,
    check_ends,
    is_cut_off,
    looks_damaged,
)
from gpupipe.loader import Loader
from helpers.cut_jpegs import END, jpeg, kinds, tails, with_thumbnail
from helpers.dali_loaders import load_on_dali
from helpers.damaged_scans import DAMAGES, damaged, outcome
from helpers.reference import by_id

CUTS = (50, 90, 99)
"""Percent of a file that is left."""


def buffer(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("kind", dict(kinds()))
def test_whole_files_pass_whatever_follows_their_end(kind: str) -> None:
    whole = dict(kinds())[kind]
    assert whole.endswith(END)
    check_ends([buffer(whole + tail) for _, tail in [("", b""), *tails()]])
    assert all(len(tail) > TAIL_BYTES for _, tail in tails())


@pytest.mark.parametrize("kind", dict(kinds()))
def test_a_file_is_cut_off_wherever_it_is_cut(kind: str) -> None:
    whole = dict(kinds())[kind]
    assert all(is_cut_off(memoryview(whole[:length])) for length in range(3, len(whole)))


def test_the_end_of_a_thumbnail_is_not_the_end() -> None:
    """A cut file whose header holds an end marker, far from its last bytes."""
    cut = with_thumbnail(jpeg(size=(96, 96)))[: -TAIL_BYTES * 2]
    assert END in cut
    assert END not in cut[-TAIL_BYTES:]
    with pytest.raises(
        CutOffError,
        match=rf"^a JPEG that was cut off: its end is missing \({len(cut):,} bytes are there\)$",
    ):
        check_ends([buffer(jpeg()), buffer(cut)])


@pytest.mark.parametrize("length", [0, 1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 100_000])
def test_an_end_is_found_at_any_distance_from_the_last_byte(length: int) -> None:
    """The search goes by chunks of 16 KiB, and a marker may lie across two."""
    whole = jpeg(size=(96, 96))
    assert not is_cut_off(memoryview(whole + bytes(length)))
    assert is_cut_off(memoryview(whole[:-1] + bytes(length)))


def test_what_is_no_jpeg_is_not_judged() -> None:
    check_ends(
        [
            buffer(data)
            for data in (
                b"",
                b"\xff",
                b"\xff\xd8",
                b"\x89PNG\r\n\x1a\n" + bytes(99),
                b"text " * 99,
                b"II*\0" + bytes(300),
            )
        ]
    )


def test_a_header_that_cannot_be_followed_is_searched_for_an_end() -> None:
    whole = jpeg()
    broken = whole[:2] + b"\xff\xe0\0\x05" + whole[2:]
    assert not is_cut_off(memoryview(broken))
    assert is_cut_off(memoryview(broken[:-2]))


# --- in the engine

MIDDLE = ["decode", {"resize": {"size": 48}}, {"center_crop": {"size": 10}}]
"""Of which the CPU back end decodes the middle alone: it does not notice that the end is missing.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """64 good files, of which most have something after their end."""
    (tmp_path / "one").mkdir()
    following = itertools.cycle([b"", *(tail for _, tail in tails())])
    for n in range(64):
        path(tmp_path, n).write_bytes(jpeg(size=(96, 96), seed=n) + next(following))
    return tmp_path


def path(folder: Path, n: int) -> Path:
    return folder / "one" / f"{n:02}.jpg"


def cut(folder: Path, n: int, percent: int) -> None:
    whole = jpeg(size=(96, 96), seed=n)
    path(folder, n).write_bytes(whole[: len(whole) * percent // 100])


def loaded(folder: Path, checks_jpegs: bool, **options: Any) -> Loader:
    """The CPU back end with, or without, the check that a GPU has."""
    checked = config.read(
        {"data": {"source": "folder", "root": folder}, "pipeline": MIDDLE},
        device="cpu",
        ids=True,
        shuffle=False,
        **options,
    )
    return load_on_dali(checked, checks_jpegs)


@pytest.mark.parametrize("batch_size", [1, 64])
def test_a_cut_off_file_is_left_out_and_its_neighbours_are_not_touched(
    folder: Path, batch_size: int, tmp_path: Path
) -> None:
    with loaded(folder, False) as loader:
        expected = by_id(loader)
    for n, percent in zip((0, 31, 63), CUTS, strict=True):
        cut(folder, n, percent)
    with loaded(folder, False, batch_size=batch_size, on_error="skip", max_bad=0.5) as loader:
        assert {31, 63} <= by_id(loader).keys(), "without the check the end is not missed"
    file = tmp_path / "bad.jsonl"
    with loaded(
        folder, True, batch_size=batch_size, on_error="skip", max_bad=0.5, quarantine=file
    ) as loader:
        found = by_id(loader)
    assert found.keys() == expected.keys() - {0, 31, 63}
    assert all(torch.equal(found[n], expected[n]) for n in found)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [r["path"] for r in records] == [str(path(folder, n)) for n in (0, 31, 63)]
    assert all(
        re.fullmatch(
            r"a JPEG that was cut off: its end is missing \([\d,]+ bytes are there\)", r["reason"]
        )
        for r in records
    )


def test_the_first_cut_off_file_is_named(folder: Path) -> None:
    cut(folder, 40, 99)
    with (
        loaded(folder, True, batch_size=64) as loader,
        pytest.raises(
            gpupipe.SampleError, match="a JPEG that was cut off: its end is missing"
        ) as caught,
    ):
        list(loader)
    assert caught.value.path == str(path(folder, 40))


@pytest.mark.parametrize("percent", CUTS)
def test_the_cpu_back_end_needs_no_check_where_it_decodes_all(folder: Path, percent: int) -> None:
    cut(folder, 5, percent)
    config = {"data": {"source": "folder", "root": folder}, "pipeline": ["decode"]}
    options = {"engine": "dali", "device": "cpu", "on_error": "skip", "max_bad": 0.5}
    with gpupipe.load(config, batch_size=64, ids=True, **options) as loader:
        assert sorted(by_id(loader)) == [n for n in range(64) if n != 5]


def test_parts_of_large_files_are_checked_too(folder: Path, tmp_path: Path) -> None:
    """Which are memory-mapped, and not read by DALI."""
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for n in range(8):
            data = path(folder, n).read_bytes() if n != 3 else jpeg(size=(96, 96), seed=n)[:-2]
            member = tarfile.TarInfo(f"{n:02}.jpg")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    data = {
        "source": "webdataset",
        "shards": str(tmp_path / "all.tar"),
        "fields": {"image": "jpg"},
        "label": None,
    }
    checked = config.read(
        {"data": data, "pipeline": MIDDLE},
        device="cpu",
        ids=True,
        batch_size=4,
        on_error="skip",
        max_bad=0.5,
    )
    with load_on_dali(checked, checks_jpegs=True) as loader:
        assert sorted(by_id(loader)) == [0, 1, 2, 4, 5, 6, 7]


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
