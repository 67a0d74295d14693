"""Finds the class folders of images, or images without any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpupipe.init.detected import Detected
from gpupipe.init.names import is_image, is_image_name, is_part_name, name_some


def count_classes(files: Iterable[str]) -> int:
    """Return the number of folders of images whose names are not those of parts or of images."""
    classes = set()
    for folder in {path.rpartition("/")[0] for path in files if is_image(path)}:
        names = folder.split("/") if folder else []
        while names and (is_part_name(names[0]) or is_image_name(names[0])):
            del names[0]
        classes.update(names[:1])
    return len(classes)


def detect_images(folder: Path, files: Sequence[str]) -> Detected:
    """Return what reads images: class folders, unless most images are in none."""
    images = [path for path in files if is_image(path)]
    inside = [path for path in images if "/" in path]
    classes = {path.partition("/")[0] for path in inside}
    if len(classes) == 1 and all(path.count("/") > 1 for path in inside):
        return _detect_inside(folder, next(iter(classes)), inside)
    if 2 * len(inside) < len(images) or (len(classes) == 1 and is_image_name(next(iter(classes)))):
        note = "the images are in no class folders, so they have no labels."
        return Detected("folder", {"root": str(folder), "label": None}, [note], used=images)
    deeper = {"/".join(path.split("/")[:2]) for path in inside if path.count("/") > 1}
    notes = []
    if len(deeper) > len({path.partition("/")[0] for path in deeper}):
        notes.append(
            f"class folders hold further folders ({name_some(sorted(deeper))}): a class is the "
            f"first folder below {folder}; if it is the inner one, move those up."
        )
    return Detected("folder", {"root": str(folder)}, notes, used=inside)


def _detect_inside(folder: Path, name: str, paths: Sequence[str]) -> Detected:
    """Return what reads the images in the only folder with some, which has folders in it."""
    part = detect_images(folder / name, [path.removeprefix(f"{name}/") for path in paths])
    note = f"all images are in {folder / name}, so the folders in it are taken for the classes."
    return replace(
        part, notes=part.notes or [note], used=[f"{name}/{path}" for path in part.used or ()]
    )
