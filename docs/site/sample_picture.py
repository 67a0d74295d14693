"""Draws what the config of the front page makes of three photographs in five epochs.

    pip download --no-deps --only-binary :all: --python-version 3.9 scikit-image==0.18.3
    unzip -q scikit_image-*.whl 'skimage/data/*'
    python docs/site/sample_picture.py skimage/data

It writes docs/images/samples.webp. scikit-image has the photographs, and tells where they are from
(the functions `chelsea`, `coffee` and `rocket` of skimage.data): the cat is by Stefan van der Walt
and the coffee by Rachel Michetti, both CC0; the rocket is by SpaceX, in the public domain.
"""

import re
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import gpupipe
from gpupipe.bench.grid import to_picture

DOCS = Path(__file__).parents[1]
OUT = DOCS / "images" / "samples.webp"
NAMES = {"cat": "chelsea.png", "coffee": "coffee.png", "rocket": "rocket.jpg"}
EPOCHS = 5
_SIDE, _GAP, _LABELS = 150, 8, 34
_FILE_WIDTH = _SIDE * 3 // 2
_GRAY = "#768390"
"""The labels have this colour: it is read on a white page and on a dark one."""


def main(photographs: Path) -> None:
    """Write the picture; its background is transparent."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "photos"
        for name, file in NAMES.items():
            (root / name).mkdir(parents=True)
            Image.open(photographs / file).save(root / name / f"{name}.jpg", quality=95)
        config = Path(folder) / "train.yaml"
        config.write_text(read_config())
        samples = [str(root), "shuffle=false", f"batch_size={len(NAMES)}", "device=cpu"]
        with gpupipe.load(config, f"data.root={samples[0]}", *samples[1:]) as loader:
            epochs = [next(iter(loader))["image"] for _ in range(EPOCHS)]
        files = [Image.open(path).convert("RGB") for path in sorted(root.rglob("*.jpg"))]
    rows = [
        [file, *(to_picture(images[n] * 255) for images in epochs)] for n, file in enumerate(files)
    ]
    _arrange(rows).save(OUT, quality=80, method=6)


def read_config() -> str:
    """Return the config of the front page."""
    found = re.search(r"```yaml\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    assert found, "docs/index.md has no config"
    return found[1]


def _arrange(rows: list[list[Image.Image]]) -> Image.Image:
    """Draw a row for each file: the whole file, then its samples, under a line of labels."""
    width = _FILE_WIDTH + EPOCHS * (_GAP + _SIDE)
    height = _LABELS + len(rows) * (_SIDE + _GAP) - _GAP
    sheet = Image.new("RGBA", (width, height))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(24)
    lefts = [0, *(_FILE_WIDTH + _GAP + n * (_SIDE + _GAP) for n in range(EPOCHS))]
    labels = ["the file", *(f"epoch {n}" for n in range(EPOCHS))]
    for left, label in zip(lefts, labels, strict=True):
        pen.text((left, 0), label, fill=_GRAY, font=font)
    for number, row in enumerate(rows):
        top = _LABELS + number * (_SIDE + _GAP)
        for column, picture in enumerate(row):
            box = (_SIDE if column else _FILE_WIDTH, _SIDE)
            shown = picture.copy()
            shown.thumbnail(box, Image.Resampling.LANCZOS)
            sheet.paste(shown, (lefts[column], top + (_SIDE - shown.height) // 2))
    return sheet


if __name__ == "__main__":
    main(Path(sys.argv[1]))
