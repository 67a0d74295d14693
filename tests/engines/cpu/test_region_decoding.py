"""The windows that the extension gpupipe._jpeg decodes: the pixels of a whole decode, to the bit.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jpeg_kinds import (
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
from loaders import loading
from reference import by_id

from gpupipe.engines.cpu import decoding, recorder, region_decoding
from gpupipe.engines.cpu.lowering import kernel_table
from gpupipe.engines.cpu.recorder import Recorder
from gpupipe.formats import CannotDecode
from gpupipe.pipeline.step import Spec
from gpupipe.steps.decode import Decode

extension = pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
load = loading(engine="cpu", threads=2, batch_size=2)
SIZES = [(48, 64), (33, 17), (1, 1), (1, 50), (50, 1), (35, 70), (8, 8), (17, 16)]
UNTOUCHED = 77
MODES = {"rgb": 3, "gray": 1}


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
    rng, refused = np.random.default_rng(3), 0
    for _ in range(200):
        data = as_data(damaged(content, rng))
        if is_one_scan(data) is None and not is_progressive:
            continue
        try:
            image = decoding.open_image(data, Decode(), max_pixels=10**6)
        except CannotDecode:
            continue
        window = draw_window(image.size, rng)
        expected = decode_whole(data) if image.pixels is None else image.pixels
        if expected is None:
            refused += 1
            with pytest.raises(CannotDecode):
                decoding.decode(image, "rgb", False, "uint8", window)
            continue
        pixels = decoding.decode(image, "rgb", False, "uint8", window)
        pixels = pixels.permute(1, 2, 0).numpy() if torch.is_tensor(pixels) else pixels
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


# --- which window


def windows(size: list[float], *calls: tuple[str, Any, Any], cut: int = 0) -> Any:
    """The windows that `decode` gets if these primitives follow it."""
    recorder = Recorder([size], kernel_table())
    recorder.spec = Spec(encoded=False, channels=3, dtype="uint8")
    recorder.decode("rgb", False)
    for n, (name, first, second) in enumerate(calls, 2):
        more = {"crop": (), "resize": (True,), "pad": ("edge",)}[name]
        getattr(recorder, name)(np.array(first) if name != "resize" else first, second, *more)
        if n == cut:
            recorder.end_beginning()
    return recorder.program().calls[0].rows


def test_a_crop_needs_its_window() -> None:
    assert windows([40, 50], ("crop", [3, 4], [10, 20])) == [[3, 4, 10, 20]]
    assert windows([40, 50], ("crop", [-3, 40], [60, 20])) == [[0, 40, 40, 10]]
    assert windows([40, 50], ("crop", [50, 60], [9, 9])) == [[0, 0, 40, 50]], "outside the image"


def test_a_crop_of_a_resized_image_needs_a_window_with_a_margin() -> None:
    resize = ("resize", [100, 200], "bilinear")
    assert windows([400, 400], resize, ("crop", [50, 50], [10, 10])) == [[194, 96, 52, 28]]
    assert windows([50, 100], resize, ("crop", [0, 190], [10, 10])) == [[0, 92, 8, 8]]


def warped_window(matrix: list[list[float]]) -> Any:
    """The window of an image of 40 x 50 whose 40 x 50 pixels are warped."""
    recorder = Recorder([[40, 50]], kernel_table())
    recorder.spec = Spec(encoded=False, channels=3, dtype="uint8")
    recorder.decode("rgb", False)
    given = np.array([matrix], np.float64)
    none = np.zeros((1, 2))
    recorder.warp(given[:, :, :2], given[:, :, 2], none, "bilinear", (0.0, 0.0, 0.0))
    return recorder.program().calls[0].rows


def test_a_warp_that_enlarges_needs_a_window_with_a_margin() -> None:
    """Output pixel 0 lies at 0.5, and shows the source at (matrix * 0.5) - 0.5."""
    assert warped_window([[0.5, 0, 20], [0, 0.5, 10]]) == [[7, 17, 27, 32]]
    assert warped_window([[-0.5, 0, 45], [0, 0.5, 10]]) == [[7, 17, 27, 32]], "flipped"
    assert warped_window([[0, 0.5, 20], [0.5, 0, 10]]) == [[7, 17, 32, 27]], "turned"
    assert warped_window([[2, 0, -20], [0, 2, -10]]) == [[0, 0, 40, 50]]
    assert warped_window([[1, 0, 900], [0, 1, 0]]) == [[0, 0, 40, 50]], "outside the image"
    assert warped_window([[1e300, 0, 0], [0, -1e300, 0]]) == [[0, 0, 40, 50]], "very far"


def test_other_steps_need_the_whole_image() -> None:
    crop = ("crop", [3, 4], [10, 20])
    assert windows([40, 50]) == ()
    assert windows([40, 50], ("resize", [30, 30], "bilinear")) == ()
    assert windows([40, 50], ("pad", [1, 1], [1, 1]), crop) == ()


def test_what_the_decoded_cache_keeps_is_whole() -> None:
    resize, crop = ("resize", [30, 30], "bilinear"), ("crop", [3, 4], [10, 20])
    assert windows([40, 50], resize, crop, cut=2) == ()
    assert windows([40, 50], crop, resize, cut=2) == [[3, 4, 10, 20]]


AFFINE = {"degrees": 180, "translate": [0.3, 0.3], "scale": [0.3, 6.0], "fill": 7}
PIPELINES: list[list[Any]] = [
    [{"random_resized_crop": {"size": 40, "interpolation": "bicubic"}}],
    [{"resize": {"size": 64}}, {"center_crop": {"size": 50}}],
    [
        {"resize": {"size": [30, 50], "interpolation": "bicubic"}},
        {"center_crop": {"size": [9, 11]}},
    ],
    [{"resize": {"size": [500, 400], "interpolation": "nearest"}}, {"random_crop": {"size": 90}}],
    [{"resize": {"size": 300, "antialias": False}}, {"random_crop": {"size": 90}}],
    [{"center_crop": {"size": [300, 100]}}],
    [{"random_crop": {"size": 200, "padding": 30}}],
    *(
        [{"random_affine": {**AFFINE, "interpolation": interpolation}}]
        for interpolation in ("nearest", "bilinear")
    ),
]


@pytest.mark.parametrize("steps", PIPELINES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_the_pixels_of_a_pipeline_do_not_change(
    faces: Path, steps: list[Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def add_windows(calls: Any, size: Any) -> Any:
        added = region_decoding.add_windows(calls, size)
        used.extend(added[0].rows)
        return added

    monkeypatch.setattr(recorder, "add_windows", add_windows)
    decode_step = {"decode": {"mode": mode}}
    with load(faces, [decode_step, *steps]) as loader:
        found = by_id(loader)
    assert used
    monkeypatch.setattr(region_decoding, "_extension", None)
    with load(faces, [decode_step, *steps]) as loader:
        expected = by_id(loader)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[id], expected[id]) for id in expected)
