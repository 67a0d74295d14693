"""Chooses the .npy files, or the arrays of a .npz file, to read, and guesses their layout."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.dataset.layout import default_layout
from gpupipe.dataset.paths import name_file
from gpupipe.dataset.reading import map_file
from gpupipe.formats import npy
from gpupipe.init.detected import (
    TRAIN,
    Detected,
    choose_parts,
    find_part_word,
    name_some,
    split_words,
)

SUFFIXES = (".npy", ".npz")
_SAMPLES = ("x", "data", "images", "image", "features", "inputs", "array")
_LABELS = ("y", "labels", "label", "targets", "target", "classes", "class")
_MAX_CHANNELS = 4
_UNKNOWN = 1 << 62
_AXES = {"C": "channels", "D": "depth", "H": "height", "W": "width", "T": "time"}
_Role = dict[str, str]


def is_array(path: str) -> bool:
    """Return whether the suffix of a path is .npy or .npz."""
    return path.lower().endswith(SUFFIXES)


def detect_arrays(folder: Path, files: Sequence[str]) -> dict[str, Detected]:
    """Detect samples in arrays: x*.npy with y*.npy, a .npz file, or a .npy file for each sample.

    Args:
        folder: The folder of the files.
        files: The names of the .npy and .npz files in the folder.

    Returns:
        The detected data of each part: "train", and "val" if there is validation data.

    Raises:
        DataError: A .npz file cannot be read.
    """
    first = str(folder / files[0])
    is_archive = len(files) == 1 and first.lower().endswith(".npz")
    path_of = {Path(name).stem: str(folder / name) for name in files}
    if is_archive:
        with name_file(first):
            path_of = dict.fromkeys(npy.list_arrays(map_file(Path(first))), first)
    parts = _find_roles(path_of)
    if is_archive:
        # The only array of a file needs no name.
        parts = (parts or {TRAIN: _guess_roles(list(path_of))}) if len(path_of) > 1 else {}
    if parts:
        read = {name for roles in parts.values() for name in roles.values()}
        others = name_some(name for name in path_of if name not in read) if is_archive else ""
        return {part: _detect(roles, path_of, is_archive, others) for part, roles in parts.items()}
    if len(files) == 1:
        note = "each row of the array is taken for a sample; no labels were found."
        return {TRAIN: Detected("numpy", {"files": first, "rows": True}, [note], used=files)}
    note = "each file is taken for a sample; no labels were found."
    pattern = str(folder / f"*{Path(files[0]).suffix}")
    return {TRAIN: Detected("numpy", {"files": pattern}, [note], used=files)}


def _find_roles(names: Iterable[str]) -> dict[str, _Role]:
    """Find each part's arrays of samples and labels, by words in the names of the arrays.

    Returns, for example, {"train": {"samples": "x_train", "labels": "y_train"}}.
    """
    groups: dict[str, _Role] = {}
    for role, words in (("samples", _SAMPLES), ("labels", _LABELS)):
        for word in words:
            for name in names:
                if word in split_words(name):
                    groups.setdefault(find_part_word(name), {}).setdefault(role, name)
    return choose_parts({word: roles for word, roles in groups.items() if "samples" in roles})


def _guess_roles(names: Sequence[str]) -> _Role:
    """Choose the arrays of samples and labels by name, if no name is a usual one for samples."""
    labels = next((n for n in names if not set(_LABELS).isdisjoint(split_words(n))), None)
    samples = next(name for name in names if name != labels)
    return {"samples": samples} | ({"labels": labels} if labels else {})


def _detect(roles: _Role, path_of: Mapping[str, str], is_archive: bool, others: str) -> Detected:
    """Return a Detected that reads an array of samples, and the array of labels if there is one.

    Args:
        roles: The names of the arrays, by what they hold: "samples" or "labels".
        path_of: The path of the file that holds each array, by the array's name.
        is_archive: Whether one .npz file holds all arrays.
        others: A text that names the arrays of the .npz file that are not read, or "".
    """
    samples, labels = roles["samples"], roles.get("labels")
    options: dict[str, Any] = {"files": path_of[samples]}
    arrays = {"array": samples}
    notes = [f"the samples are the array '{samples}'; {others} are not read."] if others else []
    if labels is not None:
        name, more_options, more_notes = _read_labels(path_of[labels], labels if is_archive else "")
        options |= more_options
        notes += more_notes
        arrays[name] = labels
    elif is_archive:
        notes.append(f"the array '{samples}' holds the samples, and no array is called labels.")
    else:
        notes.append("there is no file with labels, such as y.npy.")
    options |= ({"arrays": arrays} if is_archive else {}) | {"rows": True}
    used = [Path(path_of[name]).name for name in roles.values()]
    return Detected("numpy", options, notes, used=used)


def _read_labels(path: str, member: str) -> tuple[str, dict[str, Any], list[str]]:
    """Choose how to read an array of labels: as labels, or as the value "target".

    Args:
        path: The .npy or .npz file.
        member: The name of the array in a .npz file; "" for .npy.

    Returns:
        The name under which the source reads the array; the options of the source; notes for the
        user. The name is "labels" if the array holds one whole number per sample, else "target".
    """
    with name_file(path):
        loaded = np.load(path, mmap_mode="r")
        array = loaded[member] if member else loaded
    if array.dtype.kind in "iu" and math.prod(array.shape[1:]) == 1:
        return "labels", {"labels": path}, []
    shape = ", ".join(map(str, array.shape))
    note = (
        f"'{member or Path(path).name}' holds {array.dtype} ({shape}), no class numbers: it is the "
        "value 'target' in a batch."
    )
    return "target", {"values": {"target": path}}, [note]


def infer_layout(shape: Sequence[int | None]) -> tuple[str, str]:
    """Guess the layout of a sample. Return it, such as "CHW", and a sentence on a doubt, or "".

    Channels are the first or the last axis: the shorter of the two. An axis whose size differs
    between samples is not the axis of channels.

    Args:
        shape: The size of each axis; None for an axis whose size differs between samples.
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
