"""The resize of gpupipe._kernels: torch's pixels in every variant, windows, flips and floats.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import threading
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from helpers.kernel_arguments import NUMBERS, bits, picture, run, tables, target
from helpers.kernel_variants import extension
from helpers.kernel_variants import variant as variant  # noqa: PLC0414  # a fixture

MODES = [(mode, aa) for mode in ("bilinear", "bicubic") for aa in (True, False)]
SOURCES = [(1, 1), (1, 9), (2, 2), (5, 3), (17, 33), (64, 40), (50, 1), (150, 201), (31, 900)]
OUTPUTS = [(1, 1), (2, 3), (5, 4), (17, 16), (64, 65), (40, 200), (31, 90)]


def resize(
    image: NDArray[np.uint8],
    size: tuple[int, int],
    mode: tuple[str, bool] = MODES[0],
    place: torch.Tensor | None = None,
    corner: tuple[int, int] = (0, 0),
    flips: tuple[int, int] = (0, 0),
    how: Any = (None, None),
) -> torch.Tensor:
    """Resize to `place`, which is of the whole size in uint8 if None."""
    made = target(*size, "uint8", True) if place is None else place
    window = np.array([[*corner, *made.shape[1:]]])
    options = np.array([flips], np.uint8), mode[0] == "bicubic", mode[1], (bits(made)[None], *how)
    run(extension.resize_stage(np.array([size]), window, *options), image)
    return made


def reference(
    image: NDArray[np.uint8], size: tuple[int, int], mode: tuple[str, bool] = MODES[0]
) -> torch.Tensor:
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    made = torch.nn.functional.interpolate(pixels, size, mode=mode[0], antialias=mode[1])
    return made[0]


def test_pixels_are_those_of_torch(variant: str) -> None:
    """All sizes with all, up and down by up to 900 times."""
    for n, source in enumerate(SOURCES):
        image = picture(*source, gap=7 * (n % 2), seed=n)
        for output in OUTPUTS:
            for mode in MODES:
                expected = reference(image, output, mode)
                assert torch.equal(resize(image, output, mode), expected), (source, output, mode)


def test_sizes_at_random_have_torchs_pixels(variant: str) -> None:
    rng = np.random.default_rng(0)
    for n in range(150):
        height, width, *output = map(int, rng.integers(1, 260, 4))
        image, mode = picture(height, width, seed=n), MODES[n % 4]
        expected = reference(image, tuple(output), mode)
        assert torch.equal(resize(image, tuple(output), mode), expected), (height, width, output)


def test_levels_at_the_ends_have_torchs_pixels(variant: str) -> None:
    """Sums of bicubic weights go below 0 and above 255."""
    image = (picture(40, 53) > 127).astype(np.uint8) * np.uint8(255)
    for size in [(97, 120), (40, 90), (19, 21)]:
        assert torch.equal(resize(image, size, MODES[2]), reference(image, size, MODES[2]))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("scale", [(1, 2), (2, 1), (1, 4), (3, 2)], ids=str)
def test_exact_scales_have_torchs_pixels(variant: str, mode: Any, scale: tuple[int, int]) -> None:
    """The weights of many of their outputs are fractions that a byte holds."""
    by, of = scale
    for n, (height, width) in enumerate([(4, 4), (8, 12), (36, 44), (24, 140), (12, 400)]):
        image, size = picture(height, width, seed=n), (height * by // of, width * by // of)
        place = target(size[0] - size[0] // 3, size[1] - size[1] // 4, "uint8", True)
        expected = reference(image, size, mode)
        assert torch.equal(resize(image, size, mode), expected), size
        made = resize(image, size, mode, place, (size[0] // 3, size[1] // 4), (1, 1))
        part = expected[:, size[0] // 3 :, size[1] // 4 :]
        assert torch.equal(made, part.flip(-1, -2)), size


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_own_size_changes_nothing(variant: str, mode: Any) -> None:
    image = picture(21, 34)
    assert np.array_equal(resize(image, (21, 34), mode).permute(1, 2, 0).numpy(), image)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_window_is_cut_from_the_result(variant: str, mode: Any) -> None:
    image, size = picture(71, 95, gap=3), (49, 66)
    whole = reference(image, size, mode)
    windows = [(0, 0, 49, 66), (7, 10, 32, 33), (48, 65, 1, 1), (3, 0, 5, 66)]
    every_flips = [(0, 0), (1, 0), (0, 1), (1, 1)]
    for window, flips, is_packed in product(windows, every_flips, (True, False)):
        top, left, height, width = window
        place = target(height, width, "uint8", is_packed)
        made = resize(image, size, mode, place, (top, left), flips)
        expected = whole[:, top : top + height, left : left + width]
        axes = [axis for axis, flag in zip((-1, -2), flips, strict=True) if flag]
        assert torch.equal(made, expected.flip(axes)), (window, flips, is_packed)


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_are_those_of_the_window_at_hand(variant: str, axis: int) -> None:
    """A thread keeps the weights of the last window, which another begins or ends with."""
    image, size = picture(40, 40), (23, 23)
    whole = reference(image, size).movedim(axis + 1, 0)
    for begin, end in [(0, 9), (8, 17), (8, 23), (0, 15), (0, 9)]:
        corner, shape = [0, 0], [23, 23]
        corner[axis], shape[axis] = begin, end - begin
        place = target(shape[0], shape[1], "uint8", True)
        made = resize(image, size, place=place, corner=(corner[0], corner[1]))
        assert torch.equal(made.movedim(axis + 1, 0), whole[begin:end]), (begin, end)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["planes", "pixels"])
def test_numbers_are_those_of_two_passes(variant: str, dtype: str, is_packed: bool) -> None:
    image, size = picture(60, 81), (37, 53)
    made = resize(image, size, place=target(*size, dtype, is_packed), how=tables(dtype))
    mean, std = (torch.tensor(x)[:, None, None] for x in NUMBERS[1][1])
    levels = reference(image, size).float().mul(1 / 255)
    assert torch.equal(made, ((levels - mean) / std).to(getattr(torch, dtype)))


def test_threads_resize_at_once(variant: str) -> None:
    """Each has weights of its own."""
    images = [picture(40 + n, 60 + 3 * n, seed=n) for n in range(4)]
    sizes = [(20 + 5 * n, 31 + 7 * n) for n in range(4)]
    expected = [reference(image, size) for image, size in zip(images, sizes, strict=True)]
    wrong: list[int] = []

    def run(first: int) -> None:
        for k in range(200):
            n = (first + k) % 4
            if not torch.equal(resize(images[n], sizes[n]), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": (0, 8)}, "a size is empty"),
        ({"size": (8, 1 << 21)}, "a size is empty or too large"),
        ({"size": (8.0, 8.0)}, "the sizes is not \\(rows, 2\\) of int64"),
        ({"flips": np.zeros((2, 2), np.uint8)}, "differ in the number of rows"),
        ({"size": (8, 7)}, "not inside the resized image"),
        ({"corner": (1, 0)}, "not inside the resized image"),
        ({"corner": (0, -1)}, "not inside the resized image"),
        ({"corner": (0, 2**31 - 1)}, "not inside the resized image"),
        ({"target": np.zeros((5, 8, 8), np.float32)}, "1 to 4 channels"),
        ({"table": None, "target": np.zeros((3, 8, 8), np.float64)}, "needs a table"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {
        "size": (8, 8),
        "corner": (0, 0),
        "flips": np.zeros((1, 2), np.uint8),
        "target": np.zeros((3, 8, 8), np.float32),
        "table": np.zeros((3, 256), np.float32),
    }

    def create(size: Any, corner: Any, flips: Any, target: Any, table: Any) -> Any:
        window = np.array([[*corner, *target.shape[1:]]])
        output = target[None], table, None
        return extension.resize_stage(np.array([size]), window, flips, False, True, output)

    run(create(**arguments), np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=message):
        create(**(arguments | change))
