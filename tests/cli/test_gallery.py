"""gpupipe gallery: its files, its arguments and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from gpupipe.bench.gallery_page import page_width
from gpupipe.cli.app import main


def run_gallery(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["gallery", *map(str, arguments)])


def pages(folder: Path) -> dict[str, tuple[int, int]]:
    sizes = {}
    for path in folder.iterdir():
        with Image.open(path) as page:
            sizes[path.name] = page.size
    return sizes


def test_a_step_with_parameters(tmp_path: Path) -> None:
    done = run_gallery("random_affine: {degrees: 30}", "--out", tmp_path / "new", "--side", 64)
    assert done.exit_code == 0, done.output
    found = pages(tmp_path / "new")
    assert found.keys() == {"random_affine.png", "all.png"}
    assert found["random_affine.png"] == found["all.png"]
    width, height = found["all.png"]
    assert width == page_width(64)
    assert 64 < height < 2 * 64


def test_a_pipeline_has_a_page_for_each_step_and_one_for_all(tmp_path: Path) -> None:
    done = run_gallery("imagenet_eval", "--out", tmp_path, "--side", 32, "--format", "jpg")
    assert done.exit_code == 0, done.output
    found = pages(tmp_path)
    width, height = found.pop("all.jpg")
    assert len(found) == 5
    assert {width} == {page[0] for page in found.values()}
    assert height > sum(page[1] - 12 for page in found.values())


def test_several_steps_and_pipelines_are_on_one_page(tmp_path: Path) -> None:
    rotations = "random_rotation: {degrees: 10}", "random_rotation: {degrees: 80}"
    done = run_gallery(*rotations, "imagenet_eval", "--out", tmp_path, "--side", 32)
    assert done.exit_code == 0, done.output
    found = pages(tmp_path)
    assert found.keys() >= {"random_rotation.png", "random_rotation_2.png", "01_decode.png"}
    assert len(found) == 2 + 5 + 1
    assert "7 pages" in done.output
    both = [(tmp_path / f"random_rotation{suffix}.png").read_bytes() for suffix in ("", "_2")]
    assert both[0] != both[1]


def test_draws_depend_on_the_seed(tmp_path: Path) -> None:
    made = []
    for number, seed in enumerate((0, 0, 1)):
        out = tmp_path / str(number)
        assert (
            run_gallery("random_rotation", "--out", out, "--seed", seed, "--side", 32).exit_code
            == 0
        )
        made.append((out / "random_rotation.png").read_bytes())
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["random_afine"], 2, "there is no step or pipeline 'random_afine'; did you mean"),
        (["random_affine: {degres: 3}"], 2, "did you mean 'degrees'?"),
        (["random_affine: 30"], 2, "write 'random_affine: {parameter: value}'"),
        (["{a: 1, b: 2}"], 2, "write one step, as in YAML"),
        (["random_affine: {"], 2, "STEP:"),
        (["grayscale", "--engine", "dalli"], 1, "did you mean 'dali'?"),
        (["dali: {op: sphere}", "--engine", "dataloader"], 1, "DALI only"),
        (["grayscale", "--image", __file__], 1, "it is no image that Pillow reads"),
        (["grayscale", "--image", "/nowhere.png"], 2, "does not exist"),
    ],
    ids=str,
)
def test_mistakes_have_a_message_and_a_code(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    done = run_gallery(*arguments, "--out", tmp_path / "out")
    assert done.exit_code == code, done.output
    assert words in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()
