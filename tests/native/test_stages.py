"""Stages of the C++ extensions: programs, branches, windows, and what is no stage."""

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from helpers.color_stages import change, create_stage, shades
from helpers.jpeg_kinds import as_data, encode, several_scans
from helpers.kernel_arguments import picture, target

jpeg = pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
kernels = pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
WHOLE = np.array([[0, 0, 40, 50]])


def decoded(content: Any) -> Any:
    pixels = np.empty((40, 50, 3), np.uint8)
    assert jpeg.decode(content, pixels, 0, 0, 40, 50)
    return pixels


def deliver(batch: Any) -> Any:
    """A stage that writes images to a batch (B, 3, H, W)."""
    return kernels.deliver_stage(None, (batch, None, None))


def test_a_program_runs_its_stages_in_order() -> None:
    content, batch = as_data(encode((40, 50), "420")), np.zeros((1, 3, 20, 30), np.uint8)
    window = np.array([[5, 7, 20, 30]])
    stages = [jpeg.decode_stage(WHOLE[:, 2:], window, 3), kernels.crop_stage(window)]
    program = kernels.program((*stages, deliver(batch)))
    assert not batch.any(), "nothing is done before it runs"
    assert kernels.run_program(program, [0], [content]) == []
    assert np.array_equal(batch[0].transpose(1, 2, 0), decoded(content)[5:25, 7:37])


def test_samples_run_in_order_and_each_alone() -> None:
    """They share the memory of their pixels, and one in the middle is damaged."""
    contents = [as_data(encode((40, 50), "420", n)) for n in range(4)]
    batch = np.zeros((4, 3, 40, 50), np.uint8)
    decode = jpeg.decode_stage(np.array([[40, 50]] * 4), None, 3)
    program = kernels.program((decode, deliver(batch)))
    data = [content[:300] if n == 2 else content for n, content in enumerate(contents)]
    assert kernels.run_program(program, (3, 2, 1, 0), data[::-1]) == [1]
    for n in (0, 1, 3):
        assert np.array_equal(batch[n].transpose(1, 2, 0), decoded(contents[n]))
    assert not batch[2].any(), "nothing of a damaged file is delivered"
    assert kernels.run_program(program, [], []) == []


def test_what_cannot_be_decoded_here_is_left_to_python() -> None:
    files = [content for _, content in several_scans((40, 50))]
    files += [encode((41, 50), "420"), b"", b"no image"]
    contents = [*map(as_data, files), picture(40, 50)]
    decode = jpeg.decode_stage(np.array([[40, 50]] * len(contents)), None, 3)
    rows = list(range(len(contents)))
    assert (
        kernels.run_program(decode, rows, [as_data(c) for c in contents[:-1]] + contents[-1:])
        == rows
    )


@pytest.mark.parametrize("window", [[-1, 0, 4, 4], [37, 0, 4, 4], [0, 0, 0, 4], [0, 2**62, 4, 4]])
def test_windows_outside_of_the_image_are_left_to_python(window: Any) -> None:
    crop = kernels.crop_stage(np.array([window]))
    assert kernels.run_stage(crop, 0, picture(40, 50)) is None
    decode = jpeg.decode_stage(WHOLE[:, 2:], np.array([window]), 3)
    assert kernels.run_stage(decode, 0, as_data(encode((40, 50), "420"))) is None


def test_the_result_of_a_stage_is_a_copy_of_the_image() -> None:
    image = picture(40, 50, gap=5)
    result = kernels.run_stage(kernels.crop_stage(np.array([[3, 4, 9, 11]])), 0, image)
    assert np.array_equal(np.asarray(result), image[3:12, 4:15])
    whole = np.asarray(kernels.run_stage(kernels.program(()), 7, np.ones((2, 3, 4), np.float32)))
    assert (whole.shape, whole.dtype, whole.all()) == ((2, 3, 4), np.float32, True)


def test_each_sample_takes_its_branch() -> None:
    left, right = (kernels.crop_stage(np.array([[0, x, 4, 5]] * 3)) for x in (0, 5))
    switch = kernels.switch_stage(np.array([1, 0, 2]), (left, right, None))
    image = picture(4, 10)
    assert np.array_equal(np.asarray(kernels.run_stage(switch, 0, image)), image[:, 5:])
    assert np.array_equal(np.asarray(kernels.run_stage(switch, 1, image)), image[:, :5])
    assert kernels.run_stage(switch, 2, image) is None
    for index in ([3, 0, 0], [0, -1, 0]):
        with pytest.raises(ValueError, match="a branch that is not there"):
            kernels.switch_stage(np.array(index), (left, right, None))


def test_each_view_gets_the_same_image() -> None:
    image, batches = picture(4, 10), [np.zeros((1, 3, 4, 5), np.uint8) for _ in range(2)]
    views = []
    for n, batch in enumerate(batches):
        crop = kernels.crop_stage(np.array([[0, 5 * n, 4, 5]]))
        views.append((kernels.program((crop, deliver(batch))), 1))
    assert kernels.run_program(kernels.fork_stage(tuple(views)), [0], [image]) == []
    for n, batch in enumerate(batches):
        assert np.array_equal(batch[0].transpose(1, 2, 0), image[:, 5 * n : 5 * n + 5])


def test_a_branch_of_several_views_has_a_row_for_each_view_of_each_sample() -> None:
    images = [picture(4, 10), picture(4, 11)]
    batches = [np.zeros((2, 3, 4, 5), np.uint8) for _ in range(3)]
    windows = np.array([[0, left, 4, 5] for left in (0, 1, 2, 3, 4, 5)])
    output = batches, None, None
    branch = kernels.program((kernels.crop_stage(windows), kernels.deliver_stage(None, output)))
    fork = kernels.fork_stage(((branch, 3),))
    assert kernels.run_program(fork, [1, 0], images[::-1]) == []
    for view, batch in enumerate(batches):
        for row, image in enumerate(images):
            left = windows[2 * view + row, 1]
            assert np.array_equal(batch[row].transpose(1, 2, 0), image[:, left : left + 5])
    with pytest.raises(IndexError, match="no row 2"):
        kernels.run_program(fork, [2], images[:1])
    for views in (4, 0, -3):
        with pytest.raises(ValueError, match="as many rows for each of its copies"):
            kernels.fork_stage(((branch, views),))
    with pytest.raises(ValueError, match="no tuple"):
        kernels.fork_stage((branch,))
    with pytest.raises(ValueError, match="empty"):
        kernels.deliver_stage(None, ([], None, None))
    with pytest.raises(ValueError, match="no samples"):
        kernels.deliver_stage(None, ([np.zeros((0, 3, 4, 5), np.uint8)], None, None))


def test_a_program_keeps_what_it_needs() -> None:
    content, batch = as_data(encode((40, 50), "420")), np.zeros((1, 3, 40, 50), np.uint8)
    decode = jpeg.decode_stage(WHOLE[:, 2:].copy(), None, 3)
    program = kernels.program((decode, deliver(batch)))
    del decode
    gc.collect()
    assert kernels.run_program(program, [0], [content]) == []
    assert np.array_equal(batch[0].transpose(1, 2, 0), decoded(content))


@pytest.mark.parametrize("stage", [object(), None, 3])
def test_what_is_no_stage_does_not_run(stage: Any) -> None:
    for call in (
        lambda: kernels.program((stage,)),
        lambda: kernels.run_program(stage, [], []),
        lambda: kernels.run_stage(stage, 0, picture(2, 2)),
        lambda: kernels.fork_stage(((stage, 1),)),
    ):
        with pytest.raises((ValueError, TypeError), match="PyCapsule"):
            call()


def test_rows_and_contents_that_do_not_fit_are_refused() -> None:
    crop = kernels.crop_stage(np.array([[0, 0, 1, 1]] * 2))
    image = picture(2, 2)
    for row in (-1, 2, 2**40):
        with pytest.raises(IndexError, match=f"no row {row}"):
            kernels.run_program(crop, [row], [image])
        with pytest.raises(IndexError, match=f"no row {row}"):
            kernels.run_stage(crop, row, image)
    with pytest.raises(ValueError, match="one content for each row"):
        kernels.run_program(crop, [0, 1], [image])
    with pytest.raises(TypeError, match="bytes-like"):
        kernels.run_program(crop, [0], [object()])
    with pytest.raises(ValueError, match="differ in the number of rows"):
        kernels.program((crop, kernels.crop_stage(WHOLE)))


NESTED = """
from gpupipe import _kernels
stage = _kernels.program(())
for nest in (_kernels.program, lambda inner: _kernels.fork_stage(((inner[0], 1),))):
    for n in range(300_000):
        try:
            stage = nest((stage,))
        except ValueError as e:
            assert "too deeply" in str(e), e
            break
    else:
        raise AssertionError("they nest without end")
assert _kernels.run_program(stage, [], []) == []
print(n)
"""


def test_stages_do_not_contain_each_other_without_end() -> None:
    """A chain of 300,000 would overflow the stack when it runs, and when it is freed."""
    command = [sys.executable, "-c", NESTED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def _list_stages() -> list[Any]:
    """Return a stage of each kind that changes an image, for one of 33x70."""
    size, flips = np.array([[20, 31]]), np.array([[1, 0]], np.uint8)
    window, turned = np.array([[3, 5, 20, 31]]), np.array([[[0.9, 0.1, -1.0], [-0.1, 0.9, 0.5]]])
    colors = [("invert",), ("adjust_hue", 0.1), ("permute_channels", 2, 0, 1), ("autocontrast",)]
    colors += [("adjust_contrast", 0.3), ("gaussian_blur", 3, 3, 1.0, 1.0), ("to_gray",)]
    return [
        kernels.crop_stage(window),
        kernels.deliver_stage(flips, None),
        kernels.window_stage(window - 9, b"abc", flips, None),
        kernels.pad_stage(np.array([[1, 2, 3, 4]]), "reflect", None, None),
        kernels.resize_stage(size, None, flips, False, True, None),
        kernels.nearest_stage(size, None, b"abc", None, None),
        kernels.warp_stage(turned, size, False, None, None),
        kernels.transpose_stage(),
        kernels.erase_stage(window, b"abc"),
        kernels.noise_stage(np.array([1]), 0.1, 0.0, True),
        kernels.blend_stage(np.array([[0.5, 0.5]]), (kernels.program(()),) * 2),
        jpeg.jpeg_stage(np.array([75])),
        *(create_stage([change]) for change in colors),
    ]


@pytest.mark.parametrize("name", ["gray", "to_rgb"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["planes", "pixels"])
def test_equal_channels_are_three_for_the_stages_that_follow(name: str, is_packed: bool) -> None:
    image = shades((33, 70), 1 if name == "to_rgb" else 3)
    before, expected = image.copy(), change(image, [(name,)])
    assert expected.shape == (33, 70, 3)
    for stage in _list_stages():
        alone = np.asarray(kernels.run_stage(stage, 0, expected))
        program = kernels.program((create_stage([(name,)]), stage))
        assert np.array_equal(np.asarray(kernels.run_stage(program, 0, image)), alone)
        batch = target(*alone.shape[:2], "uint8", is_packed)[None].numpy()
        if alone.shape[2] == 3:
            assert (
                kernels.run_program(kernels.program((program, deliver(batch))), [0], [image]) == []
            )
            assert np.array_equal(batch[0].transpose(1, 2, 0), alone)
    assert np.array_equal(image, before)


def test_a_gray_image_in_colour_takes_values_of_each_channel() -> None:
    """Its three channels are one plane, which nothing may change in place."""
    image, window = picture(20, 30), np.array([[3, 4, 5, 6]])
    erase = kernels.erase_stage(window, bytes([9, 100, 200]))
    expected = np.asarray(change(image, [("gray",)])).copy()
    expected[3:8, 4:10] = 9, 100, 200
    made = kernels.run_stage(kernels.program((create_stage([("gray",)]), erase)), 0, image)
    assert np.array_equal(np.asarray(made), expected)
