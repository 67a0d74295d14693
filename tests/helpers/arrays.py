"""Arrays in files, and what the engines deliver of them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gpupipe
from gpupipe.dataset.index import Index

ENGINES: dict[str, dict[str, Any]] = {
    "dali": {"engine": "dali"},
    "cpu": {"engine": "cpu"},
    "dataloader": {"engine": "dataloader", "workers": 0},
}
COUNT = 5
"""Of the arrays in a data set."""
ULP = 2.0**-10
"""Between two float16s: DALI and torch differ on what lies half-way between them."""
SHAPES = {
    "CHW": (3, 9, 12),
    "HWC": (9, 12, 3),
    "HW": (9, 12),
    "LC": (40, 3),
    "CL": (3, 40),
    "L": (40,),
    "CDHW": (2, 7, 9, 8),
    "DHWC": (7, 9, 8, 2),
    "TCHW": (2, 3, 9, 12),
    "C": (6,),
    "CHWP": (3, 9, 12, 2),
}
"""A shape for each layout."""


def saved(folder: Path, array: NDArray[Any], **data: Any) -> dict[str, Any]:
    """`array` in a file, a sample a row, as the YAML's `data`."""
    np.save(folder / "rows.npy", array)
    return {"source": "numpy", "files": str(folder / "rows.npy"), "rows": True, **data}


def numbers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    """Numbers over all of an integer dtype's range, or floats around 0."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return (rng.random(shape) * 4 - 2).astype(kind)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)


def read(index: Index, i: int) -> Any:
    """Sample i as its span and its Array say."""
    array = index.columns[index.main].array
    assert array is not None
    return index.read(i).view(array.dtype).reshape(array.shape_of(i))


def delivered(
    data: dict[str, Any], steps: list[Any], engine: str, **options: Any
) -> dict[int, torch.Tensor]:
    """What one engine makes of each sample in epoch 0, by id."""
    name = data.get("field", "array")
    with gpupipe.load(
        {"data": data, "pipeline": steps},
        **({"device": "cpu", "batch_size": 3, "ids": True} | ENGINES[engine] | options),
    ) as loader:
        return {
            int(id): row
            for batch in loader
            for id, row in zip(batch["id"], batch[name], strict=True)
        }


def delivered_each(
    data: dict[str, Any], pipelines: dict[str, list[Any]], engine: str, **options: Any
) -> dict[str, dict[int, torch.Tensor]]:
    """What one engine makes of each sample in epoch 0, by pipeline and id: each pipeline is a view
    of one loader.
    """
    views = {name: {"steps": steps} for name, steps in pipelines.items()}
    with gpupipe.load(
        {"data": data, "pipeline": {"steps": [], "views": views}},
        **({"device": "cpu", "batch_size": 3, "ids": True} | ENGINES[engine] | options),
    ) as loader:
        made: dict[str, dict[int, torch.Tensor]] = {name: {} for name in pipelines}
        for batch in loader:
            for name, rows in made.items():
                rows.update(zip(batch["id"].tolist(), batch[name], strict=True))
    return made


def both_of_each(
    data: dict[str, Any], pipelines: dict[str, list[Any]], apart: float = 0.0, **options: Any
) -> dict[str, list[tuple[torch.Tensor, torch.Tensor]]]:
    """What `both` returns, for each of some pipelines."""
    every = [delivered_each(data, pipelines, engine, **options) for engine in ENGINES]
    return {name: _compare(*(made[name] for made in every), apart) for name in pipelines}


def both(
    data: dict[str, Any], steps: list[Any], apart: float = 0.0, **options: Any
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(DALI's, the DataLoader's) of each sample, by id; of the same dtype and shape.

    The CPU engine's differ from the DataLoader's by at most `apart`.
    """
    return _compare(*(delivered(data, steps, engine, **options) for engine in ENGINES), apart)


def _compare(
    made: dict[int, torch.Tensor],
    own: dict[int, torch.Tensor],
    expected: dict[int, torch.Tensor],
    apart: float,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    assert made.keys() == own.keys() == expected.keys()
    pairs = [(made[i], expected[i]) for i in sorted(made)]
    for a, b in pairs:
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
    for i, array in own.items():
        torch.testing.assert_close(array, expected[i], rtol=0, atol=apart, equal_nan=True)
    return pairs


def exactly(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for made, expected in pairs:
        assert torch.equal(made, expected), (made.double() - expected.double()).abs().max()
