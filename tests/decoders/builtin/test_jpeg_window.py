"""The windows that the extension gpupipe._jpeg decodes: the pixels of a whole decode, to the bit.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError
from helpers.jpeg_kinds import (
    as_data,
    damaged,
    decode_whole,
    draw_window,
    encode,
    is_one_scan,
    one_scan,
    several_scans,
    with_restarts,
)
from helpers.loaders import loading

extension = pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
load = loading(engine="cpu", threads=2, batch_size=2)
SIZES = [(48, 64), (33, 17), (1, 1), (1, 50), (50, 1), (35, 70), (8, 8), (17, 16)]
UNTOUCHED = 77
MODES = {"rgb": 3, "gray": 1}
OPTIONS = DecodeOptions()


def decode(data: Any, size: Any, window: list[int], channels: int = 3) -> Any:
    """The array for the whole image, with UNTOUCHED where nothing was written; None if refused."""
    pixels = np.full((*size, channels), UNTOUCHED, np.uint8)
    return pixels if extension.decode(data, pixels, *window) else None


def cut(pixels: Any, window: list[int]) -> Any:
    top, left, height, width = window
    return pixels[top : top + height, left : left + width]


def resident_mib() -> float:
    """The resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def assert_windows(content: bytes, windows: Any, mode: str = "rgb") -> None:
    data = as_data(content)
    expected = decode_whole(data, mode)
    assert expected is not None
    for window in windows:
        pixels = decode(data, expected.shape[:2], window, MODES[mode])
        assert pixels is not None, window
        assert np.array_equal(cut(pixels, window), cut(expected, window)), window


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_windows_of_all_samplings(size: tuple[int, int], mode: str) -> None:
    rng = np.random.default_rng(0)
    windows = [[0, 0, *size], *(draw_window(size, rng) for _ in range(60))]
    for _, content in one_scan(size):
        assert_windows(content, windows, mode)


@pytest.mark.parametrize("sampling", ["420", "422", "440"])
def test_every_row_and_column_at_which_a_window_can_begin_and_end(sampling: str) -> None:
    content = encode((50, 52), sampling)
    assert_windows(content, ([top, 3, 1, 9] for top in range(50)))
    assert_windows(content, ([0, 3, height, 9] for height in range(1, 51)))
    assert_windows(content, ([7, left, 5, 1] for left in range(52)))
    assert_windows(content, ([7, 0, 5, width] for width in range(1, 53)))


def test_windows_of_photographs(photos: Path) -> None:
    rng = np.random.default_rng(1)
    for file in sorted(photos.glob("*/*.jpg")):
        content = file.read_bytes()
        size = is_one_scan(as_data(content))
        if size is not None:
            assert_windows(content, [draw_window(size, rng) for _ in range(3)])


def test_pixels_far_from_the_window_are_not_written() -> None:
    pixels = decode(as_data(encode((96, 128), "420")), (96, 128), [40, 50, 10, 20])
    assert (pixels[:40] == UNTOUCHED).all()
    assert (pixels[50:] == UNTOUCHED).all()
    assert (pixels[:, :32] == UNTOUCHED).all()
    assert (pixels[:, 80:] == UNTOUCHED).all()


def test_rows_may_have_gaps() -> None:
    data, memory = as_data(encode((20, 30), "420")), np.full((20, 31, 3), UNTOUCHED, np.uint8)
    assert extension.decode(data, memory[:, :30], 0, 0, 20, 30)
    assert np.array_equal(memory[:, :30], decode_whole(data))
    assert (memory[:, 30] == UNTOUCHED).all()


def test_files_of_several_scans_and_of_four_channels_are_left_to_other_decoders() -> None:
    for name, content in several_scans((48, 64)):
        assert decode(as_data(content), (48, 64), [0, 0, 10, 10]) is None, name


def test_a_file_of_another_size_is_left_to_other_decoders() -> None:
    assert decode(as_data(encode((48, 64), "420")), (48, 65), [0, 0, 48, 64]) is None
    assert decode(as_data(encode((48, 64), "420")), (47, 64), [0, 0, 10, 10]) is None


def test_a_file_that_is_cut_off_anywhere_is_refused() -> None:
    for content in (encode((48, 64), "420"), with_restarts((48, 64)), encode((48, 64), "444")):
        for end in range(len(content) - 1):
            assert decode(as_data(content[:end]), (48, 64), [0, 0, 4, 4]) is None, end


def test_damage_above_the_window_is_left_to_other_decoders() -> None:
    content = with_restarts((96, 64))
    for n in range(7):
        data = as_data(
            content.replace(bytes([0xFF, 0xD0 + n]), bytes([0xFF, 0xD0 + (n + 3) % 8]), 1)
        )
        assert decode_whole(data) is not None
        assert decode(data, (96, 64), [90, 0, 6, 64]) is None


def test_bytes_after_the_end_marker_do_not_count() -> None:
    content = encode((48, 64), "420")
    for tail in (bytes(100), b"\xff\xd8\xff\xda", content[:-50]):
        assert_windows(content + tail, [[3, 3, 4, 4], [40, 3, 8, 60]])


@pytest.mark.parametrize("marker", [0xC4, 0xDA, 0xDB, 0xD8, 0x01, 0xE0])
def test_a_marker_below_the_window_is_left_to_other_decoders(marker: int) -> None:
    content = encode((96, 64), "420")
    at = len(content) - 9
    data = as_data(content[:at] + bytes([0xFF, marker, 0, 4, 0, 0]) + content[at:])
    assert decode(data, (96, 64), [0, 0, 10, 10]) is None


def test_a_damaged_file_that_passes_has_the_pixels_of_a_whole_decode() -> None:
    """Damage below the window alone: the decoders of whole images pass such files too."""
    rng, passed = np.random.default_rng(2), 0
    files = [content for _, content in one_scan((70, 90))]
    for n in range(3000):
        content = damaged(files[n % len(files)], rng)
        data = as_data(content)
        size = is_one_scan(data)
        if size is None:
            continue
        window = draw_window(size, rng)
        pixels = decode(data, size, window)
        if pixels is None:
            continue
        expected = decode_whole(data)
        assert expected is not None, content.hex()
        assert np.array_equal(cut(pixels, window), cut(expected, window)), (window, content.hex())
        passed += content not in files
    assert passed > 100


@pytest.mark.parametrize("is_progressive", [False, True])
def test_the_engine_decodes_a_damaged_file_whole_or_names_it(is_progressive: bool) -> None:
    content = dict(several_scans((70, 90)))["progressive"]
    content = content if is_progressive else encode((70, 90), "420")
    rng, refused, decoders = np.random.default_rng(3), 0, DecoderChain(max_pixels=10**6)
    for _ in range(200):
        data = as_data(damaged(content, rng))
        if is_one_scan(data) is None and not is_progressive:
            continue
        try:
            image = decoders.open(data, OPTIONS)
        except CannotDecodeError:
            continue
        window = draw_window(image.size, rng)
        expected = decode_whole(data) if image.pixels is None else image.pixels
        if expected is None:
            refused += 1
            with pytest.raises(CannotDecodeError):
                image.decode(OPTIONS, window)
            continue
        pixels = image.decode(OPTIONS, window)
        assert np.array_equal(cut(pixels, window), cut(expected, window))
    assert refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": np.zeros((48, 64, 4), np.uint8)}, "is not \\(H, W, 1\\)"),
        ({"target": np.zeros((48, 64), np.uint8)}, "is not \\(H, W, 1\\)"),
        ({"target": np.zeros((48, 64, 3), np.float32)}, "is not \\(H, W, 1\\)"),
        ({"target": np.zeros((48, 128, 3), np.uint8)[:, ::2]}, "not packed"),
        ({"target": np.zeros((48, 64, 3), np.uint8)[::-1]}, "not packed"),
        ({"target": np.zeros((0, 64, 3), np.uint8)}, "empty"),
        ({"top": -1}, "window"),
        ({"left": -1}, "window"),
        ({"height": 0}, "window"),
        ({"width": 65}, "window"),
        ({"top": 40, "height": 9}, "window"),
        ({"left": 2**31 - 1, "width": 2**31 - 1}, "window"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "data": as_data(encode((48, 64), "420")),
        "target": np.zeros((48, 64, 3), np.uint8),
        **{"top": 0, "left": 0, "height": 48, "width": 64},
    }
    assert extension.decode(*arguments.values())
    with pytest.raises(ValueError, match=message):
        extension.decode(*(arguments | change).values())


def test_the_memory_of_refused_files_is_freed() -> None:
    content = encode((600, 800), "420")
    data, pixels = as_data(content[: len(content) // 20]), np.empty((600, 800, 3), np.uint8)

    def decode_often(times: int) -> float:
        assert not any(extension.decode(data, pixels, 0, 0, 600, 800) for _ in range(times))
        return resident_mib()

    before = decode_often(200)
    assert decode_often(4000) - before < 30, "a decoder has more than 50 KiB"
