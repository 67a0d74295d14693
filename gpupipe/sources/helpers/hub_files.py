"""Find the files of a split in a folder of Hugging Face's `datasets`, or in a copy of a repository.

`read_features` reads the column types that `datasets` stored. The layouts of files, each with what
writes it:

dataset_dict.json, SPLIT/state.json, SPLIT/*.arrow    DatasetDict.save_to_disk
state.json, *.arrow                                   Dataset.save_to_disk
NAME-SPLIT.arrow, NAME-SPLIT-00000-of-00002.arrow     the cache of load_dataset
data/SPLIT-00000-of-00002.parquet, SPLIT/*.parquet    a repository on the hub
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpupipe.dataset.paths import missing_folder
from gpupipe.errors import DataError, did_you_mean

_TRAIN = "train"
_STATE, _DICT = "state.json", "dataset_dict.json"
_NUMBERED = re.compile(r"-\d{5}-of-\d{5}$")


def find_hub_files(root: Path, split: str | None) -> list[Path]:
    """Return the Arrow or Parquet files of a split, in order.

    Args:
        root: The folder of the data set.
        split: The name of the split. With None, it is "train" if there is one, else the only split.

    Raises:
        DataError: There is no such folder, data set or split; or `split` is None, and there are
            several splits without a "train".
    """
    root = root.absolute()
    if not root.is_dir():
        raise missing_folder(root, "data.root", "set data.root to the folder of a data set")
    splits = find_splits(root)
    if not splits:
        raise DataError(
            f"{root}: no data set of Hugging Face: no {_STATE}, no {_DICT}, and no .arrow or "
            ".parquet files: set data.root to the folder that save_to_disk wrote"
        )
    name = split if split is not None else _TRAIN if _TRAIN in splits else next(iter(splits))
    if name not in splits or (split is None and len(splits) > 1 and name != _TRAIN):
        known = [name for name in splits if name]
        if not known:
            raise DataError(f"{root}: it has no splits: leave data.split out")
        hint = did_you_mean(split, known) if split else f"; known: {', '.join(known)}"
        raise DataError(f"{root}: no split '{name or split}'{hint}: set data.split")
    return splits[name]


def find_splits(root: Path) -> dict[str, list[Path]]:
    """Return a dict from the name of each split to its files; {} if `root` is no data set.

    A data set without named splits has a single split, "".

    Raises:
        DataError: state.json or dataset_dict.json is damaged, or a file that it lists is missing.
    """
    if (root / _STATE).is_file():
        return {"": _list_state(root)}
    if (root / _DICT).is_file():
        names = _read_json(root / _DICT).get("splits")
        if not isinstance(names, list) or not all(_is_plain(name) for name in names):
            raise DataError(f"{root / _DICT}: it lists no splits: save the data set again")
        return {name: _list_state(root / name) for name in names}
    for suffix in (".arrow", ".parquet"):
        folders = [root, root / "data", *(p for p in sorted(root.iterdir()) if p.is_dir())]
        for folder in dict.fromkeys(folders):
            files = sorted(folder.glob(f"*{suffix}")) if folder.is_dir() else []
            is_split = folder.parent == root and folder.name != "data"
            if files and is_split and not _NUMBERED.search(files[0].stem):
                return _by_folder(root, suffix)
            if files:
                return _by_name(files)
    return {}


def _by_folder(root: Path, suffix: str) -> dict[str, list[Path]]:
    folders = {p.name: sorted(p.glob(f"*{suffix}")) for p in sorted(root.iterdir()) if p.is_dir()}
    return {name: files for name, files in folders.items() if files}


def _by_name(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Return a dict from splits to files. Files are SPLIT-00000-of-00002, or end in -SPLIT."""
    splits: dict[str, list[Path]] = {}
    for path in files:
        name = _NUMBERED.sub("", path.stem).rpartition("-")[2]
        splits.setdefault(name, []).append(path)
    return splits


def _list_state(folder: Path) -> list[Path]:
    """Return the files that `folder`/state.json lists. Raises DataError if one is missing."""
    listed = _read_json(folder / _STATE).get("_data_files")
    entries = listed if isinstance(listed, list) else []
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if not names or not all(_is_plain(name) for name in names):
        raise DataError(f"{folder / _STATE}: it lists no files of data: save the data set again")
    files = [folder / str(name) for name in names]
    missing = next((path for path in files if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"{missing}: no such file, though {_STATE} lists it: copy all files")
    return files


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and bool(name) and "/" not in name and not name.startswith(".")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as e:
        raise DataError(f"{path}: cannot be read: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}: no JSON: {e}") from e
    return content if isinstance(content, dict) else {}


def read_features(schema: Any) -> dict[str, Any]:
    """Return the features (column types) that `datasets` stored in an Arrow schema; {} if none.

    The dict maps the name of each column to its feature.
    """
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def read_class_names(schema: Any, column: str) -> list[str]:
    """Return the class names of a ClassLabel column; [] for any other column.

    "objects.category" is a column of lists of class labels in the column `objects`.
    """
    feature: Any = read_features(schema)
    for name in [column] if column in feature else column.split("."):
        feature = _skip_lists(feature)
        feature = feature.get(name) if isinstance(feature, dict) else None
    feature = _skip_lists(feature)
    names = feature.get("names") if isinstance(feature, dict) else None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_list and names else []


def _skip_lists(feature: Any) -> Any:
    """Return the feature of a list's items: of [ITEM], or of {feature: ITEM, _type: Sequence}."""
    while True:
        if isinstance(feature, list) and feature:
            feature = feature[0]
        elif isinstance(feature, dict) and "feature" in feature and "_type" in feature:
            feature = feature["feature"]
        else:
            return feature
