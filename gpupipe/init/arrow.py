"""Finds out which columns of Parquet and Arrow files hold images and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpupipe.dataset.shards import name_shard
from gpupipe.errors import GpupipeError
from gpupipe.formats import arrow_columns
from gpupipe.init.labels import find_label_name
from gpupipe.runtime.extras import require_extra
from gpupipe.runtime.regular_file import open_regular


def has_images(file: Path) -> bool:
    """Whether a .parquet file has a column called image whose values are bytes, and no paths."""
    if file.suffix.lower() != ".parquet":
        return False
    require_extra("parquet", ("pyarrow",), f"reading {file}")
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with open_regular(file) as opened:
            schema = pa.parquet.read_schema(opened)
    except (OSError, ValueError, pa.ArrowException) as e:
        raise GpupipeError(f"{file}: cannot be read as .parquet: {e}") from e
    if "image" not in schema.names:
        return False
    kind = schema.field("image").type
    tests = (pa.types.is_struct, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def read_parquet_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source parquet for a shard, and what is not certain."""
    import pyarrow.parquet

    names = pyarrow.parquet.read_schema(file).names
    label = find_label_name(names)
    if label is None:
        return {"label": None}, [f"no column looks like labels; there are {', '.join(names)}."]
    return ({} if label == "label" else {"label": label}), []


def read_arrow_options(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options of the source hf for a file of a saved data set, and what is not certain.

    Raises:
        DataError: The file cannot be read.
    """
    require_extra("hf", ("pyarrow",), f"reading {file}")
    with name_shard(file):
        schema = arrow_columns.read_schema(file)
    kinds = {
        name: feature.get("_type") if isinstance(feature, dict) else None
        for name, feature in arrow_columns.read_features(schema).items()
    }
    image = next((name for name in schema.names if kinds.get(name) == "Image"), "image")
    classes = [name for name in schema.names if kinds.get(name) == "ClassLabel"]
    label = next(iter(classes), None) or find_label_name(schema.names)
    options: dict[str, Any] = {} if image == "image" else {"fields": {"image": image}}
    if label is None:
        others = ", ".join(schema.names)
        return options | {"label": None}, [f"no column looks like labels; there are {others}."]
    return options | ({} if label == "label" else {"label": label}), []
