"""Where the steps of the CPU engine run: on primitives, in torch, or not at all."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe import config
from gpupipe.bench import plan
from gpupipe.loading.assembly import resolve
from gpupipe.runtime.installation import find_extension
from helpers.arrays import COUNT, numbers, saved
from helpers.fresh_python import Program, run_each
from helpers.loaders import loading
from helpers.odd_steps import installer
from helpers.reference import operators

load = loading(engine="cpu", threads=2, batch_size=4, shuffle=False)
FLIPS = ["random_horizontal_flip", "random_vertical_flip"]
CROP = {"center_crop": {"size": [6, 8]}}
AFFINE = {"random_affine": {"degrees": 10, "interpolation": "bilinear"}}
FLOATS: list[Any] = [
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]


@pytest.fixture
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where steps of other packages are installed."""
    return tmp_path_factory.mktemp("plugins")


def levels(root: Path, *steps: Any) -> torch.Tensor:
    with load(root, ["decode", CROP, *steps]) as loader:
        return torch.cat([batch["image"].int() for batch in loader])


def plugin(folder: Path, patch: pytest.MonkeyPatch, *lines: str) -> str:
    """A step of another package that has no torch lowering."""
    body = "".join(f"        {line}\n" for line in lines)
    return installer(folder, patch)(
        lower=f"    def lower(self, image, p):\n        n = len(p['strength'])\n{body}", torch=""
    )


@pytest.mark.parametrize(
    "border",
    [
        {"pad": {"padding": [1, 2, 3, 4], "padding_mode": "edge"}},
        {"center_crop": {"size": [9, 12]}},
    ],
    ids=str,
)
def test_flips_after_a_border_are_made(few: Path, border: Any) -> None:
    before = levels(few, border)
    for axis, name in zip((-1, -2), FLIPS, strict=True):
        assert torch.equal(levels(few, border, {name: {"p": 1.0}}), before.flip(axis))
    both = ({name: {"p": 1.0}} for name in FLIPS)
    assert torch.equal(levels(few, border, *both), before.flip(-1, -2))


def test_a_plugin_calls_torch(few: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = plugin(plugins, monkeypatch, "image.call_torch(lambda pixels: pixels.flip(-1))")
    assert torch.equal(levels(few, step), levels(few).flip(-1))
    with load(few, ["decode", CROP, step]) as loader:
        assert ("call_torch", "cpu", (step,)) in operators(loader)


@pytest.mark.skipif(find_extension() is None, reason="the extension is not built, or is off")
@pytest.mark.parametrize(
    ("step", "kernel"),
    [
        ("gaussian_noise", "kernels.noise"),
        ({"elastic_transform": {"sigma": 0.5}}, "kernels.elastic"),
        ({"jpeg": {"quality": [50, 90]}}, "jpeg"),
    ],
    ids=str,
)
def test_degradations_run_in_the_extension(few: Path, step: Any, kernel: str) -> None:
    """Before a crop, and inside a container, too."""
    name = step if isinstance(step, str) else next(iter(step))
    with load(few, ["decode", step, CROP]) as loader:
        assert (kernel, "cpu", (name,)) in operators(loader)
    with load(few, ["decode", CROP, {"random_apply": {"transforms": [step]}}]) as loader:
        assert (kernel, "cpu", ("random_apply",)) in operators(loader)


def test_the_warp_writes_into_the_batch(few: Path) -> None:
    pytest.importorskip("cv2")
    with load(few, ["decode", AFFINE, *FLOATS]) as loader:
        steps = ("random_affine", "to_dtype", "normalize")
        warp = "kernels.warp" if find_extension() else "cv2.warpAffine"
        assert operators(loader)[-1] == (warp, "cpu", steps)


@pytest.mark.skipif(find_extension() is None, reason="the extension is not built, or is off")
@pytest.mark.parametrize(
    "steps",
    [
        [{"random_resized_crop": {"size": 64}}, "random_horizontal_flip"],
        [{"resize": {"size": 64}}, {"center_crop": {"size": 60}}],
        [{"resize": {"size": [64, 64]}}, *FLIPS],
        [{"pad": {"padding": 4, "padding_mode": "edge"}}, *FLIPS],
        [{"center_crop": {"size": 600}}, *FLIPS],
    ],
    ids=str,
)
def test_a_geometry_writes_into_the_batch(few: Path, steps: list[Any]) -> None:
    """Also with two flips after it."""
    with load(few, ["decode", *steps, *FLOATS]) as loader:
        names = [s if isinstance(s, str) else next(iter(s)) for s in (*steps, *FLOATS)]
        kernel = "kernels.resize" if "resize" in names[0] else "kernels.pad"
        assert operators(loader)[-1] == (kernel, "cpu", tuple(names))


def test_a_dali_step_is_refused(few: Path) -> None:
    with pytest.raises(gpupipe.EngineError, match=r"pipeline\.1.*CPU engine: use engine: dali"):
        load(few, ["decode", {"dali": {"op": "sphere"}}])


def test_check_lowers_the_steps_of_every_epoch(
    few: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = installer(plugins, monkeypatch)(
        num_uniforms="    level: int = 0\n    num_uniforms = 1",
        lower=(
            "    def lower(self, image, p):\n"
            "        image.call_torch(abs) if self.level < 2 else image.apply('fn', None)"
        ),
        torch="",
    )

    def read(then: int) -> config.Config:
        scheduled = {step: {"level": {"value": 0, "until": 7, "then": then}}}
        raw = {"data": {"source": "folder", "root": few}, "pipeline": ["decode", scheduled]}
        return config.read(raw, device="cpu", engine="cpu")

    assert plan.operators(resolve(read(1)))
    with pytest.raises(gpupipe.EngineError, match=rf"{step}|'fn' is an operator of DALI alone"):
        plan.operators(resolve(read(2)))


ALONE = """
import sys
sys.modules["cv2"] = sys.modules["simplejpeg"] = None  # importing them raises ImportError
import gpupipe
config = {{"data": {{"source": "folder", "root": {root!r}}}, "pipeline": {steps!r}}}
engines = {{"engine": "cpu", "threads": 2}}, {{"engine": "dataloader", "workers": 0}}
loaders = [gpupipe.load(config, device="cpu", batch_size=3, **engine) for engine in engines]
for own, reference in zip(*loaders, strict=True):
    print(tuple(own["image"].shape), float((own["image"] - reference["image"]).abs().max()))
print(*[operator for operator, _, _ in loaders[0].engine._phases[0].operators()], sep=", ")
"""


WITHOUT_OPENCV: dict[str, list[Any]] = {
    "off": [
        {"random_affine": {"degrees": 10, "interpolation": "bilinear"}},
        {"random_resized_crop": {"size": 64}},
        {"color_jitter": {"brightness": 0.4, "hue": 0.1}},
        "random_horizontal_flip",
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": {"mean": 0.5, "std": 0.2}},
    ],
    "on": [
        {"random_resized_crop": {"size": 80}},
        {"resize": {"size": [64, 64], "interpolation": "nearest"}},
    ],
}
"""The steps for each setting of GPUPIPE_KERNELS."""


@pytest.fixture(scope="module")
def alone(
    pictures: list[Image.Image], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, subprocess.CompletedProcess[str]]:
    """How ALONE ended with each setting of GPUPIPE_KERNELS, of six images."""
    root = tmp_path_factory.mktemp("alone")
    (root / "class").mkdir()
    for n, picture in enumerate(pictures[:6]):
        picture.save(root / "class" / f"{n}.jpg", quality=85)
    programs = [
        Program(
            ALONE.format(root=str(root), steps=["decode", *steps]), {"GPUPIPE_KERNELS": setting}
        )
        for setting, steps in WITHOUT_OPENCV.items()
    ]
    ended = run_each(["torchvision.transforms.v2.functional"], programs)
    return dict(zip(WITHOUT_OPENCV, ended, strict=True))


def read_operators(done: subprocess.CompletedProcess[str]) -> str:
    """The operators that ALONE printed, after two batches that were the reference's to the bit."""
    assert (done.returncode, done.stderr) == (0, "")
    first, second, operators = done.stdout.splitlines()
    assert first == second == "(3, 3, 64, 64) 0.0"
    return operators


def test_torchvision_alone_does_the_work_of_opencv_and_simplejpeg(
    alone: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    operators = read_operators(alone["off"])
    assert "cv2" not in operators
    assert "torch" in operators


@pytest.mark.skipif(find_extension() is None, reason="the extension is not built, or is off")
def test_the_extension_resizes_to_nearest_pixels_without_opencv(
    alone: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    assert "torch" not in read_operators(alone["on"])


@pytest.mark.parametrize(("layout", "shape"), [("CHW", (3, 9, 12)), ("HWC", (9, 12, 3))])
def test_arrays_that_are_images_take_kernels(
    tmp_path: Path, layout: str, shape: tuple[int, ...]
) -> None:
    data = saved(tmp_path, numbers("uint8", (COUNT, *shape)), layout=layout)
    steps = [{"random_posterize": {"bits": 3, "p": 1}}, {"to_dtype": {"dtype": "float64"}}]
    later = {"random_crop": {"size": 5}}  # no kernel takes arrays of float64
    config: dict[str, Any] = {"data": data, "pipeline": [AFFINE, *steps, later]}
    with gpupipe.load(config, engine="cpu", device="cpu") as loader:
        of_step = {step: name for name, _, (step,) in operators(loader)[:-1]}
    assert of_step.pop("random_crop") == "torch"
    assert "torch" not in of_step.values()


def test_other_arrays_run_in_torch(tmp_path: Path) -> None:
    data = saved(tmp_path, numbers("float32", (COUNT, 2, 3, 9, 12)), layout="TCHW")
    config: dict[str, Any] = {"data": data, "pipeline": [{"random_crop": {"size": 5}}]}
    with gpupipe.load(config, engine="cpu", device="cpu") as loader:
        assert ("torch", "cpu", ("random_crop",)) in operators(loader)
