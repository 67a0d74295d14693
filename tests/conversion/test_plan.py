"""How fields are stored, and what is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe import config as configs
from gpupipe.conversion.plan import Options, StoragePlan, plan_storage
from gpupipe.errors import ConfigError
from helpers import annotated_folder


def plan(config: Any, **options: Any) -> StoragePlan:
    return plan_storage(config, config.source.index(), Options(**options))


@pytest.fixture
def arrays(tmp_path: Path) -> dict[str, Any]:
    """10 arrays with labels and a value of 2 numbers."""
    np.save(tmp_path / "x.npy", np.ones((10, 5, 6, 3), np.float32))
    np.save(tmp_path / "y.npy", np.arange(10) % 3)
    np.save(tmp_path / "v.npy", np.ones((10, 2)))
    paths = {"files": f"{tmp_path}/x.npy", "labels": f"{tmp_path}/y.npy"}
    values = {"v": f"{tmp_path}/v.npy"}
    return {"source": "numpy", "rows": True, "layout": "HWC", "values": values} | paths


def test_the_options_of_arrays_fix_dtype_shape_and_layout(arrays: dict[str, Any]) -> None:
    made = plan(configs.read({"data": arrays, "pipeline": []}))
    options = made.options_of_source("x/*.tar", {}, "x/classes.txt")
    member = {"member": "npy", "dtype": "float32", "shape": [5, 6, 3], "layout": "HWC"}
    assert options == {
        "shards": "x/*.tar",
        "fields": {"array": member},
        "label": "cls",
        "values": {"v": "json:v"},
    }
    del arrays["values"]
    made = plan(configs.read({"data": arrays, "pipeline": []}), format="parquet")
    column = {"column": "array", "dtype": "float32", "shape": [5, 6, 3], "layout": "HWC"}
    assert made.options_of_source("x/*.parquet", {})["fields"] == {"array": column}


def test_what_a_format_cannot_hold_is_refused_by_name(
    arrays: dict[str, Any], photo_folder: Path
) -> None:
    config = configs.read({"data": arrays, "pipeline": []})
    with pytest.raises(ConfigError, match=r"the value 'v' has .* more than parquet holds"):
        plan(config, format="parquet")
    with pytest.raises(ConfigError, match="--raw is for image files"):
        plan(config, raw=True)
    tagged = annotated_folder.configure(photo_folder, ["decode"])
    with pytest.raises(ConfigError, match=r"'tags' is .* cannot hold"):
        plan(tagged)
    part = {"source": "folder", "root": str(photo_folder)}
    parts = {name: {"weight": 1, **part} for name in ("a", "b")}
    mixed = configs.read({"data": {"source": "mix", "parts": parts}, "pipeline": ["decode"]})
    with pytest.raises(ConfigError, match="weights"):
        plan(mixed)
