"""Draws what the config of the front page makes of three photographs in five epochs.

    git clone https://github.com/NVIDIA/DALI_extra      # with Git LFS
    python docs/site/sample_picture.py DALI_extra/db/single/jpeg

It writes docs/images/samples.webp. The photographs are CC0: they were uploaded to Pixabay before
2017 (image_info.txt of that repository), and each file's name ends with its number there.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import gpupipe
from gpupipe.bench.grid import to_picture

DOCS = Path(__file__).parents[1]
OUT = DOCS / "images" / "samples.webp"
NAMES = ("dog-1461239_1280.jpg", "peacock-90051_640.jpg", "winter-barn-556696_1280.jpg")
EPOCHS = 5
_SIDE, _GAP, _LABELS = 150, 8, 34
_FILE_WIDTH = _SIDE * 3 // 2
_GRAY = "#768390"
"""The labels have this colour: it is read on a white page and on a dark one."""


def main(photographs: Path) -> None:
    """Write the picture; its background is transparent."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "photos"
        for name in NAMES:
            (root / name.partition("-")[0]).mkdir(parents=True)
            file = next(photographs.rglob(name))
            (root / name.partition("-")[0] / name).write_bytes(file.read_bytes())
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
