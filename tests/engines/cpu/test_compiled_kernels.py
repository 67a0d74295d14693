"""The kernels of gpupipe._kernels: every variant to the bit, torchvision's pixels, and refusals.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpupipe.dataset.spec import Spec
from gpupipe.engines.cpu import kernels
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.pixels import as_array
from gpupipe.engines.cpu.program import Rules
from gpupipe.engines.cpu.tracer import Tracer
from helpers.fresh_python import Program, run_each
from helpers.kernel_arguments import NUMBERS, bits, picture, run, tables, target
from helpers.kernel_variants import extension
from helpers.kernel_variants import variant as variant  # noqa: PLC0414  # a fixture

SIZES = [(1, 1), (1, 9), (2, 2), (3, 2), (7, 40), (33, 17), (64, 65)]
Floats = NDArray[np.float64]


def matrices() -> list[Floats]:
    """Maps in indices: turns, sizes, far shifts, numbers without end, and the identity."""
    rng = np.random.default_rng(1)
    base = np.array([[0.7, 0, 3], [0, 0.7, 2]])
    made = [base + rng.normal(0, 0.8, (2, 3)) for _ in range(12)]
    made += [np.array(m, float) for m in ([[1, 0, 0], [0, 1, 0]], [[0, 1, 0], [-1, 0, 16]])]
    made += [np.array([[a, 0, 0], [0, a, 0]]) for a in (1e-3, 0.25, 2.0, 900.0, 1e12)]
    made += [np.array([[1, 0, x], [0, 1, -x]]) for x in (-0.5, 1e6, -1e300, np.inf, np.nan)]
    return made


def warp(image: Any, matrix: Floats, fill: Any, place: torch.Tensor, how: Any) -> torch.Tensor:
    values = None if fill is None else np.array(fill, float)
    sizes = np.array([place.shape[1:]])
    run(extension.warp_stage(matrix[None], sizes, False, values, (bits(place)[None], *how)), image)
    return place


def reference(image: NDArray[np.uint8], matrix: Floats, fill: Any, size: Any) -> torch.Tensor:
    """What torchvision does: grid_sample of the image and of a mask, which mixes the fill in."""
    height, width = image.shape[:2]
    columns, rows = np.meshgrid(np.arange(size[1]), np.arange(size[0]))
    points = np.stack([columns, rows, np.ones_like(rows)], -1) @ matrix.T
    grid = (2 * points + 1) / [width, height] - 1
    own = torch.tensor(np.dstack([image, np.ones((height, width))])).permute(2, 0, 1)[None]
    made = torch.nn.functional.grid_sample(own, torch.tensor(grid)[None], align_corners=False)[0]
    if fill is None:
        return made[:3].round()
    values = torch.tensor(fill, dtype=torch.float64)[:, None, None]
    return ((made[:3] - values) * made[3] + values).round()


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["planes", "pixels"])
def test_all_variants_warp_to_the_same_bits(variant: str, dtype: str, is_packed: bool) -> None:
    how = tables(dtype)
    for size, (n, matrix) in itertools.product(SIZES, enumerate(matrices())):
        image = picture(*size, gap=5 * (n % 2), seed=n)
        extension.select("scalar")
        expected = warp(image, matrix, [9, 200, 31.4], target(19, 29, dtype, is_packed), how)
        extension.select(variant)
        made = warp(image, matrix, [9, 200, 31.4], target(19, 29, dtype, is_packed), how)
        assert np.array_equal(bits(made), bits(expected)), (size, matrix)


@pytest.mark.parametrize("width", [512, 1100, 4200])
@pytest.mark.parametrize("is_packed", [True, False], ids=["planes", "pixels"])
def test_all_variants_warp_wide_images_to_the_same_bits(
    variant: str, width: int, is_packed: bool
) -> None:
    """Wider than what a variant locates or converts at once, with coordinates beyond 16 bits."""
    how = tables("float32")
    image = picture(9, 20_000, seed=width)
    for matrix in ([[0.9, 0.1, 3], [0.01, 1, -2]], [[30, 0, 0], [0, 0.5, 1]], [[-1, 0, 900]] * 2):
        given = np.array(matrix, float)
        extension.select("scalar")
        expected = warp(image, given, [9, 200, 31.4], target(11, width, "float32", is_packed), how)
        extension.select(variant)
        made = warp(image, given, [9, 200, 31.4], target(11, width, "float32", is_packed), how)
        assert torch.equal(made, expected), matrix


@pytest.mark.parametrize("fill", [[0, 0, 0], [10, 20, 250], None], ids=str)
def test_a_warp_is_within_one_level_of_torchvision(variant: str, fill: Any) -> None:
    differing = []
    for n, matrix in enumerate(m for m in matrices() if np.abs(m).max() < 1e3):
        image = picture(41, 52, seed=n)
        made = warp(image, matrix, fill, target(37, 61, "uint8", True), (None, None))
        apart = (made.double() - reference(image, matrix, fill, (37, 61))).abs()
        assert apart.max() <= 1, matrix
        differing.append(float((apart > 0).double().mean()))
    assert np.mean(differing) < 0.02, "most pixels are torchvision's"


def test_the_identity_changes_nothing(variant: str) -> None:
    image = picture(20, 21)
    made = warp(image, np.eye(2, 3), [5, 5, 5], target(20, 21, "uint8", False), (None, None))
    assert np.array_equal(made.permute(1, 2, 0).numpy(), image)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32", "float64"])
def test_a_conversion_has_torchvisions_bits(variant: str, dtype: str) -> None:
    how = tables(dtype)
    sizes = [*SIZES, (5, 16), (4, 250)]
    for size, flips in itertools.product(sizes, [(0, 0), (1, 0), (0, 1), (1, 1)]):
        image = picture(*size, gap=7)
        turned = image[:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]].copy()
        levels = torch.from_numpy(turned).permute(2, 0, 1)
        if dtype != "uint8":
            mean, std = (torch.tensor(x)[:, None, None] for x in NUMBERS[1][1])
            levels = ((levels.float().mul(1 / 255) - mean) / std).to(getattr(torch, dtype))
        for is_packed in (True, False):
            place = target(*size, dtype, is_packed)
            flags = np.array([flips], np.uint8)
            run(extension.deliver_stage(flags, (bits(place)[None], *how)), image)
            assert torch.equal(place, levels), (size, flips, is_packed)


@pytest.mark.parametrize(
    "numbers",
    [(), ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)), ((0.4,) * 3, (1.0,) * 3), ((0.0,) * 3, (0.2,) * 3)],
    ids=["to_dtype", "normalize", "mean alone", "std alone"],
)
@pytest.mark.parametrize("is_packed", [True, False], ids=["planes", "pixels"])
def test_a_place_may_begin_anywhere_in_a_cache_line(
    variant: str, numbers: Any, is_packed: bool
) -> None:
    how = tables("float32", NUMBERS[:1] + ((("normalize", numbers),) if numbers else ()))
    for width, start in itertools.product([9, 10, 11, 24, 37, 48, 63, 131], range(18)):
        image, count = picture(3, width, seed=width), 9 * width
        block = torch.full((count + 36,), -7.0)
        part = block[start : start + count]
        place = part.view(3, 3, width) if is_packed else part.view(3, width, 3).permute(2, 0, 1)
        run(extension.deliver_stage(None, (place.numpy()[None], *how)), image)
        levels = torch.from_numpy(image.copy()).permute(2, 0, 1).long()
        looked_up = torch.from_numpy(how[0])[torch.arange(3)[:, None, None], levels]
        assert torch.equal(place, looked_up), (width, start)
        others = torch.cat([block[:start], block[start + count :]])
        assert bool((others == -7).all()), "what lies beside the place is not written"


def test_numbers_that_are_not_exact_are_looked_up() -> None:
    in_halves = (("to_dtype", ("float16", True)), ("normalize", ((0.4,) * 3, (0.2,) * 3)))
    assert tables("float32", in_halves)[1] is None
    assert tables("float32")[1] is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": np.zeros((5, 4, 4), np.float32)}, "1 to 4 channels"),
        ({"target": np.zeros((3, 4, 8), np.float32)[:, :, ::2]}, "rows of the target"),
        ({"target": np.zeros((3, 0, 4), np.float32)}, "the target is empty"),
        ({"target": np.zeros((4, 4), np.float32)}, "3 axes instead of 4"),
        ({"target": np.zeros((3, 4, 4), np.complex128)}, "1, 2, 4 or 8 bytes"),
        (
            {"target": np.zeros(193, np.uint8)[1:].view(np.float32).reshape(3, 4, 4)},
            "target are not aligned",
        ),
        ({"table": np.zeros((3, 255), np.float32)}, "the table is not"),
        ({"table": np.zeros((3, 256), np.float64)}, "the table is not"),
        ({"table": None, "target": np.zeros((3, 4, 4), np.float64)}, "needs a table"),
        ({"factors": np.zeros((3, 3))}, "the factors are not"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {
        "target": np.zeros((3, 4, 4), np.float32),
        "table": np.zeros((3, 256), np.float32),
        "factors": None,
    }

    def create(target: Any, *how: Any) -> Any:
        return extension.deliver_stage(None, (target[None], *how))

    run(create(*arguments.values()), np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=message):
        create(*(arguments | change).values())


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 1), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 3), np.int8),
        np.zeros((4, 8, 3), np.uint8)[:, ::2],
        np.zeros((4, 4, 3), np.uint8)[::-1],
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((5, 4, 3), np.uint8),
        np.zeros((4, 4), np.uint8),
        np.zeros(48, np.uint8),
        b"",
    ],
    ids=lambda image: f"{np.shape(image)} {getattr(image, 'dtype', '')}",
)
def test_images_of_another_form_are_left_to_python(image: Any) -> None:
    """They are not done, and nothing is written."""
    place = np.ones((1, 3, 4, 4), np.uint8)
    stage = extension.deliver_stage(None, (place, None, None))
    assert extension.run_program(stage, [0], [image]) == [0]
    assert place.all()


@pytest.mark.parametrize(
    "arguments",
    [(), (None,), (None, [None, None, None]), (None, (None,)), (0, (None,) * 3), (None, None, 0)],
    ids=str,
)
def test_arguments_of_another_number_or_type_are_refused(arguments: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        extension.deliver_stage(*arguments)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(
    "add",
    [
        lambda tracer: tracer.transpose(),
        lambda tracer: tracer.pad([[1, 0]], [[0, 2]], "edge"),
        lambda tracer: tracer.erase(np.array([[1, 2]]), np.array([[3, 2]]), (7.0,)),
    ],
    ids=["transpose", "pad", "erase"],
)
def test_images_of_more_channels_run_without_stages(
    add: Callable[[Tracer], None], dtype: Any
) -> None:
    image = np.arange(8 * 9 * 5).reshape(8, 9, 5).astype(dtype)
    results = []
    for rules in (find_rules(), Rules(kernels.RULES)):
        tracer = Tracer([(8, 9)], rules, Spec.of_array(dtype, (5, 8, 9), "CHW"))
        add(tracer)
        results.append(as_array(tracer.program().run(image, 0)))
    assert np.array_equal(results[0], results[1])


def test_a_target_that_is_read_only_is_refused() -> None:
    place = np.zeros((3, 4, 4), np.uint8)
    place.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        extension.deliver_stage(None, (place[None], None, None))


def test_a_variant_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no variant 'mmx'"):
        extension.select("mmx")


SCRIPT = """
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec
tracer = Tracer([(4, 4)], find_rules(), Spec.of_image(3))
tracer.warp([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], [0.0, 0.0], "bilinear", None)
print(tracer.program().list_operators()[0][0])
"""


OUTPUTS = {"no": "GPUPIPE_KERNELS=no is neither", "off": "cv2.warpAffine", "on": "kernels.warp"}


def test_a_variable_of_the_environment_switches_them() -> None:
    pytest.importorskip("cv2")
    programs = [Program(SCRIPT, {"GPUPIPE_KERNELS": setting}) for setting in OUTPUTS]
    ended = run_each(["cv2"], programs)
    for done, (setting, output) in zip(ended, OUTPUTS.items(), strict=True):
        assert output in done.stdout + done.stderr, setting
