"""Detects images with boxes: COCO's JSON beside images, and the folders of Pascal VOC."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpupipe.errors import GpupipeError
from gpupipe.formats.json_items import iter_blocks
from gpupipe.formats.voc import MAX_BYTES, parse_voc
from gpupipe.init.detected import (
    PART_WORDS,
    Detected,
    choose_parts,
    find_part_word,
    is_image,
    name_some,
)
from gpupipe.runtime.files import open_regular
from gpupipe.runtime.installation import is_installed
from gpupipe.sources.voc import VOC_CLASSES

_MAX_DEPTH = 2
_ARRAYS = ("images", "annotations", "categories")
_XML_FOLDER = "Annotations/"


def detect_boxes(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    """Detect annotation files of COCO or Pascal VOC.

    Args:
        folder: The folder of the data.
        files: The paths of all files below it, relative to it.

    Returns:
        The detected data of each part: "train", and "val" if there is validation data. {} if there
        are no such annotations.
    """
    return _detect_voc(folder, files) or _detect_coco(folder, files)


def _detect_coco(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    lists = [p for p in files if p.lower().endswith(".json") and p.count("/") <= _MAX_DEPTH]
    if not lists or not is_installed("msgspec"):
        return {}
    images = [path for path in files if is_image(path)]
    groups: dict[str, Detected] = {}
    others = []
    # Files called instances_* have boxes of all classes; person_keypoints_* those of persons.
    for path in sorted(lists, key=lambda path: not Path(path).stem.startswith("instances")):
        first = _find_first_image(folder / path)
        word = find_part_word(Path(path).stem)
        top = _find_root(first, images, word) if first else None
        if top is None:
            continue
        if word in groups:
            others.append(path)
            continue
        options = {"root": str(folder / top), "annotations": str(folder / path)}
        groups[word] = Detected("coco", options, used=[path, *_below(top, images)])
    parts = choose_parts(groups)
    for part in parts.values():
        part.notes += [f"other annotations are not read: {name_some(others)}."] if others else []
    return parts


def _find_first_image(file: Path) -> str:
    """Return the file name of the first image, if a JSON file is COCO's and has boxes; else ""."""
    import msgspec

    found: dict[str, Any] = {}
    try:
        with open_regular(file) as stream:
            for block in iter_blocks(stream):
                if block.key in _ARRAYS and len(block) and block.key not in found:
                    found[block.key] = msgspec.json.decode(block.item(0))
                if len(found) == len(_ARRAYS):
                    break
        has_box = "categories" in found and isinstance(found["annotations"]["bbox"], list)
        name = found["images"]["file_name"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if has_box and isinstance(name, str) else ""


def _find_root(name: str, images: Sequence[str], word: str) -> str | None:
    """Return the folder, as "" or ending in "/", below which there is the image `name`."""
    tops = [path.removesuffix(name) for path in images if f"/{path}".endswith(f"/{name}")]
    of_part = [top for top in tops if find_part_word(top) == word]
    return next(iter([*of_part, *tops]), None)


def _below(top: str, paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path.startswith(top)]


def _detect_voc(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    tops = {
        path[: path.rindex(_XML_FOLDER)]
        for path in files
        if path.endswith(".xml") and f"/{path}".rpartition("/")[0].endswith("/Annotations")
    }
    for top in sorted(tops):
        sets = [
            Path(path).stem
            for path in files
            if path.startswith(f"{top}ImageSets/Main/") and path.endswith(".txt")
        ]
        parts = choose_parts({stem: stem for stem in sets if stem in PART_WORDS})
        if not parts:
            continue
        xml = [path for path in _below(f"{top}{_XML_FOLDER}", files) if path.endswith(".xml")]
        classes = _find_classes([folder / path for path in xml])
        named = {} if set(classes) <= set(VOC_CLASSES) else {"classes": classes}
        root = str(folder / top)
        used = _below(top, files)
        return {
            part: Detected("voc", {"root": root, "image_set": stem} | named, used=used)
            for part, stem in parts.items()
        }
    return {}


def _find_classes(files: Sequence[Path]) -> list[str]:
    """Return the names of the classes in files of annotations, sorted."""
    names: set[str] = set()
    for file in files:
        try:
            with open_regular(file) as stream:
                names.update(parse_voc(stream.read(MAX_BYTES + 1)).names)
        except OSError as e:
            raise GpupipeError(f"{file}: cannot be read: {e.strerror or e}") from e
        except ValueError:  # gpupipe check --annotations names it
            continue
    return sorted(names)
