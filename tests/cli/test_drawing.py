"""gpupipe gallery: its files, its arguments and its mistakes."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from gpupipe.bench.gallery_page import page_width
from gpupipe.bench.grid import TEXT_HEIGHT
from gpupipe.cli.app import main
from gpupipe.cli.drawing import encode_picture, find_protocol


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


SIDE, TEXT = 24, TEXT_HEIGHT
SETTINGS = ["engine=dataloader", "workers=0", "device=cpu", "shuffle=false"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six gray squares with masks, whose left half is class 0 and whose right half is class 1."""
    monkeypatch.chdir(tmp_path)
    mask = np.repeat(np.array([[0, 1]], np.uint8), SIDE // 2, axis=1).repeat(SIDE, axis=0)
    rows = ["path,mask,label"]
    for n in range(6):
        Image.new("RGB", (SIDE, SIDE), (120, 120, 120)).save(f"{n}.png")
        Image.fromarray(mask).save(f"m{n}.png")
        rows.append(f"{n}.png,m{n}.png,{n % 2}")
    Path("list.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def draw(config: str, *words: str) -> Image.Image:
    Path("c.yaml").write_text(config)
    done = CliRunner().invoke(main, ["show-batch", "c.yaml", *SETTINGS, "--out", "o.png", *words])
    assert done.exit_code == 0, done.output
    return Image.open("o.png")


def test_masks_are_laid_over_their_images(here: Path) -> None:
    picture = draw(
        "data: {source: file_list, file: list.csv, fields: {mask: mask}, masks: [mask]}\n"
        "pipeline: [decode, {decode: {mode: gray, on: mask}}]\n"
    )
    assert picture.size == (6 * 2 * SIDE, SIDE + 2 * TEXT)
    pixels = np.asarray(picture)[TEXT : TEXT + SIDE]
    assert (pixels[:, :SIDE] == 120).all(), "the image as it is"
    assert (pixels[:, SIDE : SIDE + SIDE // 2] == 120).all(), "class 0 stays clear"
    colored = pixels[:, SIDE + SIDE // 2 : 2 * SIDE]
    assert (colored != 120).any(axis=2).all()


def test_views_are_side_by_side_and_normalize_is_undone(here: Path) -> None:
    picture = draw(
        "data: {source: file_list, file: list.csv, label: label}\n"
        "pipeline:\n"
        "  steps: [decode]\n"
        "  views:\n"
        "    a: {steps: [{resize: {size: [24, 24]}}, {to_dtype: {dtype: float32, scale: true}}, "
        "{normalize: {mean: 0.5, std: 0.2}}]}\n"
        "    b: {count: 2, steps: [{resize: {size: [12, 12]}}, "
        "{to_dtype: {dtype: float32, scale: true}}]}\n",
        "--samples",
        "2",
    )
    assert picture.size == (2 * 48, SIDE + 2 * TEXT)
    row = np.asarray(picture)[TEXT + 2, :48].astype(int)
    assert (abs(row - 120) <= 1).all()


def test_what_is_no_image_is_refused(here: Path) -> None:
    np.save("x.npy", np.zeros((4, 5), np.float32))
    Path("c.yaml").write_text("data: {source: numpy, files: x.npy, rows: true}\npipeline: []\n")
    done = CliRunner().invoke(main, ["show-batch", "c.yaml", *SETTINGS])
    assert done.exit_code == 1
    assert "what is drawn are images" in done.output


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM_PROGRAM": "WezTerm", "TERM": "xterm-256color"}, "iterm"),
        ({"TERM": "xterm-256color"}, ""),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, ""),
    ],
    ids=str,
)
def test_terminals_that_show_pictures(environment: dict[str, str], protocol: str) -> None:
    assert find_protocol(environment) == protocol


@pytest.mark.parametrize("protocol", ["kitty", "iterm"])
def test_escape_sequences_hold_the_picture(protocol: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (90, 90, 3)).astype(np.uint8)
    parts = list(encode_picture(protocol, Image.fromarray(noise)))
    if protocol == "kitty":
        assert all(p.startswith("\x1b_G") and p.endswith("\x1b\\") for p in parts)
        assert [("m=1" in p) for p in parts] == [True] * (len(parts) - 1) + [False]
        text = "".join(p.partition(";")[2].removesuffix("\x1b\\") for p in parts)
    else:
        (part,) = parts
        text = part.partition(":")[2].removesuffix("\a")
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) == noise).all()


def test_fewer_samples_than_are_drawn_are_drawn_all(here: Path) -> None:
    picture = draw(
        "data: {source: file_list, file: list.csv}\npipeline: [decode]\n"
        "loader: {last_batch: drop}\n"
    )
    assert np.asarray(picture).shape[1] == 6 * SIDE
