from typing import Any

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou
from torchvision.transforms.v2 import RandomIoUCrop
from torchvision.tv_tensors import BoundingBoxes, Image

from gpupipe.augment import iou_windows
from gpupipe.augment.iou_windows import (
    WindowRules,
    Windows,
    are_centers_inside,
    find_windows,
)
from helpers.distributions import largest_gap
from helpers.full_product import IS_FULL

DEFAULTS = WindowRules(0.3, 1.0, 0.5, 2.0, (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), 40)
SIZE = (240, 320)
LAYOUTS: dict[str, list[list[float]]] = {
    "one large box": [[20, 30, 280, 220]],
    "a small box in a corner": [[290.5, 4.25, 312, 21]],
    "boxes of all sizes": [
        [0, 0, 320, 240],
        [10, 10, 60, 90],
        [200, 100, 310, 235],
        [150, 40, 158, 47],
        [5, 180, 90, 239],
    ],
}
CASES = [(layout, "defaults") for layout in LAYOUTS]
# Of the small box torchvision would try windows forever: none overlaps enough with it.
CASES += [("one large box", "others"), ("boxes of all sizes", "others")]
OTHER_RULES = WindowRules(0.5, 0.8, 0.9, 1.5, (0.2, 0.4), 10)


def windows_of(boxes: Any, count: int, rules: WindowRules = DEFAULTS, first: int = 0) -> Windows:
    """The windows of `count` samples, all with the same boxes and the size SIZE."""
    every = np.tile(np.array(boxes, np.float64).reshape(-1, 4), (count, 1))
    offsets = np.arange(count + 1) * len(boxes)
    seeds = np.arange(first, first + count)
    return find_windows(
        every, offsets, np.tile(np.array(SIZE, np.float64), (count, 1)), seeds, rules
    )


def count_inside(found: Windows, boxes: Any) -> Any:
    """The number of boxes whose centre is in each window; all of those of a whole image."""
    count = len(boxes)
    every = np.tile(np.array(boxes, np.float64), (len(found.anchor), 1))
    is_inside = are_centers_inside(
        every, np.repeat(found.anchor, count, 0), np.repeat(found.shape, count, 0)
    )
    return np.where(found.is_cropped, is_inside.reshape(-1, count).sum(1), count)


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_windows_are_distributed_as_torchvisions(layout: str, name: str) -> None:
    """Each side of the window and the number of boxes inside, by Kolmogorov and Smirnov."""
    boxes, count = LAYOUTS[layout], 3000 if IS_FULL else 400
    rules = DEFAULTS if name == "defaults" else OTHER_RULES
    ours = windows_of(boxes, 10 * count, rules)
    torch.manual_seed(0)
    transform = RandomIoUCrop(
        rules.min_scale,
        rules.max_scale,
        rules.min_aspect_ratio,
        rules.max_aspect_ratio,
        list(rules.sampler_options),
        rules.trials,
    )
    inputs = [
        Image(torch.zeros(3, *SIZE, dtype=torch.uint8)),
        BoundingBoxes(torch.tensor(boxes, dtype=torch.float64), format="XYXY", canvas_size=SIZE),
    ]
    theirs = []
    for _ in range(count):
        drawn = transform.make_params(inputs) or {
            "top": 0,
            "left": 0,
            "height": SIZE[0],
            "width": SIZE[1],
            "is_within_crop_area": torch.ones(len(boxes)),
        }
        kept = int(drawn["is_within_crop_area"].sum())
        theirs.append([drawn[name] for name in ("top", "left", "height", "width")] + [kept])
    columns = [*ours.anchor.T, *ours.shape.T, count_inside(ours, boxes)]
    gaps = [largest_gap(a, b) for a, b in zip(columns, np.array(theirs).T, strict=True)]
    assert max(gaps) < 2.2, gaps


def test_each_window_follows_the_rules() -> None:
    boxes = LAYOUTS["boxes of all sizes"]
    found = windows_of(boxes, 3000)
    (top, left), (height, width) = found.anchor.T, found.shape.T
    is_whole = (height == SIZE[0]) & (width == SIZE[1])
    assert (is_whole == ~found.is_cropped).all()
    assert 0.1 < is_whole.mean() < 0.5
    for part in (top, left, height, width):
        assert (part == np.floor(part)).all()
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= SIZE[0]).all()
    assert (left + width <= SIZE[1]).all()
    assert (width / height >= 0.5).all()
    assert (width / height <= 2).all()
    assert height.min() >= np.floor(0.3 * SIZE[0])
    assert (count_inside(found, boxes) > 0).all()


@pytest.mark.parametrize("overlap", [0.1, 0.5, 0.7])
def test_a_box_inside_overlaps_as_much_as_the_option_says(overlap: float) -> None:
    rules = WindowRules(0.3, 1.0, 0.5, 2.0, (overlap,), 40)
    boxes = LAYOUTS["boxes of all sizes"]
    found = windows_of(boxes, 500, rules)
    windows = np.concatenate([found.anchor[:, ::-1], (found.anchor + found.shape)[:, ::-1]], 1)
    overlaps = box_iou(torch.from_numpy(windows), torch.tensor(boxes, dtype=torch.float64))
    best = overlaps.amax(1)
    assert float(best.min()) >= overlap - 1e-12
    assert float(best.min()) < overlap + 0.1


def test_a_sample_does_not_depend_on_its_batch() -> None:
    """Portions differ with the number of boxes, but the windows do not."""
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 30, 40)
    corners = generator.random((counts.sum(), 2, 2)) * [320, 240]
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    size, seeds = np.tile(np.array(SIZE, np.float64), (40, 1)), np.arange(40)
    whole = find_windows(boxes, offsets, size, seeds, DEFAULTS)
    for n in range(40):
        first, end = offsets[n : n + 2]
        alone = find_windows(
            boxes[first:end],
            np.array([0, end - first]),
            size[n : n + 1],
            seeds[n : n + 1],
            DEFAULTS,
        )
        assert alone.anchor.tolist() == whole.anchor[n : n + 1].tolist()
        assert alone.shape.tolist() == whole.shape[n : n + 1].tolist()
        assert alone.is_cropped.tolist() == whole.is_cropped[n : n + 1].tolist()


def test_without_boxes_the_image_stays_whole() -> None:
    for count in (0, 3):
        found = windows_of(np.zeros((0, 4)), count)
        assert found.anchor.tolist() == [[0, 0]] * count
        assert found.shape.tolist() == [list(SIZE)] * count
        assert not found.is_cropped.any()


def test_without_a_window_the_image_stays_whole() -> None:
    """torchvision would try forever."""
    rules = WindowRules(0.3, 1.0, 0.5, 2.0, (0.9,), 40)
    found = windows_of(LAYOUTS["a small box in a corner"], 5, rules)
    assert found.shape.tolist() == [list(SIZE)] * 5
    assert not found.is_cropped.any()
    # The same where tries are made, and none fits: a large box whose sides no window has.
    found = windows_of([[0, 0, 320, 60]], 5, WindowRules(0.3, 1.0, 0.9, 1.1, (0.9,), 40))
    assert found.shape.tolist() == [list(SIZE)] * 5
    assert not found.is_cropped.any()


def test_a_centre_on_the_border_is_outside() -> None:
    boxes = np.array([[0, 0, 2, 2], [0, 0, 4, 4], [4, 4, 5, 4.5], [6, 2, 8, 4]], np.float64)
    anchor, shape = np.full((4, 2), 1.0), np.tile([4.0, 6.0], (4, 1))
    assert are_centers_inside(boxes, anchor, shape).tolist() == [False, True, True, False]


def test_rounds_that_cannot_end_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving them out only saves time: windows are distributed as if all rounds were tried."""
    boxes = LAYOUTS["a small box in a corner"]
    fast = windows_of(boxes, 1500)

    def list_all(*args: Any) -> Any:
        seeds, rules = args[3], args[4]
        u = iou_windows.draws.uniform(0, 0, seeds, iou_windows._OPTIONS, iou_windows.MAX_ROUNDS)
        return np.array(rules.sampler_options)[np.floor(u * 7).astype(int)]

    monkeypatch.setattr(iou_windows, "_list_options", list_all)
    slow = windows_of(boxes, 1500, first=5000)
    columns = [np.column_stack([w.anchor, w.shape, w.is_cropped]).T for w in (fast, slow)]
    gaps = [largest_gap(a, b) for a, b in zip(*columns, strict=True)]
    assert 0 < fast.is_cropped.mean() < 1
    assert max(gaps) < 2.2, gaps
