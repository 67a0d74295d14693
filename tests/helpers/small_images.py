"""Fewer and smaller images, for tests that do not need large ones."""

import shutil
from pathlib import Path

from PIL import Image


def copy_some(root: Path, made: Path, every: int) -> Path:
    """Copy each so-manieth image of the class folders under `root` to `made`, and return that."""
    for path in sorted(root.glob("*/*"))[::every]:
        (made / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, made / path.parent.name)
    return made


def shrink_all(root: Path, made: Path, side: int) -> Path:
    """Write the JPEGs of the class folders under `root` as squares to `made`, and return that."""
    for path in sorted(root.glob("*/*.jpg")):
        (made / path.parent.name).mkdir(parents=True, exist_ok=True)
        small = Image.open(path).resize((side, side))
        small.save(made / path.parent.name / path.name, quality=95)
    return made
