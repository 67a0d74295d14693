"""Finds out which .npy files or arrays of a .npz file to read, and what their axes mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.dataset.spec import default_layout
from gpupipe.errors import DataError
from gpupipe.formats import npy
from gpupipe.init.detected import (
    TRAIN,
    Detected,
    choose_parts,
    find_part_word,
    name_some,
    split_words,
)
from gpupipe.runtime.files import open_regular

SUFFIXES = (".npy", ".npz")
_SAMPLES = ("x", "data", "images", "image", "features", "inputs", "array")
_LABELS = ("y", "labels", "label", "targets", "target", "classes", "class")
_MAX_CHANNELS = 4
_UNKNOWN = 1 << 62
_AXES = {"C": "channels", "D": "depth", "H": "height", "W": "width", "T": "time"}
_Role = dict[str, str]


def is_array(path: str) -> bool:
    """Whether the suffix is that of a file of arrays."""
    return path.lower().endswith(SUFFIXES)


def detect_arrays(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    """Return what reads x*.npy with y*.npy, a .npz file, or files of one sample each.

    Args:
        folder: Their folder.
        files: The names of the files in it.

    Raises:
        DataError: A .npz file cannot be read.
    """
    by_stem = {Path(name).stem: str(folder / name) for name in files}
    parts = _find_roles(by_stem)
    if parts and (len(files) > 1 or not files[0].lower().endswith(".npz")):
        return {part: _detect_files(roles, by_stem) for part, roles in parts.items()}
    if len(files) == 1 and files[0].lower().endswith(".npz"):
        return _detect_npz(folder / files[0])
    if len(files) == 1:
        note = "each row of the array is taken for a sample; no labels were found."
        options = {"files": str(folder / files[0]), "rows": True}
        return {TRAIN: Detected("numpy", options, [note], used=files)}
    note = "each file is taken for a sample; no labels were found."
    pattern = str(folder / f"*{Path(files[0]).suffix}")
    return {TRAIN: Detected("numpy", {"files": pattern}, [note], used=files)}


def _find_roles(names: Iterable[str]) -> dict[str, _Role]:
    """Return which array holds the samples of each part, and which the labels."""
    groups: dict[str, _Role] = {}
    for role, words in (("samples", _SAMPLES), ("labels", _LABELS)):
        for word in words:
            for name in names:
                if word in split_words(name):
                    groups.setdefault(find_part_word(name), {}).setdefault(role, name)
    return choose_parts({word: roles for word, roles in groups.items() if "samples" in roles})


def _detect_files(roles: _Role, paths: Mapping[str, str]) -> Detected:
    options: dict[str, Any] = {"files": paths[roles["samples"]]}
    notes = []
    if "labels" in roles:
        path = paths[roles["labels"]]
        name, note = _name_labels(path, "")
        options |= {"labels": path} if name == "labels" else {"values": {name: path}}
        notes += note
    else:
        notes.append("there is no file with labels, such as y.npy.")
    used = [Path(paths[name]).name for name in roles.values()]
    return Detected("numpy", options | {"rows": True}, notes, used=used)


def _name_labels(path: str, member: str) -> tuple[str, list[str]]:
    """Return "labels" if an array holds one whole number a sample, else "target" and a note."""
    try:
        loaded = np.load(path, mmap_mode="r")
        array = loaded[member] if member else loaded
    except (OSError, ValueError) as e:
        raise DataError(f"{path}: {e}") from e
    if array.dtype.kind in "iu" and math.prod(array.shape[1:]) == 1:
        return "labels", []
    shape = ", ".join(map(str, array.shape))
    return "target", [
        f"'{member or Path(path).name}' holds {array.dtype} ({shape}), no class numbers: it is the "
        "value 'target' in a batch."
    ]


def _detect_npz(file: Path) -> dict[str, Detected]:
    try:
        with open_regular(file) as opened:
            names = npy.list_arrays(opened)
    except (OSError, ValueError) as e:
        raise DataError(f"{file}: {e}") from e
    if len(names) < 2:
        note = "each row of the array is taken for a sample; no labels were found."
        options = {"files": str(file), "rows": True}
        return {TRAIN: Detected("numpy", options, [note], used=[file.name])}
    parts = _find_roles(names)
    if not parts:
        labels = next((n for n in names if not set(_LABELS).isdisjoint(split_words(n))), None)
        samples = next(name for name in names if name != labels)
        parts = {TRAIN: {"samples": samples} | ({"labels": labels} if labels else {})}
    read = {name for roles in parts.values() for name in roles.values()}
    others = name_some(name for name in names if name not in read)
    return {part: _detect_members(file, roles, others) for part, roles in parts.items()}


def _detect_members(file: Path, roles: _Role, others: str) -> Detected:
    samples, labels = roles["samples"], roles.get("labels")
    notes = []
    if others:
        notes.append(f"the samples are the array '{samples}'; {others} are not read.")
    if labels is None:
        notes.append(f"the array '{samples}' holds the samples, and no array is called labels.")
        options: dict[str, Any] = {"files": str(file), "arrays": {"array": samples}, "rows": True}
        return Detected("numpy", options, notes, used=[file.name])
    name, note = _name_labels(str(file), labels)
    where = {"labels": str(file)} if name == "labels" else {"values": {name: str(file)}}
    options = {"files": str(file)} | where
    options |= {"arrays": {"array": samples, name: labels}, "rows": True}
    return Detected("numpy", options, [*notes, *note], used=[file.name])


def infer_layout(shape: Sequence[int | None]) -> tuple[str, str]:
    """Return the layout of a sample, and what is not certain about it or "".

    Channels are the first or the last axis: the shorter of the two. An axis that differs between
    samples holds no channels.

    Args:
        shape: The size of each axis; None where samples differ.
    """
    sizes = [n or _UNKNOWN for n in shape]
    if not 3 <= len(sizes) <= 4:
        return default_layout(len(sizes)), ""
    space = "DHW"[-(len(sizes) - 1) :]
    first, last = sizes[0], sizes[-1]
    layout = f"{space}C" if last < first else f"C{space}"
    if len(sizes) == 4 and sizes[1] <= _MAX_CHANNELS < first:
        layout = "TCHW"
    written = f"({', '.join('?' if n is None else str(n) for n in shape)})"
    if len(sizes) == 3 and min(first, last) <= _MAX_CHANNELS < max(first, last):
        return layout, ""
    others = {3: ("CHW", "HWC", "DHW"), 4: ("CDHW", "DHWC", "TCHW", "THWC")}[len(sizes)]
    rest = " or ".join(other for other in others if other != layout)
    meaning = ", ".join(_AXES[letter] for letter in layout)
    doubt = f"arrays of {written} are taken for {layout} ({meaning}); otherwise set data.layout"
    return layout, f"{doubt} to {rest}."
