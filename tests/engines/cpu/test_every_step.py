"""Every step on arrays of each kind: how far it is from torchvision, and whether it is compiled."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.dataset.spec import Spec
from gpupipe.engines.cpu import samples, stages
from gpupipe.engines.cpu.program import BranchingOp, Program
from gpupipe.errors import ConfigError
from gpupipe.runtime.installation import find_extension
from helpers.color_stages import shades
from helpers.every_step import COLORS, POLICIES, STEPS
from helpers.step_examples import resolved

KINDS = [("HWC", 1), ("CHW", 2), ("HWC", 3), ("CHW", 3), ("HWC", 4), ("HW", 1)]
SIZE = (60, 84)
SIZES = [SIZE, (72, 70), (61, 90)]
NOT_HERE = {"linear_transformation", "decode", "dali"}
"""A matrix with a column for each pixel, what takes files, and what is DALI's alone."""
CASES = {
    f"{name}_{number}": {name: options}
    for name, every in STEPS.items()
    if name not in NOT_HERE
    for number, options in enumerate(every)
}
WARPS = ("random_affine", "random_rotation", "random_perspective")
RESIZES = ("resize", "letterbox", "scale_jitter", "random_resized_crop")
RESIZES += ("random_resize", "random_shortest_size")
SIZED = ("random_size_crop", "transpose", "random_rotate_90", "random_zoom_out", "scale_jitter")
SIZED += ("random_resize", "random_shortest_size", "random_rotation")
"""Steps that make images of one size differ in size, so that a crop has to follow."""
HUES = ("color_jitter", "random_photometric_distort")


def write(folder: Path, dtype: str, layout: str, channels: int, sizes: Any) -> dict[str, Any]:
    """One array a file, as the YAML's `data`."""
    for n, size in enumerate(sizes):
        planes = [shades(size), 255 - shades(size)]
        image: Any = np.concatenate(planes, -1)[..., :channels]
        if dtype == "float32":
            image = (image / 255).astype(np.float32)
        axes = {"HWC": image, "CHW": image.transpose(2, 0, 1), "HW": image[..., 0]}
        np.save(folder / f"{n}.npy", np.ascontiguousarray(axes[layout]))
    return {"source": "numpy", "files": str(folder / "*.npy"), "layout": layout}


def list_cases(dtype: str, layout: str, channels: int) -> dict[str, Any]:
    """The cases that take such images, by name."""
    taken, sizes = {}, {"C": channels, "H": SIZE[0], "W": SIZE[1]}
    for name, case in CASES.items():
        ((step, options),) = case.items()
        try:
            resolved(step, options, Spec(tuple(sizes[axis] for axis in layout), dtype, layout))
        except ConfigError:
            continue
        taken[name] = case
    return taken


def load(data: Any, steps: dict[str, list[Any]], engine: str, batch_size: int = 1) -> Any:
    """A loader in which each list of steps is a view."""
    pipeline = {"steps": [], "views": {name: {"steps": each} for name, each in steps.items()}}
    options: dict[str, Any] = {"workers": 0} if engine == "dataloader" else {"threads": 1}
    settings = {"device": "cpu", "batch_size": batch_size, "shuffle": False, **options}
    return gpupipe.load({"data": data, "pipeline": pipeline}, engine=engine, **settings)


def is_nearest(case: dict[str, Any]) -> bool:
    ((step, options),) = case.items()
    default = "nearest" if step in WARPS[:2] else "bilinear"
    return bool(options.get("interpolation", default) == "nearest")


def list_not_compiled(dtype: str, cases: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The cases that run in libraries, one image after the other; and those that a step follows."""
    slow, converting = set(), set()
    for name, case in cases.items():
        ((step, options),) = case.items()
        is_far = dtype != "uint8" and step in WARPS and is_nearest(case)
        is_other = dtype != "uint8" and options.get("dtype", dtype) != dtype
        if step == "python" or is_other or is_far:
            slow.add(name)
        if step in ("to_dtype", "normalize"):
            converting.add(name)
    return slow, converting


def allow(case: dict[str, Any], dtype: str) -> tuple[float, float]:
    """By how much a value may differ from torchvision's, and which share of them may.

    Steps that are not named here make torchvision's values. A nearest warp may take the neighbour
    of a pixel that is half-way between two. In a policy, a contrast may follow a warp.
    """
    (step,) = case
    if step in WARPS and is_nearest(case):
        return np.inf, 1e-3
    if dtype == "uint8":
        shares = dict.fromkeys(("gaussian_blur", "elastic_transform"), 5e-4)
        shares |= dict.fromkeys(WARPS, 1e-2 if find_extension() is None else 3e-3)
        return (3.0, 1e-2) if step in POLICIES else (1.0, shares.get(step, 0.0))
    limits = dict.fromkeys((*COLORS, "grayscale", "normalize"), 1e-6)
    limits |= dict.fromkeys((*RESIZES, *HUES), 5e-6)
    limits |= dict.fromkeys((*WARPS, "elastic_transform"), 1e-4)
    return limits.get(step, 0.0), 1.0


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(("layout", "channels"), KINDS)
def test_how_far_from_torchvision_each_step_is(
    tmp_path: Path, layout: str, channels: int, dtype: str
) -> None:
    data = write(tmp_path, dtype, layout, channels, [SIZE] * len(SIZES))
    cases = list_cases(dtype, layout, channels)
    slow, _ = list_not_compiled(dtype, cases)
    far: dict[str, list[float]] = {name: [0.0, 0.0] for name in cases}
    for names in (cases.keys() - slow, slow):  # one that is not compiled would keep all from it
        views = {name: [cases[name]] for name in sorted(names)}
        with load(data, views, "cpu") as loader, load(data, views, "dataloader") as other:
            for batch, reference in zip(loader, other, strict=True):
                for name in views:
                    made, expected = batch[name], reference[name]
                    assert (made.dtype, made.shape) == (expected.dtype, expected.shape), name
                    apart = (made.double() - expected.double()).abs()
                    for n, measured in enumerate((apart.max(), (apart > 0).double().mean())):
                        far[name][n] = max(far[name][n], float(measured))
    too_far = {
        str(case): far[name]
        for name, case in cases.items()
        if any(np.greater(far[name], allow(case, dtype)))
    }
    assert too_far == {}


def list_slow(data: Any, steps: dict[str, list[Any]], monkeypatch: Any) -> set[str]:
    """The views that the extension does not run alone, on all samples of a batch."""
    slow: set[str] = set()

    def note(groups: Any, views: Any) -> None:
        for name, view in zip(steps, views, strict=True):
            if not is_compiled(view.program):
                slow.add(name)

    with monkeypatch.context() as patch, load(data, steps, "cpu", len(SIZES)) as loader:
        patch.setattr(samples, "create_native", note)
        list(loader)
    fast, done = {name: each for name, each in steps.items() if name not in slow}, []

    def run(native: Any, rows: range) -> list[int]:
        undone = stages.run_native(native, rows)
        done.extend(row for row in rows if row not in undone)
        return undone

    with monkeypatch.context() as patch, load(data, fast, "cpu", len(SIZES)) as loader:
        patch.setattr(samples, "run_native", run)
        list(loader)
    assert sorted(done[: len(SIZES)]) == list(range(len(SIZES)))
    return slow


def is_compiled(program: Program) -> bool:
    """Whether each kernel has a stage, also those of branches."""
    branches: Iterable[Program] = (
        branch for op in program.ops if isinstance(op, BranchingOp) for branch in op.branches
    )
    has_stages = all(kernel.stage and kernel.stage() for kernel, _ in program.groups)
    return has_stages and all(map(is_compiled, branches))


@pytest.mark.skipif(find_extension("_jpeg") is None, reason="the extensions are not built")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(("layout", "channels"), KINDS)
def test_which_steps_are_not_compiled(
    tmp_path: Path, layout: str, channels: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that docs/arrays.md names: alone if images are equal, else before a crop."""
    cases, crop = list_cases(dtype, layout, channels), {"center_crop": {"size": 8}}
    slow, converting = list_not_compiled(dtype, cases)
    data = write(tmp_path, dtype, layout, channels, SIZES)
    before_crop = {name: [case, crop] for name, case in cases.items()}
    assert list_slow(data, before_crop, monkeypatch) == slow | converting
    of_one_size = {name: [case] for name, case in cases.items() if case.keys().isdisjoint(SIZED)}
    data = write(tmp_path, dtype, layout, channels, [SIZE] * len(SIZES))
    assert list_slow(data, of_one_size, monkeypatch) == slow & of_one_size.keys()
